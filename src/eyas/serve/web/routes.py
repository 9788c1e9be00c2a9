"""Routes of the page: its files, with headers that let nothing else in, and GET /live."""

from __future__ import annotations

import hashlib
import time
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response

from eyas.serve.api import failures
from eyas.serve.client import EngineClient
from eyas.serve.web.live import Live

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "grafana.json": "application/json",
    "app.js": "text/javascript; charset=utf-8",
    "answer.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "controls.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "figures.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
}
"""Every file that is served: a name that is not here is no path."""

HEADERS = {
    # Model text becomes text nodes only; trusted types make the browser refuse any other way.
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}


def router() -> APIRouter:
    """``/``, ``/assets/…``, ``/grafana.json`` and ``/live``; the app's state holds the ``client``."""
    routes = APIRouter()
    contents = {name: files(__package__).joinpath(name).read_bytes() for name in TYPES}
    paths = {f"/assets/{name}": name for name in TYPES} | {"/": "index.html", "/grafana.json": "grafana.json"}
    for path, name in paths.items():
        routes.add_api_route(path, _sender(contents[name], TYPES[name]), methods=["GET"], include_in_schema=False)
    figures = Live()

    @routes.get("/live", tags=["state"], responses=failures.responses())
    async def live(request: Request) -> dict[str, Any]:
        """What the page shows of the engine now: its status, and accept length of late and since the start."""
        client: EngineClient = request.app.state.client
        return figures.now(client, time.monotonic())

    return routes


def _sender(content: bytes, media_type: str) -> Any:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def send(request: Request) -> Response:
        headers = HEADERS | {"etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return send
