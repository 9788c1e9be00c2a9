"""OpenAI's API over an engine."""

from eyas.serve.api.app import build_app
from eyas.serve.api.server import HttpServer, serve_http
from eyas.serve.api.service import ApiSettings
from eyas.serve.api.text import TextSide
from eyas.serve.limits import Limits

__all__ = ["ApiSettings", "HttpServer", "Limits", "TextSide", "build_app", "serve_http"]
