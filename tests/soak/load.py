"""Mixed load: clients that choose anew what to do, and pause together when they are told."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx2 as httpx

from soak import wire
from soak.abuse import Bad, abusive_grammars, bad_requests
from soak.asking import ask
from soak.cases import CHAT, Case
from soak.ledger import Ledger
from soak.server import HEADERS, Server

TIMEOUT = 600.0
WEIGHTS = {
    "answer": 62, "gone": 12, "bad": 14, "grammar": 4, "slow": 2, "otherwise": 2, "page": 2, "text": 1, "flush": 1,
}  # fmt: skip
SPECIAL = re.compile(r"<\|\w+\|>")
PAGES = ("/health", "/ready", "/metrics", "/server_info", "/v1/models", "/openapi.json", "/")


class Load:
    """``clients`` at one time, until :meth:`end`."""

    def __init__(self, server: Server, cases: Sequence[Case], ledger: Ledger, clients: int, seed: int) -> None:
        self.server, self.cases, self.ledger = server, cases, ledger
        self._bad, self._grammars = bad_requests(), abusive_grammars()
        self._rngs = [random.Random(f"{seed} {i}") for i in range(clients)]
        self._go = asyncio.Event()
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._client = new_client(server)

    def begin(self) -> None:
        self._go.set()
        self._tasks = [asyncio.create_task(self._live(rng)) for rng in self._rngs]

    async def pause(self) -> None:
        """Let what runs end, and close all connections."""
        self._go.clear()
        while self._busy:
            self._raise()
            await asyncio.sleep(0.05)
        await self._client.aclose()
        self._client = new_client(self.server)

    async def fill(self) -> None:
        """Have every cache slot written once: memory that is only reserved counts for nothing until then."""
        total = (await asyncio.to_thread(self.server.metrics))["eyas_kv_slots"]
        longest = max((case for case in self.cases if case.path == CHAT), key=lambda case: len(case.prompt))
        question = longest.fields["messages"][0]["content"]
        for i in range(int(2 * total / len(longest.prompt)) + 1):
            body = {"messages": [{"role": "user", "content": f"{i} {question}"}], "max_tokens": 1}
            begun = time.monotonic()
            reply = await self._client.post(CHAT, json=body)
            if reply.status_code != 200:
                self.ledger.fault("long prompt", reply.text)
            self.ledger.note("long prompt", str(reply.status_code), begun)

    def go_on(self) -> None:
        self._go.set()

    async def end(self) -> None:
        await self.pause()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._client.aclose()

    async def run_for(self, seconds: float) -> None:
        """Wait; raises what a client came to."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._raise()
            await asyncio.sleep(min(0.5, seconds))

    def _raise(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _live(self, rng: random.Random) -> None:
        names, weights = [*WEIGHTS], [*WEIGHTS.values()]
        actions: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "answer": self._answer, "gone": self._gone, "bad": self._bad_request, "grammar": self._grammar,
            "slow": self._slow, "otherwise": self._otherwise, "page": self._page, "text": self._text,
            "flush": self._flush,
        }  # fmt: skip
        while True:
            await self._go.wait()
            self._busy += 1
            try:
                await actions[rng.choices(names, weights)[0]](rng)
            finally:
                self._busy -= 1
            await asyncio.sleep(rng.random() * 0.02)

    async def _answer(self, rng: random.Random) -> None:
        await ask(self._client, rng.choice(self.cases), rng, self.ledger)

    async def _gone(self, rng: random.Random) -> None:
        case = rng.choice(self.cases)
        body = {**case.fields, "max_tokens": 400, "ignore_eos": True}
        await wire.go_away(self.server.port, case.path, body, rng, self.ledger)

    async def _slow(self, rng: random.Random) -> None:
        await wire.drip(self.server.port, rng, self.ledger)

    async def _otherwise(self, rng: random.Random) -> None:
        await wire.speak_otherwise(self.server.port, rng, self.ledger)

    async def _bad_request(self, rng: random.Random) -> None:
        await self._refused(rng.choice(self._bad), "refusal")

    async def _grammar(self, rng: random.Random) -> None:
        await self._refused(rng.choice(self._grammars), "abusive grammar")

    async def _refused(self, bad: Bad, kind: str) -> None:
        begun = time.monotonic()
        async with new_client(self.server, bad.headers) as client:
            reply = await client.request(bad.method, bad.path, content=bad.body)
        code: str | int | None = 200
        if reply.status_code != 200:
            code = self.ledger.refused(kind, begun, reply.status_code, reply.headers, reply.json())
        if code is not None and code not in bad.codes and reply.status_code < 500:
            self.ledger.fault(kind, f"{bad.name}: {reply.status_code}, {reply.text[:300]}, expected {bad.codes}")
        self.ledger.note(kind, f"{bad.name}: {code}", begun)

    async def _page(self, rng: random.Random) -> None:
        await self._get_or_post(rng.choice(PAGES), None)

    async def _flush(self, rng: random.Random) -> None:
        await self._get_or_post("/flush_cache", {})

    async def _text(self, rng: random.Random) -> None:
        """Tokens and back."""
        case = rng.choice([one for one in self.cases if one.path == CHAT and not one.calls_tools])
        told = await self._get_or_post("/tokenize", {"messages": case.fields["messages"]})
        if told is not None and told["tokens"] != list(case.prompt):
            self.ledger.fault("/tokenize", f"{case.name}: {told['tokens']}, expected {list(case.prompt)}")
        one = rng.choice(case.expected)
        told = await self._get_or_post("/detokenize", {"tokens": list(one.tokens)})
        # The answer's text leaves special tokens out.
        plain = None if told is None else SPECIAL.sub("", told["prompt"])
        if plain is not None and not plain.startswith(one.text) and "\ufffd" not in one.text:
            self.ledger.fault("/detokenize", f"{case.name}: {plain!r}, expected {one.text!r}")

    async def _get_or_post(self, path: str, body: object) -> dict | None:
        begun = time.monotonic()
        reply = await (self._client.get(path) if body is None else self._client.post(path, json=body))
        if reply.status_code == 200:
            self.ledger.note(path, "200", begun)
            return None if body is None else json.loads(reply.text)
        code = self.ledger.refused(path, begun, reply.status_code, reply.headers, reply.json())
        if code is not None and reply.status_code < 500:
            self.ledger.fault(path, reply.text[:300])
        self.ledger.note(path, f"{reply.status_code} {code}", begun)
        return None


