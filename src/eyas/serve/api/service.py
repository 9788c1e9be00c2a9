"""What the routes work with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from eyas.errors import EyasError
from eyas.serve.api.failures import FieldError
from eyas.serve.api.gate import Gate, draining
from eyas.serve.api.text import TextSide
from eyas.serve.client import EngineClient
from eyas.serve.limits import Limits
from eyas.serve.metrics_page import HttpMetrics
from eyas.serve.wire import Ready


@dataclass(frozen=True)
class ApiSettings:
    """``keys``: any of them opens the API; none: it is open · ``names``: the served model's, the first is shown;
    empty: the engine's · ``seed``: of requests that bring none; None: drawn for each · ``defaults``: of sampling, where
    a request is silent; OpenAI's where they are silent too · ``tool_format``, ``reasoning_format``: of the target's
    answers, None where it has none · ``speculation``: settings in effect, None without a draft · ``settings``:
    effective values with their origins, for /server_info.
    """

    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    seed: int | None = None
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    tool_format: str | None = None
    reasoning_format: str | None = None
    speculation: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Service:
    """One engine behind the routes."""

    client: EngineClient
    text: TextSide
    limits: Limits
    settings: ApiSettings
    gate: Gate
    counted: HttpMetrics = field(default_factory=HttpMetrics)
    started: int = field(default_factory=lambda: int(time.time()))

    def ready(self) -> Ready:
        """What the engine said. Raises ``server.draining``, ``server.loading``."""
        if self.gate.draining:
            raise draining()
        ready = self.client.ready
        if ready is None:
            cause = "the engine died and is started again" if self.client.restarts else "the model is being loaded"
            raise EyasError("server.loading", cause, "try again when /ready answers 200")
        return ready

    def names(self) -> tuple[str, ...]:
        """The served model's names. Raises as :meth:`ready`."""
        return self.settings.names or (self.ready().model,)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises ``request.model``."""
        names = self.names()
        if name is not None and name not in names:
            fix = f"use {names[0]}, or leave model out"
            raise FieldError("request.model", "model", "no model of this name is served", fix)
        return name or names[0]

    def longest_prompt(self, ready: Ready) -> int:
        """In tokens: one must be left for the answer."""
        return min(self.limits.prompt_tokens or ready.context, ready.context - 1)


def service_of(request: Request) -> Service:
    """The app's."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
