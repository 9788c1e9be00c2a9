"""A whole server: engines, the API over them, the page; from the start to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fastapi import FastAPI
from transformers import PreTrainedTokenizerBase

from eyas.errors import EyasError
from eyas.serve.api import ApiSettings, HttpServer, TextSide, build_app
from eyas.serve.client import EngineClient
from eyas.serve.process import Care, EngineProcess, silent
from eyas.serve.request_log import RequestLog
from eyas.serve.resolve import Serving
from eyas.serve.router import Router
from eyas.serve.web import router as page
from eyas.serve.wire import Ready

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outside:
    """Whom a server tells what. ``listening``: its address, before the model is loaded · ``ready``: once it is."""

    say: Say
    listening: Callable[[str], None]
    ready: Callable[[str, Ready], None]


async def run_server(serving: Serving, tokenizer: PreTrainedTokenizerBase, outside: Outside) -> None:
    """Listen, load, serve, until SIGTERM or SIGINT. Raises ``server.address``, and what loading comes to."""
    settings = serving.settings
    level = settings.log_level
    say = outside.say if level == "info" else silent
    engines = [engine_process(serving, outside.say if level != "error" else silent) for _ in range(settings.dp_size)]
    client: EngineClient = engines[0] if len(engines) == 1 else Router(engines)
    app = application(serving, client, tokenizer)
    if settings.log_requests:
        app.add_middleware(RequestLog, say=outside.say)
    server = HttpServer(app, settings.host, settings.port, say)
    outside.listening(server.url)
    loading = asyncio.create_task(_load(engines, server))
    loading.add_done_callback(lambda task: _tell(task, outside, server, client))
    try:
        await server.serve()
    finally:
        # What runs has ended, or was ended.
        await client.close(now=True)
        await _ended(loading)


def engine_process(serving: Serving, say: Say) -> EngineProcess:
    """One engine of this server, not yet started."""
    settings = serving.settings
    care = Care(settings.max_queued_requests, settings.watchdog_timeout, settings.limits.drain_seconds)
    return EngineProcess(serving.engine, care, say)


def application(serving: Serving, client: EngineClient, tokenizer: PreTrainedTokenizerBase) -> FastAPI:
    """The HTTP side over one engine or several."""
    settings, speculation = serving.settings, serving.engine.speculation
    api = ApiSettings(
        keys=settings.keys(),
        names=(serving.engine.model,),
        seed=settings.random_seed,
        defaults=serving.sampling_defaults,
        tool_format=serving.tool_format,
        reasoning_format=serving.reasoning_format,
        speculation=None if speculation is None else speculation.model_dump(mode="json"),
        settings=serving.public(),
    )
    return build_app(client, TextSide(tokenizer, serving.template_kwargs), settings.limits, api, page())


async def _load(engines: Sequence[EngineProcess], server: HttpServer) -> None:
    """All engines at once; where one cannot load, nothing is served."""
    try:
        async with asyncio.TaskGroup() as group:
            for engine in engines:
                group.create_task(engine.start())
    except BaseExceptionGroup as found:
        error = found.exceptions[0]
        if not (isinstance(error, EyasError) and error.code == "server.draining"):
            server.drain()
        raise error from None


def _tell(task: asyncio.Task[None], outside: Outside, server: HttpServer, client: EngineClient) -> None:
    if not task.cancelled() and task.exception() is None and client.ready is not None:
        outside.ready(server.url, client.ready)


async def _ended(loading: asyncio.Task[None]) -> None:
    """Raise what loading came to, unless it was ended with the server."""
    if not loading.done():
        loading.cancel()
    with suppress(asyncio.CancelledError):
        try:
            await loading
        except EyasError as error:
            if error.code != "server.draining":
                raise
