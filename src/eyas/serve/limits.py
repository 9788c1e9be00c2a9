"""What one request, and all together, may ask of the HTTP side."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from eyas.config import Settings

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]


class Limits(Settings):
    """Raises ``flags.range``. What is more than a limit is refused, never cut to it.

    ``prompt_tokens`` None: as many as the context holds. ``choices``: prompts times ``n`` of a request.
    ``stop_chars``: of one stop string. ``grammar_depth``: objects and brackets in one another. ``read_seconds``: for a
    request's head, and for its body. ``idle_seconds``: between two requests of a connection. ``open_requests``:
    answered or waiting at one time. ``drain_seconds``: for what runs when the server is told to end.
    """

    body_bytes: Count = 8 << 20
    json_depth: Annotated[int, Field(ge=8, le=200)] = 64
    prompt_tokens: Count | None = None
    choices: Count = 64
    top_logprobs: Annotated[int, Field(ge=0)] = 20
    stop_strings: Count = 16
    stop_chars: Count = 256
    stop_token_ids: Count = 64
    logit_biases: Count = 1024
    tools: Count = 128
    grammar_bytes: Count = 64 << 10
    grammar_depth: Count = 32
    header_bytes: Annotated[int, Field(ge=1024)] = 32 << 10
    read_seconds: Seconds = 30.0
    idle_seconds: Annotated[int, Field(ge=1)] = 30
    request_seconds: Seconds = 3600.0
    open_requests: Count = 2048
    drain_seconds: Seconds = 30.0
    backlog: Count = 2048
