"""The page at /: static files of this folder, and the figures that it shows."""

from eyas.serve.web.routes import router

__all__ = ["router"]
