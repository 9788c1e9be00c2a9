"""What one request, and all together, may ask of the HTTP side."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from eyas.config import Settings
from eyas.errors import EyasError
from eyas.serve.flags import flag

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
PANEL = "Limits"


class Limits(Settings):
    """Raises ``flags.range``, ``flags.contradiction``. What is more than a limit is refused, never cut to it."""

    body_bytes: Annotated[Count, flag(PANEL, "Bytes of a request's body.")] = 8 << 20
    bodies_bytes: Annotated[Count, flag(PANEL, "Bytes of the bodies of all requests at one time.")] = 256 << 20
    json_depth: Annotated[
        Annotated[int, Field(ge=8, le=200)], flag(PANEL, "Objects and lists in one another in a body.")
    ] = 64
    prompt_tokens: Annotated[Count | None, flag(PANEL, "Tokens of a prompt; else as many as the context holds.")] = None
    tokenize_chars: Annotated[Count, flag(PANEL, "Characters of a text for /tokenize.")] = 1 << 20
    choices: Annotated[Count, flag(PANEL, "Prompts times n of a request.")] = 64
    top_logprobs: Annotated[Annotated[int, Field(ge=0)], flag(PANEL, "Likeliest tokens that are told per place.")] = 20
    stop_strings: Annotated[Count, flag(PANEL, "Stop strings of a request.")] = 16
    stop_chars: Annotated[Count, flag(PANEL, "Characters of one stop string.")] = 256
    stop_token_ids: Annotated[Count, flag(PANEL, "Stop tokens of a request.")] = 64
    logit_biases: Annotated[Count, flag(PANEL, "Entries of logit_bias.")] = 1024
    tools: Annotated[Count, flag(PANEL, "Tools of a request.")] = 128
    grammar_bytes: Annotated[Count, flag(PANEL, "Bytes of a schema, expression or grammar.")] = 64 << 10
    grammar_depth: Annotated[Count, flag(PANEL, "Objects and brackets in one another in a grammar.")] = 32
    header_bytes: Annotated[Annotated[int, Field(ge=1024)], flag(PANEL, "Bytes of a request's head.")] = 32 << 10
    read_seconds: Annotated[Seconds, flag(PANEL, "For a request's head to arrive, and for its body.")] = 30.0
    write_seconds: Annotated[Seconds, flag(PANEL, "For a client to take more of an answer that waits for it.")] = 60.0
    idle_seconds: Annotated[Count, flag(PANEL, "Between two requests of a connection.")] = 30
    request_seconds: Annotated[Seconds, flag(PANEL, "For a request to be answered.")] = 3600.0
    open_requests: Annotated[Count, flag(PANEL, "Requests answered or waiting at one time.")] = 2048
    drain_seconds: Annotated[Seconds, flag(PANEL, "For what runs when the server is told to end.")] = 30.0
    backlog: Annotated[Count, flag(PANEL, "Connections that the system holds until they are taken.")] = 2048

    @model_validator(mode="after")
    def _one_body_fits(self) -> Limits:
        if self.bodies_bytes < self.body_bytes:
            cause = f"--limit-bodies-bytes {self.bodies_bytes} is less than --limit-body-bytes {self.body_bytes}"
            raise EyasError("flags.contradiction", cause, "raise the one, or lower the other")
        return self
