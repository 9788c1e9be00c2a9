"""A whole run: look at the servers, warm them up, then level by level, block by block, each server in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from eyas.bench.client import Client, Clock, Outcome, Question, Target
from eyas.bench.load import Block, run_block, watch_lag
from eyas.bench.measure import Accept, Figures, Spread, accept_of, figures, spread
from eyas.bench.paired import Paired, compare, cut_into_blocks
from eyas.bench.settings import BenchSettings, Load
from eyas.corpus.prompts import Prompt
from eyas.dialects.counters import Counts, Gauges, counts_between
from eyas.errors import EyasError
from eyas.servers.http import Http, check_key, root_of
from eyas.servers.look import counters_now, gauge, look, only_model

SETTLE_TRIES = 20
SETTLE_SECONDS = 0.1
LOOK_SECONDS = 60.0
WARM_NUMBER = 1_000_000
"""Questions before the levels are numbered from here, so that their seeds are their own."""


@dataclass(frozen=True)
class Address:
    """``flag``: where it was given · ``plain``: every request asks for no speculation, which only Eyas's server knows ·
    ``model`` None: the one that is served.
    """

    name: str
    url: str
    flag: str = "URL"
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    plain: bool = False


@dataclass
class Level:
    """One load: for each server, in their order, its blocks and their figures; ``paired`` of two."""

    load: Load
    blocks: list[list[Block]]
    figures: list[Figures]
    paired: Paired | None


@dataclass
class Result:
    """``lag``: seconds that the client itself was late · ``unsent``: levels that a dead server kept from being run."""

    targets: list[Target]
    settings: BenchSettings
    levels: list[Level]
    lag: Spread
    unsent: list[Load]


@dataclass(frozen=True)
class Step:
    """For progress: ``done`` of ``total`` requests of a level, over all servers."""

    load: Load
    done: int
    total: int
    outcome: Outcome


OnStep = Callable[[Step], None]


def bench(
    addresses: Sequence[Address], prompts: Sequence[Prompt], settings: BenchSettings, on_step: OnStep, clock: Clock
) -> Result:
    """Raises ``flags.range``, ``flags.contradiction``, ``server.unreachable``, ``server.refused``, ``server.metrics``.
    Whatever a server does once it has answered one request is in the result.
    """
    if not prompts:
        raise EyasError("flags.range", "there is no prompt", "give a file or a set with prompts")
    count = settings.requests or len(prompts)
    if settings.concurrency and max(settings.concurrency) > count:
        cause = f"--concurrency {max(settings.concurrency)} can never be open with {count} requests"
        raise EyasError("flags.contradiction", cause, f"use --requests {4 * max(settings.concurrency)}")
    return asyncio.run(_bench(addresses, prompts, settings, on_step, clock))


async def _bench(
    addresses: Sequence[Address], prompts: Sequence[Prompt], settings: BenchSettings, on_step: OnStep, clock: Clock
) -> Result:
    targets = [await _target(address) for address in addresses]
    levels: list[Level] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(target, settings, clock)) for target in targets]
        for client in clients:
            await _warm_up(client, prompts, settings)
        with watch_lag(clock) as lags:
            for load in settings.loads:
                levels.append(await _level(clients, questions_of(prompts, settings.requests), load, on_step, clock))
                if any(block.lost for blocks in levels[-1].blocks for block in blocks):
                    break
    unsent = list(settings.loads[len(levels) :])
    return Result(targets, settings, levels, spread(lags), unsent)


async def _target(address: Address) -> Target:
    check_key(address.key)
    root = root_of(address.url, address.flag)
    try:
        async with asyncio.timeout(LOOK_SECONDS), Http(root, address.key) as http:
            server = await look(http)
            model = address.model or await only_model(http)
    except TimeoutError as error:
        cause = f"{root} said nothing of itself in {LOOK_SECONDS:g} s"
        raise EyasError("server.unreachable", cause, f"check {address.flag}, and that the server runs") from error
    extra: dict[str, Any] = {"speculation": False} if address.plain else {}
    if address.plain and server.kind != "eyas":
        cause = f"--baseline request asks for plain decoding in each request, which {root} does not know"
        raise EyasError("flags.contradiction", cause, "start it without a draft too, and give that one with --against")
    return Target(address.name, root, model, server, address.key, extra)


def questions_of(prompts: Sequence[Prompt], count: int | None) -> list[Question]:
    """``count`` of them, from the beginning and over again; None: each once."""
    return [
        Question(number, prompt.id, opening(prompt), prompt.tools)
        for number, prompt in enumerate(islice(cycle(prompts), count or len(prompts)))
    ]


def opening(prompt: Prompt) -> tuple[dict[str, Any], ...]:
    """The conversation up to the first place where the target's answer belongs."""
    roles = [message["role"] for message in prompt.messages]
    asks = [i for i, role in enumerate(roles) if role != "assistant" and role != "system"]
    open_ends = [i for i in asks if i + 1 == len(roles) or roles[i + 1] == "user"]
    return prompt.messages[: (open_ends[0] if open_ends else asks[-1]) + 1]


