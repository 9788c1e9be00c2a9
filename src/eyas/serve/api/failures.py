"""Errors in OpenAI's form, and which HTTP status stands for which code: the only table of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from eyas.errors import EyasError

STATUSES: tuple[tuple[str, int], ...] = (
    ("request.too-large", 413),
    ("request.timeout", 408),
    ("request.model", 404),
    ("request.headers", 431),
    ("request.", 400),
    ("rendering.", 400),
    ("tokenizer.", 400),
    ("flags.", 400),
    ("engine.cache-full", 400),
    ("server.key", 401),
    ("server.path", 404),
    ("server.method", 405),
    ("server.busy", 429),
    ("server.loading", 503),
    ("server.draining", 503),
    ("engine.died", 503),
    ("", 500),
)
"""The first code that matches; one with a dot at its end is a family."""

TYPES = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}
RETRY_SECONDS = {429: 1, 503: 5}
DECLARED = (400, 401, 404, 408, 413, 429, 431, 500, 503)
"""Statuses of errors that every route that reads a body can give."""


ROLES = ("system", "developer", "user", "tool", "assistant")


class ErrorDetail(BaseModel):
    """``code``: stable, one of docs/errors.md · ``param``: the field that is meant."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """As OpenAI's API gives errors."""

    error: ErrorDetail


class FieldError(EyasError):
    """An :class:`EyasError` about one field, ``param``."""

    def __init__(self, code: str, param: str, cause: str, fix: str) -> None:
        super().__init__(code, cause, fix)
        self.param = param


def status_of(code: str) -> int:
    """The HTTP status of an error code."""
    return next(s for name, s in STATUSES if code == name or (code.startswith(name) and name[-1:] in (".", "")))


def error_body(error: EyasError) -> ErrorBody:
    """What a client is told."""
    status = status_of(error.code)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = error.param if isinstance(error, FieldError) else None
    message = f"{error.cause}; {error.fix}"
    return ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=error.code))


def error_response(error: EyasError, close: bool = False) -> JSONResponse:
    """The whole answer; ``close``: the connection cannot be used again, its request was not read to its end."""
    status = status_of(error.code)
    headers = {"connection": "close"} if close else {}
    if status in RETRY_SECONDS:
        headers["retry-after"] = str(RETRY_SECONDS[status])
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error).model_dump(), status, headers)


def internal() -> EyasError:
    """``server.internal``: says nothing about the cause, which may hold what others sent."""
    return EyasError("server.internal", "the server failed at this request", "look at what it printed")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the OpenAPI description."""
    return {s: {"model": ErrorBody, "description": HTTPStatus(s).phrase} for s in statuses or DECLARED}


def install(app: FastAPI) -> None:
    """Give every error that a route can come to this form."""
    app.add_exception_handler(EyasError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)


async def _known(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EyasError)
    return error_response(error)


async def _unknown(_: Request, error: Exception) -> JSONResponse:
    return error_response(internal())


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid(error.errors()))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(EyasError("server.path", "there is nothing at this path", "see /openapi.json"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        refused = EyasError("server.method", "this path does not take this method", f"use {allowed}")
        response = error_response(refused)
        response.headers["allow"] = allowed
        return response
    return error_response(EyasError("request.json", "the body cannot be read", "send JSON as UTF-8"))


def invalid(errors: Sequence[Mapping[str, Any]]) -> EyasError:
    """The first fault that a model found, naming the field; values are not repeated."""
    first = errors[0]
    original = (first.get("ctx") or {}).get("error")
    if isinstance(original, EyasError):
        return original
    loc = first["loc"]
    # Behind a number stands which kind of message it is, by its role.
    named = [p for p, before in zip(loc, ("", *loc), strict=False) if not (isinstance(before, int) and p in ROLES)]
    place = [str(part) for part in named if part != "body" and not _is_branch(str(part))]
    name = ".".join(place) or "body"
    if not place:
        fix = "send a JSON object, with Content-Type: application/json"
        return FieldError("request.field", name, f"the body: {first['msg']}", fix)
    if first["type"] == "extra_forbidden":
        fix = "leave it out: what has no effect here is refused, not ignored"
        return FieldError("request.field", name, f"{name} is no field that is known here", fix)
    if first["type"] == "missing":
        return FieldError("request.field", name, f"{name} is missing", f"give {name}")
    return FieldError("request.field", name, f"{name}: {first['msg']}", f"give {name} a value that fits")


def _is_branch(part: str) -> bool:
    """Whether it names a branch of a union, e.g. ``list[str]`` or a class; our fields are written small."""
    return part in ("str", "int", "bool", "none") or not part.replace("_", "").isalnum() or part[0].isupper()
