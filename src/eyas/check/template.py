"""How a running server writes a chat, beside the target's own template.

Accepted counts are compared on prompts given as token ids, which no template touches. What users send are chats, and a
server whose template is another feeds the draft what it was not trained on, with right ids and every log green.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eyas.check.findings import Finding, Link, State
from eyas.contract.schema import Rendering
from eyas.servers.figures import count_in, is_list
from eyas.servers.http import Http, root_of, within
from eyas.servers.look import look, only_model

NUM_CHATS = 3
PATIENCE = 60.0
"""Seconds for all chats together."""
ITS_OWN = "as the target's own template does"
THINKING_ON, THINKING_OFF = "with thinking on", "with thinking off"
SYSTEM_PROMPT = "You are a helpful assistant."
"""What many a launch script and template adds."""

Chat = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Heard:
    """What a server makes of one chat: the token ids, or where it tells only their number, that."""

    count: int
    ids: tuple[int, ...] | None = None

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether the server reads these ids, as far as it tells."""
        return self.count == len(ids) if self.ids is None else self.ids == tuple(ids)


def hear(url: str, chats: Sequence[Chat], timeout: float = PATIENCE, key: str | None = None) -> list[Heard] | None:
    """What the server reads for each chat: by /tokenize where it renders chats, else by an answer's usage. None: it
    tells neither. Raises ``server.unreachable``, ``server.refused`` for a server that serves more than one model.
    """
    root = root_of(url)
    return within(timeout, _hear(root, chats, key), root)


async def _hear(root: str, chats: Sequence[Chat], key: str | None) -> list[Heard] | None:
    async with Http(root, key) as http:
        kind = (await look(http)).kind
        name = await only_model(http)
        found = []
        for chat in chats:
            asked: dict[str, Any] = {"model": name, "messages": [dict(message) for message in chat]}
            one = await _tokenized(http, asked) if kind in ("eyas", "vllm") else None
            one = one or await _answered(http, asked)
            if one is None:
                return None
            found.append(one)
        return found


async def _tokenized(http: Http, asked: dict[str, Any]) -> Heard | None:
    reply = await http.post("/tokenize", {**asked, "add_generation_prompt": True})
    ids = reply.json().get("tokens") if reply.status == 200 else None
    if not is_list(ids) or not all(type(token) is int for token in ids):
        return None
    return Heard(len(ids), tuple(ids))


async def _answered(http: Http, asked: dict[str, Any]) -> Heard | None:
    reply = await http.post("/v1/chat/completions", {**asked, "max_tokens": 1, "temperature": 0.0})
    count = count_in(reply.json(), "prompt_tokens") if reply.status == 200 else None
    return None if count is None else Heard(count)


@dataclass(frozen=True)
class Found:
    """The link, and what is wrong, if anything is."""

    link: Link
    finding: Finding | None = None


def judge_template(
    heard: Sequence[Heard] | None,
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[Chat],
    rendering: Rendering | None = None,
) -> Found:
    """Whether the server writes chats as the target's own template does, or with the thinking switch of the draft's
    ``rendering``; if not, as what it does.
    """
    if heard is None:
        return Found(_link("unknown", "the server does not tell what it makes of a chat"))
    rendered = [dict(renderings(tokenizer, chat)) for chat in chats]
    right = [name for name in _right(rendering) if name in rendered[0]] or [ITS_OWN]
    if any(_all_read(heard, rendered, name) for name in right):
        said = f"{len(chats)} chats are read as the target's own template writes them"
        by_ids = all(one.ids is not None for one in heard)
        return Found(_link("proven", said) if by_ids else _link("sound", f"{said}, by their length"))
    names = [name for name in rendered[0] if _all_read(heard, rendered, name)]
    own = [one[right[0]] for one in rendered]
    at = next(i for i, (one, ids) in enumerate(zip(heard, own, strict=True)) if not one.is_of(ids))
    said = "the server writes chats otherwise than the target's own template" + (
        f": {' or '.join(names)}" * bool(names)
    )
    evidence = _difference(heard[at], own[at], tokenizer)
    fix = "start the server with the target's own chat template and switches, or train on what it writes"
    finding = Finding("endpoint.template", "endpoint", "fault", said, evidence, fix, data={"as": names})
    return Found(_link("broken", evidence), finding)


def _link(state: State, said: str) -> Link:
    return Link("template", "endpoint", state, said)


def _right(rendering: Rendering | None) -> tuple[str, ...]:
    switch = "none" if rendering is None else rendering.thinking
    return {"off": (THINKING_OFF,), "on": (THINKING_ON,), "mixed": (THINKING_ON, THINKING_OFF)}.get(switch, (ITS_OWN,))


def _all_read(heard: Sequence[Heard], rendered: Sequence[dict[str, list[int]]], name: str) -> bool:
    return all(name in one and h.is_of(one[name]) for h, one in zip(heard, rendered, strict=True))


def renderings(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Iterator[tuple[str, list[int]]]:
    """(name, token ids) of the ways in which a server may write a chat, the target's own first."""
    user = list(chat)
    system = [{"role": "system", "content": text} for text in ("", SYSTEM_PROMPT)]
    ways: list[tuple[str, list[dict[str, str]], dict[str, Any]]] = [
        (ITS_OWN, user, {}),
        (THINKING_OFF, user, {"enable_thinking": False, "thinking": False}),
        (THINKING_ON, user, {"enable_thinking": True, "thinking": True}),
        ("not opened for the answer", user, {"add_generation_prompt": False}),
        ("with an empty system prompt", [system[0], *user], {}),
        (f"with the system prompt {SYSTEM_PROMPT!r}", [system[1], *user], {}),
    ]
    for name, messages, switches in ways:
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False, **switches}
        try:
            text = str(tokenizer.apply_chat_template(messages, **options))
        except TemplateError:  # it has no place for a system prompt
            continue
        yield name, list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if name == ITS_OWN:
            yield "with special tokens once more", list(tokenizer(text, add_special_tokens=True)["input_ids"])
    yield "as their text alone, without a template", list(tokenizer("\n".join(m["content"] for m in user))["input_ids"])


def _difference(heard: Heard, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    if heard.ids is None:
        return f"it reads {heard.count} tokens where the target's own template writes {len(ids)}"
    first = next(
        (i for i, (a, b) in enumerate(zip(heard.ids, ids, strict=False)) if a != b), min(heard.count, len(ids))
    )
    theirs, ours = (str(tokenizer.decode(list(part[first : first + 8]))) for part in (heard.ids, ids))
    return f"from token {first} on it reads {theirs!r} where the template writes {ours!r}"


def template_of_server(
    url: str, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], rendering: Rendering | None = None
) -> Found:
    """Ask a server what it makes of a few chats of one turn, and judge it; raises ``server.…``."""
    if not tokenizer.chat_template:
        return Found(_link("skipped", "the target has no chat template"))
    chats = [[{"role": "user", "content": text}] for text in prompts[:NUM_CHATS]]
    return judge_template(hear(url, chats), tokenizer, chats, rendering)
