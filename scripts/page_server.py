"""The real HTTP side over an engine that says set answers at a set pace, so that the page can be looked at."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

from transformers import AutoTokenizer

from eyas.serve.api.app import build_app
from eyas.serve.api.server import HttpServer
from eyas.serve.api.service import ApiSettings
from eyas.serve.api.text import TextSide
from eyas.serve.web import router
from eyas.serve.wire import Ask, Piece, Ready, RoundCount, Status
from eyas.testing import tiny_pair

STEPS = 4
SURVIVAL = (0.78, 0.72, 0.7, 0.66)
"""P(a ≥ i | a ≥ i − 1) of the set draft."""
EXPECTED = (0.74, 0.55, 0.39, 0.27)
ROUND_SECONDS = 0.035
PLAIN_PACE = 27.0
SLOTS = 8192


class SetEngine:
    """An engine client that answers what ``say`` gives for a request, with drafts as likely accepted as SURVIVAL."""

    def __init__(self, say: Callable[[Ask], str]) -> None:
        self.say = say
        self.restarts = 0
        self.asks: list[Ask] = []
        self.histogram, self.possible = [0] * (STEPS + 1), [0] * STEPS
        self.tokens, self.prompts, self.plain, self.running = 0, 0, 0, 0
        self.recent: list[tuple[float, int]] = []
        contract = {"expected": [_expected()]}
        self.ready = Ready("answers-as-set", 512, 2048, SLOTS, {"draft": {"contract": contract}})

    async def answer(self, ask: Ask) -> AsyncIterator[Piece]:
        """Round by round."""
        # The same answer to the same question, whatever K.
        chance = random.Random(7)
        tokens = re.findall(r"\s*(?:\w+|[^\w\s])|\s+", self.say(ask))
        self.asks.append(ask)
        self.running, self.prompts = self.running + 1, self.prompts + len(ask.prompt)
        try:
            await asyncio.sleep(0.12)
            yield self._piece(ask, tokens[:1], [0], [], 0 if len(self.asks) == 1 else 24)
            at = 1
            while at < len(tokens):
                await asyncio.sleep(ROUND_SECONDS)
                steps = 0 if ask.speculation == "null" else STEPS
                accepted = _accepted(chance, steps)
                part = tokens[at : at + accepted + 1]
                origins = [*range(1, accepted + 1), 0][: len(part)]
                at += len(part)
                cut = len(part) <= accepted
                self._count(len(part) if cut else accepted, steps, cut)
                rounds = [RoundCount(len(part) if cut else accepted, steps, cut, None)]
                yield self._piece(ask, part, origins, rounds, None)
            yield self._piece(ask, [""], [0], [], None, "stop")
        finally:
            self.running -= 1

    def _piece(
        self,
        ask: Ask,
        texts: list[str],
        origins: list[int],
        rounds: list[RoundCount],
        cached: int | None,
        finish: Any = None,
    ) -> Piece:
        self.tokens += len(texts)
        self.recent.append((time.monotonic(), len(texts)))
        return Piece(ask.id, [5] * len(texts), texts, origins, rounds=rounds, finish=finish, cached=cached)

    def _count(self, accepted: int, steps: int, cut: bool) -> None:
        if not steps:
            self.plain += 1
        elif not cut:
            self.histogram[accepted] += 1
            self.possible = [n + 1 for n in self.possible]

    @property
    def status(self) -> Status:
        """As if the engine had just sent it."""
        now = time.monotonic()
        self.recent = [(at, n) for at, n in self.recent if now - at < 2]
        pace = sum(n for _, n in self.recent) / 2
        rounds = sum(self.histogram)
        return Status(
            running=self.running,
            waiting=0,
            slots_used=self.running * 420,
            slots_kept=min(self.tokens + self.prompts, SLOTS // 3),
            slots_total=SLOTS,
            prompt_tokens=self.prompts,
            cached_tokens=self.prompts // 3,
            answer_tokens=self.tokens,
            steps=rounds + self.plain,
            rounds=rounds,
            cut_rounds=0,
            plain_rounds=self.plain,
            proposed=rounds * STEPS,
            accepted_histogram=list(self.histogram),
            proposed_at_least=list(self.possible),
            preemptions=0,
            aborted=0,
            busy_seconds=rounds * ROUND_SECONDS,
            tokens_per_second=pace,
            plain_tokens_per_second=PLAIN_PACE * self.running if self.running else None,
            num_steps=float(STEPS) if rounds else None,
        )

    async def flush(self) -> None:
        """Nothing is kept."""

    async def close(self, now: bool = False) -> None:
        """Nothing is open."""


def _accepted(chance: random.Random, steps: int) -> int:
    accepted = 0
    while accepted < steps and chance.random() < SURVIVAL[accepted]:
        accepted += 1
    return accepted


def _expected() -> dict[str, Any]:
    length = 1 + sum(EXPECTED)
    return {"prompt_set": "eyas demo: all", "num_steps": STEPS, "accept_length": length, "survival": list(EXPECTED)}


def _settings(keys: tuple[str, ...]) -> ApiSettings:
    given = {
        "model_path": ("answers-as-set", "default"),
        "speculative_algorithm": ("EAGLE3", "default"),
        "speculative_num_steps": (STEPS, "flag"),
        "speculative_eagle_topk": (1, "default"),
        "speculative_num_draft_tokens": (STEPS + 1, "default"),
        "speculative_adaptive": (True, "default"),
        "context_length": (2048, "model config"),
        "max_total_tokens": (SLOTS, "measured memory"),
        "max_running_requests": (16, "config file"),
        "dtype": ("fp32", "default"),
        "threads": (2, "this machine"),
    }
    values = {name: {"value": value, "origin": origin, "note": ""} for name, (value, origin) in given.items()}
    speculation = {"num_steps": STEPS, "eagle_topk": 1, "num_draft_tokens": STEPS + 1, "draft_sampling": "one-hot"}
    return ApiSettings(keys=keys, speculation=speculation, settings=values)


class PageServer:
    """The server in a thread of its own. Use as a context."""

    def __init__(self, say: Callable[[Ask], str], keys: tuple[str, ...] = ()) -> None:
        self.engine = SetEngine(say)
        text = TextSide(AutoTokenizer.from_pretrained(tiny_pair()[0], trust_remote_code=False))
        app = build_app(self.engine, text, settings=_settings(keys), page=router())
        self._http = HttpServer(app, "127.0.0.1", 0, lambda line: None)
        self.url = self._http.url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._http.serve())

    def __enter__(self) -> PageServer:
        self._thread.start()
        while self._loop is None or not self._listens():
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        address = urlsplit(self.url)
        with socket.socket() as tried:
            return tried.connect_ex((address.hostname, address.port)) == 0

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._http.drain)
        self._thread.join(10)