async def _warm_up(client: Client, prompts: Sequence[Prompt], settings: BenchSettings) -> None:
    """From the last prompt on, so that the first ones find no prefix of theirs in a cache if there are enough."""
    for q in questions_of(list(reversed(prompts)), settings.warmup)[: settings.warmup]:
        question = Question(WARM_NUMBER + q.number, q.prompt, q.messages, q.tools)
        outcome = await client.ask(question, client.clock.now())
        if outcome.fault is not None:
            code = "server.refused" if outcome.fault.startswith("http-4") else "server.unreachable"
            cause = f"{client.target.root} does not answer a first request: {outcome.fault} {outcome.said}".strip()
            fix = "check the address, the model and the key, or measure what it does with --warmup 0"
            raise EyasError(code, cause, fix)


async def _level(
    clients: Sequence[Client], questions: Sequence[Question], load: Load, on_step: OnStep, clock: Clock
) -> Level:
    settings = clients[0].settings
    blocks: list[list[Block]] = [[] for _ in clients]
    counted: list[list[Counts]] = [[] for _ in clients]
    done = 0

    def saw(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        on_step(Step(load, done, len(questions) * len(clients), outcome))

    for number, part in enumerate(cut_into_blocks(questions, load, len(clients))):
        order = range(len(clients)) if number % 2 == 0 else reversed(range(len(clients)))
        for i in order:
            left = None
            if settings.max_seconds is not None:
                left = settings.max_seconds - sum(block.seconds for block in blocks[i])
            before = await _counters(clients[i].target)
            block = await run_block(clients[i].ask, part, load, clock, settings.seed + number, left, saw)
            blocks[i].append(block)
            if before is not None and _tells_less(clients[i].target, block):
                moved = await _moved(clients[i].target, before)
                counted[i] += [] if moved is None else [moved]
        if any(bs[-1].stopped for bs in blocks):
            break
    all_figures = [
        figures(bs, await _accepted(client.target, counts))
        for bs, client, counts in zip(blocks, clients, counted, strict=True)
    ]
    paired = compare(blocks[0], blocks[1], settings.temperature == 0, settings.seed) if len(clients) == 2 else None
    return Level(load, blocks, all_figures, paired)


def _tells_less(target: Target, block: Block) -> bool:
    """Whether the answers say less of speculation than the counters: nothing, or sums that a stop distorts."""
    return target.server.kind == "llama.cpp" or all(outcome.counts is None for outcome in block.outcomes)


async def _accepted(target: Target, counts: Sequence[Counts]) -> Accept | None:
    if counts:
        return accept_of(counts, "counters")
    if target.server.kind != "sglang" or target.server.speculates is False:
        return None
    try:
        async with asyncio.timeout(LOOK_SECONDS), Http(target.root, target.key) as http:
            mean = await gauge(http)
    except (EyasError, TimeoutError):
        # The answers are measured; that their server has gone since is shown by them.
        return None
    return None if mean is None else Accept(mean, None, None, None, None, "the server's mean")


async def _counters(target: Target) -> Gauges | None:
    """None where the server counts nothing, or has gone."""
    if not target.server.counted:
        return None
    try:
        async with asyncio.timeout(LOOK_SECONDS), Http(target.root, target.key) as http:
            return await counters_now(http)
    except (EyasError, TimeoutError):
        return None


async def _moved(target: Target, before: Gauges) -> Counts | None:
    """What the counters moved by, once two looks agree: they are written after the answers. None: not to be known."""
    last: Counts | None = None
    for _ in range(SETTLE_TRIES):
        await asyncio.sleep(SETTLE_SECONDS)
        after = await _counters(target)
        try:
            now = counts_between(before, after) if after else None
        except EyasError:
            # A server that began anew counts from 0.
            return None
        if now is None or now == last:
            return now
        last = now
    return last
