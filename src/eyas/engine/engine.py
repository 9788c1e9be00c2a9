"""The engine: requests in, answers out, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eyas.config import TOPK_FLAG, SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.choosing import Chooser
from eyas.engine.costs import step_clock
from eyas.engine.counters import Counters
from eyas.engine.queue import FairQueue
from eyas.engine.request import NO_EXTRAS, Extras, Request
from eyas.engine.scheduler import Scheduler
from eyas.engine.slots import SlotPool
from eyas.errors import EyasError
from eyas.models.target import Target
from eyas.speculate.policy import Controller
from eyas.speculate.propose import ABSORB_ROWS, DraftProposer, NgramProposer, NoProposer, Proposer, scratch_slots
from eyas.speculate.round import Outcome, speculative_round

DEFAULT_SLOTS = 8192
DEFAULT_PREFILL_TOKENS = 512
MOST_PENDING = 2048
"""Rows whose features wait for a draft that does not propose; with more, the request goes on without one."""


class Engine:
    """Continuous batching over one target and one proposer. Every resource has one owner."""

    def __init__(
        self,
        target: Target,
        proposer: Proposer | DraftModel | None = None,
        *,
        eos_ids: Sequence[int] = (),
        num_slots: int = DEFAULT_SLOTS,
        prefill_tokens: int = DEFAULT_PREFILL_TOKENS,
        prefix_cache: bool = True,
        max_running: int = 64,
        controller: Controller | None = None,
    ) -> None:
        """``proposer``: a draft, an n-gram proposer, or None for plain decoding. ``prefill_tokens`` is the budget of
        prompt tokens per step, beside the rows of running answers; ``num_slots`` the tokens that the cache holds, over
        all requests. ``controller``: chooses each round's K up to what a request asks for; None: as it asks."""
        for name, value in ("num_slots", num_slots), ("prefill_tokens", prefill_tokens), ("max_running", max_running):
            if value < 1:
                raise EyasError("flags.range", f"{name} is {value}", f"give {name} 1 or more")
        self.target, self.cache = target, target.new_cache(num_slots)
        if isinstance(proposer, DraftModel):
            proposer = DraftProposer(proposer, proposer.new_cache(num_slots))
        self.proposer: Proposer = proposer or NoProposer()
        self.eos_ids, self.prefill_tokens = frozenset(eos_ids), prefill_tokens
        self.chooser = Chooser(target.max_positions, controller, drafts=bool(self.proposer.taps))
        along = (lambda request, running: self.chooser.reads_along(request, running)) if self.proposer.taps else None
        self.scheduler = Scheduler(num_slots, max_running, prefix_cache, along)
        self.counters = Counters()
        self._now = step_clock(target)

    @property
    def waiting(self) -> FairQueue:
        return self.scheduler.waiting

    @property
    def running(self) -> list[Request]:
        return self.scheduler.running

    @property
    def pool(self) -> SlotPool:
        return self.scheduler.pool

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingSettings | None = None,
        speculation: SpeculativeSettings | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> Request:
        """Queue a prompt of token ids.

        Raises ``request.empty``, ``request.too-long``, ``request.sampling`` (a token outside the vocabulary),
        ``flags.contradiction`` (speculation that the proposer cannot do), ``engine.cache-full``.
        """
        sampling = sampling or SamplingSettings()
        self._check(prompt, sampling)
        if speculation is not None:
            self._check_speculation(speculation)
        stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_ids)
        room = self.target.max_positions - len(prompt)
        limit = min(sampling.max_new_tokens, room)
        request = Request(tuple(prompt), sampling, speculation, limit, stops, extras)
        self._check_room(len(prompt) + limit + scratch_slots(speculation))
        self.waiting.push(request)
        return request

    def abort(self, request: Request) -> None:
        """Give a request up between two steps: its slots come back at once, ``finished`` becomes ``abort``, and no
        later step returns it. A request that has finished stays as it is. The answer so far, and the prefix that other
        prompts may share, are kept.
        """
        if request.finished:
            return
        if request in self.waiting:
            self.waiting.remove(request)
            # It may have run before, and given its slots up.
            self.chooser.forget(request)
        else:
            assert request in self.running, "the request is another engine's"
            self._retire(request)
        request.finished = "abort"
        self.counters.aborted += 1

    def step(self) -> list[Request]:
        """Admit, then one forward: a round for each answer that runs, and the next rows of prompts. Returns the
        requests that finished."""
        self.scheduler.admit()
        chosen, reads = self._plan()
        if not reads:
            return []
        states = [request.state for request in reads if request.state is not None]
        settings = [chosen.get(request) for request in reads]
        start = self._now()
        outcomes = speculative_round(self.target, self.cache, self.proposer, states, settings, list(reads.values()))
        self.chooser.observe(chosen, reads, outcomes, self._now() - start)
        for (request, read), outcome in zip(reads.items(), outcomes, strict=True):
            self._note(request, read, outcome, chosen.get(request))
        done = [request for request in reads if request.finished]
        for request in done:
            self._retire(request)
        return done

    def run(self, on_step: Callable[[], None] | None = None) -> None:
        """Step until nothing waits or runs."""
        while self.waiting or self.running:
            self.step()
            if on_step is not None:
                on_step()

    def flush(self) -> None:
        """Forget all kept prefixes."""
        if self.scheduler.prefixes is not None:
            self.scheduler.prefixes.clear()

    def check_integrity(self) -> None:
        """The books of the cache agree; raises AssertionError if not."""
        self.scheduler.check_integrity()

    # ----------------------------------------------------------------------------------------------------------------

    def _plan(self) -> tuple[dict[Request, SpeculativeSettings | None], dict[Request, int]]:
        """What the next round of each answer proposes; and per request how many rows of its text the step reads, 0 for
        those that have their round."""
        budget, reads = self.prefill_tokens, {}
        for request in self.running:
            # A text that was preempted goes on with a round; only a prompt's last token is drawn from while reading.
            wanted = request.unread + (not request.num_answered)
            if not wanted or budget:
                reads[request] = min(wanted, budget)
                budget -= reads[request]
        decoding = [request for request in reads if request.num_answered and not request.unread]
        chosen = self.chooser.choose(decoding, sum(reads.values()))
        self.scheduler.make_room({request: scratch_slots(how) for request, how in chosen.items()})
        return chosen, {request: read for request, read in reads.items() if request in self.running}

    def _note(self, request: Request, read: int, outcome: Outcome | None, chosen: SpeculativeSettings | None) -> None:
        state = request.state
        assert state is not None
        backlog = state.cached - state.absorbed
        if read and isinstance(self.proposer, DraftProposer) and state.drafted:
            if outcome is not None or backlog > ABSORB_ROWS:
                self.proposer.catch_up([state])
        elif self.proposer.taps and backlog > MOST_PENDING:
            state.stop_drafting()
        if outcome is not None and read:
            request.begin(outcome)
            self.scheduler.keep_prompt(request)
        elif outcome is not None:
            request.note(outcome)
            self.chooser.note(request, chosen, outcome)
        self.counters.note(request, read, outcome)

    def _retire(self, request: Request) -> None:
        self.scheduler.retire(request)
        self.chooser.forget(request)

    def _check(self, prompt: Sequence[int], sampling: SamplingSettings) -> None:
        vocabulary, context = self.target.vocab_size, self.target.max_positions
        if not prompt:
            raise EyasError("request.empty", "the prompt has no tokens", "give a prompt")
        if len(prompt) >= context:
            cause = f"the prompt has {len(prompt)} tokens; the context of {context} leaves no room for an answer"
            raise EyasError("request.too-long", cause, f"shorten the prompt to at most {context - 1} tokens")
        outside = [t for t in (*prompt, *sampling.logit_bias) if not 0 <= t < vocabulary]
        if outside:
            cause = f"token id {outside[0]} is not in the vocabulary of {vocabulary}"
            raise EyasError("request.sampling", cause, "use the tokenizer that belongs to this target")

    def _check_speculation(self, speculation: SpeculativeSettings) -> None:
        if isinstance(self.proposer, NoProposer):
            cause = "speculation was asked for, but the engine has no draft"
            raise EyasError("flags.contradiction", cause, "give the engine a draft, or drop the speculative flags")
        if not isinstance(self.proposer, NgramProposer):
            return
        if speculation.draft_sampling == "probabilistic":
            cause = "n-gram proposals have no probabilities, but draft sampling is probabilistic"
            raise EyasError("flags.contradiction", cause, "use one-hot draft sampling")
        if speculation.is_tree:
            cause = f"n-gram proposals are chains, but {TOPK_FLAG} is {speculation.eagle_topk}"
            raise EyasError("flags.contradiction", cause, f"use {TOPK_FLAG} 1")

    def _check_room(self, needed: int) -> None:
        if needed > len(self.pool.references):
            cause = f"the request needs {needed} cache slots; there are {len(self.pool.references)}"
            fix = f"give the engine at least {needed} slots, or ask for fewer new tokens"
            raise EyasError("engine.cache-full", cause, fix)
