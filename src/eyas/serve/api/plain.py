"""The routes that ask the engine for no answer: what is served, how it does, and text as tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Path, Request
from starlette.responses import Response

from eyas import __version__
from eyas.serve import metrics_page
from eyas.serve.api.answers import Detokenized, Flushed, Health, Model, Models, ServerInfo, Tokenized
from eyas.serve.api.bodies import DetokenizeBody, TokenizeBody, TokenizeText
from eyas.serve.api.chat import chat_prompt
from eyas.serve.api.failures import FieldError
from eyas.serve.api.service import Service, service_of


async def models(request: Request) -> Models:
    """The served model."""
    service = service_of(request)
    return Models(data=[_model(service, service.names()[0])])


async def model(model_id: Annotated[str, Path(max_length=256)], request: Request) -> Model:
    """The served model, by any of its names."""
    service = service_of(request)
    return _model(service, service.check_model(model_id))


def _model(service: Service, name: str) -> Model:
    return Model(id=name, created=service.started, max_model_len=service.ready().context)


async def tokenize(body: TokenizeBody, request: Request) -> Tokenized:
    """A text or a conversation as token ids."""
    service = service_of(request)
    service.check_model(body.model)
    # What does not fit into the context can be counted here too.
    length, most = len(body.prompt if isinstance(body, TokenizeText) else body.model_dump_json()), service.limits
    if length > most.tokenize_chars:
        field = "prompt" if isinstance(body, TokenizeText) else "messages"
        cause = f"{field} has {length} characters, and {most.tokenize_chars} are allowed"
        raise FieldError("request.limit", field, cause, "send it in pieces")
    if isinstance(body, TokenizeText):
        tokens = await service.text.encode(body.prompt, body.add_special_tokens)
    else:
        if body.add_special_tokens:
            cause = "the chat template writes the special tokens itself"
            raise FieldError("request.unsupported", "add_special_tokens", cause, "leave it out")
        tokens, _ = await chat_prompt(body, service, None)
    strings = await service.text.aside(lambda: service.text.pieces(tokens)) if body.return_token_strs else None
    return Tokenized(count=len(tokens), max_model_len=service.ready().context, tokens=tokens, token_strs=strings)


async def detokenize(body: DetokenizeBody, request: Request) -> Detokenized:
    """Token ids as text, special tokens too."""
    service = service_of(request)
    service.check_model(body.model)
    size = service.ready().vocab_size
    foreign = next((token for token in body.tokens if token >= size), None)
    if foreign is not None:
        cause = f"tokens names token {foreign}, and the vocabulary has {size}"
        raise FieldError("request.field", "tokens", cause, "leave it out")
    return Detokenized(prompt=await service.text.decode(body.tokens))


async def health() -> Health:
    """Whether the process is alive, whatever its engine does."""
    return Health(state="alive")


async def ready(request: Request) -> Health:
    """Whether requests can be sent: not while the model is loaded, the engine is dead, or the server ends."""
    service_of(request).ready()
    return Health(state="ready")


async def server_info(request: Request) -> ServerInfo:
    """What runs here: settings in effect and where they came from, the draft's contract, versions, figures now."""
    service = service_of(request)
    loaded, status = service.ready(), service.client.status
    speculation = service.settings.speculation
    return ServerInfo(
        engine="eyas",
        version=__version__,
        models=list(service.names()),
        speculation=None if speculation is None else dict(speculation),
        settings=dict(service.settings.settings),
        loaded=msgspec.to_builtins(loaded),
        status=None if status is None else msgspec.to_builtins(status),
        restarts=service.client.restarts,
        limits=service.limits.model_dump(),
    )


async def flush_cache(request: Request) -> Flushed:
    """Forget all kept prefixes; requests that run keep theirs."""
    service = service_of(request)
    service.ready()
    await service.client.flush()
    return Flushed(flushed=True)


async def metrics(request: Request) -> Response:
    """Figures as Prometheus reads them."""
    service = service_of(request)
    page: bytes = metrics_page.render(service.client, service.counted)
    return Response(page, headers={"content-type": metrics_page.CONTENT_TYPE})