def new_client(server: Server, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """With the key."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(
        base_url=server.url, headers=HEADERS if headers is None else headers, timeout=TIMEOUT, limits=limits
    )


async def drained(server: Server, cases: Sequence[Case], ledger: Ledger, rng: random.Random) -> dict[str, object]:
    """Tell the server to end while it answers: what runs is answered whole, what is new is refused."""
    client = new_client(server)
    running = [asyncio.create_task(ask(client, case, rng, ledger)) for case in cases]
    while (await asyncio.to_thread(server.metrics))["eyas_requests_running"] < len(cases) / 2:
        assert not all(task.done() for task in running), "the answers are too short to be caught running"
        await asyncio.sleep(0.05)
    caught = sum(not task.done() for task in running)
    before = sum(counts["right"] for counts in ledger.outcomes.values())
    ledger.draining_since = begun = time.monotonic()
    server.process.terminate()
    refused = await _knock(server, ledger)
    seconds = time.monotonic() - begun
    await asyncio.gather(*running)
    await client.aclose()
    right = sum(counts["right"] for counts in ledger.outcomes.values()) - before
    return {"running": caught, "answered_whole": right, "refused_meanwhile": refused, "seconds": round(seconds, 2)}


async def _knock(server: Server, ledger: Ledger) -> int:
    """Ask for more until the server is gone; how often it refused."""
    refused = 0
    kind, body = "while it ends", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    await asyncio.sleep(0.3)
    while server.process.poll() is None:
        begun = time.monotonic()
        try:
            async with new_client(server) as client:
                reply = await client.post(CHAT, json=body)
        except httpx.TransportError:
            ledger.note(kind, "no connection")
            await asyncio.sleep(0.05)
            continue
        if reply.status_code == 200:
            ledger.fault(kind, "a new request was answered")
            continue
        code = ledger.refused(kind, begun, reply.status_code, reply.headers, reply.json())
        if code is not None and code != "server.draining":
            ledger.fault(kind, reply.text)
        ledger.note(kind, f"{reply.status_code} {code}")
        refused += code == "server.draining" or reply.status_code == 503
        await asyncio.sleep(0.05)
    return refused
