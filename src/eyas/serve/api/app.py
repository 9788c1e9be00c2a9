"""The HTTP side as one application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI

from eyas import __version__
from eyas.serve.api import answers, failures, plain
from eyas.serve.api.chat import chat_completions
from eyas.serve.api.completions import completions
from eyas.serve.api.gate import Gate
from eyas.serve.api.guard import OPEN, Guard
from eyas.serve.api.service import ApiSettings, Service
from eyas.serve.api.strict import StrictRoute
from eyas.serve.api.text import TextSide
from eyas.serve.client import EngineClient
from eyas.serve.limits import Limits

STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
"""Events of a stream, each a JSON object as this route's, at the end ``data: [DONE]``."""
UNUSED = ("HTTPValidationError", "ValidationError")
"""The framework's own form of errors, which no route answers with."""


class Api(FastAPI):
    """An application that describes the errors it really gives."""

    keyed = False

    def openapi(self) -> dict[str, Any]:
        """The description, as the framework makes it, without its own form of errors."""
        if self.openapi_schema is None:
            made = super().openapi()
            for path, methods in made["paths"].items():
                for operation in methods.values():
                    operation["responses"].pop("422", None)
                    if self.keyed and path not in OPEN:
                        operation["security"] = [{"key": []}]
            parts = made.setdefault("components", {})
            for name in UNUSED:
                parts.get("schemas", {}).pop(name, None)
            if self.keyed:
                parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            self.openapi_schema = made
        return self.openapi_schema


def build_app(
    client: EngineClient,
    text: TextSide,
    limits: Limits | None = None,
    settings: ApiSettings | None = None,
    page: APIRouter | None = None,
) -> FastAPI:
    """The application over one engine or a router of several; ``page``: the web page's routes.

    Its state holds ``client`` and ``service``. No other site's scripts may call it: it sends no CORS headers.
    """
    limits, settings = limits or Limits(), settings or ApiSettings()
    service = Service(client, text, limits, settings, Gate(limits.open_requests))
    app = Api(
        title="Eyas",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        # A redirect would name the scheme and host that the request came by, which behind a proxy are not the client's.
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.keyed = bool(settings.keys)
    app.state.client, app.state.service = client, service
    failures.install(app)
    app.include_router(_routes())
    if page is not None:
        app.include_router(page)
    app.add_middleware(Guard, keys=settings.keys, limits=limits, counted=service.counted)
    return app


def _routes() -> APIRouter:
    routes = APIRouter(route_class=StrictRoute)

    def add(method: str, path: str, route: Callable[..., Any], model: Any, tag: str) -> None:
        responses = failures.responses()
        streams = model in (answers.ChatCompletion, answers.Completion)
        if streams:
            responses[200] = {"content": STREAM}
        routes.add_api_route(path, route, methods=[method], response_model=model, responses=responses, tags=[tag])

    add("POST", "/v1/chat/completions", chat_completions, answers.ChatCompletion, "answers")
    add("POST", "/v1/completions", completions, answers.Completion, "answers")
    add("GET", "/v1/models", plain.models, answers.Models, "answers")
    add("GET", "/v1/models/{model_id:path}", plain.model, answers.Model, "answers")
    add("POST", "/tokenize", plain.tokenize, answers.Tokenized, "text")
    add("POST", "/detokenize", plain.detokenize, answers.Detokenized, "text")
    add("GET", "/health", plain.health, answers.Health, "state")
    add("GET", "/ready", plain.ready, answers.Health, "state")
    add("GET", "/server_info", plain.server_info, answers.ServerInfo, "state")
    add("POST", "/flush_cache", plain.flush_cache, answers.Flushed, "state")
    routes.add_api_route("/metrics", plain.metrics, methods=["GET"], tags=["state"], responses=_metrics_responses())
    return routes


def _metrics_responses() -> dict[int | str, dict[str, Any]]:
    return {**failures.responses(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
