"""The application on a port: nothing printed, slow heads refused, and an end that lets what runs end."""

from __future__ import annotations

import logging
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from eyas.errors import EyasError
from eyas.serve.api.protocol import StrictProtocol
from eyas.serve.api.service import Service
from eyas.serve.limits import Limits

if sys.platform != "win32":
    import resource

Say = Callable[[str], None]
ABORT_SECONDS = 5
"""For the last bytes of requests that were ended."""
SPARE_FILES = 256


async def serve_http(app: FastAPI, host: str, port: int, say: Say) -> None:
    """Serve until SIGTERM or SIGINT, then take no new requests, let those that run end, and after ``drain_seconds`` end
    them; a second signal ends them at once. ``port`` 0: any free one, which ``say`` is told.

    Raises ``server.address`` where the address cannot be had.
    """
    await HttpServer(app, host, port, say).serve()


class HttpServer:
    """As :func:`serve_http`, with the address to read and the end to begin from the same event loop."""

    def __init__(self, app: FastAPI, host: str, port: int, say: Say) -> None:
        service: Service = app.state.service
        self._say = say
        self._socket = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        self._server = _Server(_config(app, service.limits), service, say)

    async def serve(self) -> None:
        """Until the end."""
        files = _allow_files(self._server.service.limits)
        if files is not None:
            self._say(f"only {files} files may be open: at most about {files - SPARE_FILES} connections are held")
        handler = _Handler(self._say)
        loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
        propagated = [logger.propagate for logger in loggers]
        for logger in loggers:
            logger.addHandler(handler)
            logger.propagate = False
        try:
            self._say(f"listening on {self.url}")
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            for logger, before in zip(loggers, propagated, strict=True):
                logger.removeHandler(handler)
                logger.propagate = before

    def drain(self) -> None:
        """What SIGTERM does."""
        self._server.drain()


def _config(app: FastAPI, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=StrictProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=limits.backlog,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=ABORT_SECONDS,
        h11_max_incomplete_event_size=limits.header_bytes,
    )


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise _address(host, port, "there is no such port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _address(host, port, error.strerror or "it is no address") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _address(host, port, error.strerror or "it is no address") from error
    return bound


def _address(host: str, port: int, why: str) -> EyasError:
    cause = f"cannot listen on {host}, port {port}: {why}"
    return EyasError("server.address", cause, "choose another --port or --host, or end what listens there")


def _allow_files(limits: Limits) -> int | None:
    """Let the process open a file for each connection; how many it may, if that is too few."""
    if sys.platform == "win32":
        return None
    wanted = limits.open_requests + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return None if most >= wanted else most


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, say: Say) -> None:
        super().__init__(config)
        self.service, self._say = service, say
        self._end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called between two instructions of whatever runs: only note it, the next tick sees it."""
        if self.service.gate.draining:
            self._end = 0.0
        else:
            self.drain()

    def drain(self) -> None:
        gate = self.service.gate
        gate.drain()
        self._end = time.monotonic() + self.service.limits.drain_seconds
        self._say(f"ending: {gate.open} requests run")

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        gate = self.service.gate
        if self._end is not None and (not gate.open or time.monotonic() >= self._end):
            if gate.open:
                self._say(f"ended {gate.open} requests that still ran")
            gate.close()
            return True
        return await super().on_tick(counter)


class _Handler(logging.Handler):
    """Tells of errors by their kind and place: their text may hold what clients sent."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.ERROR)
        self._told = say

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            self._told("the HTTP server met an error of its own")
            return
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
        self._told(f"a request failed: {type(error).__name__}{place}")
