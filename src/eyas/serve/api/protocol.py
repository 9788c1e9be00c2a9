"""HTTP/1.1 where heads must arrive in time, answers be taken in time, and refusals are JSON as all others."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from eyas.errors import EyasError
from eyas.serve.api.failures import error_body, status_of
from eyas.serve.limits import Limits


class StrictProtocol(H11Protocol):
    """One connection to an application whose state holds a ``service``."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False
    _unread: asyncio.TimerHandle | None = None

    @property
    def _limits(self) -> Limits:
        app = cast(Any, self.config.app)
        limits: Limits = app.state.service.limits
        return limits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A head must come now."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        """More of a head, or of a body, which the application waits for."""
        self._begun = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next head may come, or not: the connection is idle."""
        self._begun = False
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client takes nothing: it must go on in time, for what it asked for is held for it."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It went on."""
        super().resume_writing()
        self._stop_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its connection."""
        self._stop()
        self._stop_unread()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled, which alone knows what is wrong."""
        if getattr(sys.exc_info()[1], "error_status_hint", 400) == 431:
            self._refuse(EyasError("request.headers", "the head is too large", "send fewer or shorter headers"))
        else:
            self._refuse(EyasError("request.http", "this is no HTTP request", "use an HTTP client"))

    def _watch(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if not waits or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.read_seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _late(self) -> None:
        self._timer = None
        if self._begun:
            cause = f"the head of the request did not arrive within {self._limits.read_seconds:g} seconds"
            self._refuse(EyasError("request.timeout", cause, "send it in one go"))
        else:
            self.transport.close()

    def _refuse(self, error: EyasError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(error).model_dump_json().encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            head = h11.Response(status_code=status_of(error.code), headers=list(headers.items()))
            for part in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
