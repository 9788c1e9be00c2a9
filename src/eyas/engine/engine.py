"""The engine: requests in, answers out, one batch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from eyas.config import TOPK_FLAG, SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.engine.request import Request
from eyas.engine.slots import PrefixCache, SlotPool, allocate
from eyas.errors import EyasError
from eyas.models.target import Target
from eyas.speculate.propose import DraftProposer, NgramProposer, NoProposer, Proposer, fitting, scratch_slots
from eyas.speculate.round import prefill, speculative_round
from eyas.speculate.state import DecodeState

DEFAULT_SLOTS = 8192
DEFAULT_PREFILL_TOKENS = 512


class Engine:
    """Continuous batching over one target and one proposer. Every resource has this one owner."""

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
    ) -> None:
        """``proposer``: a draft, an n-gram proposer, or None for plain decoding. ``prefill_tokens`` is the budget of
        prompt tokens per step; ``num_slots`` the tokens that the cache holds, over all requests."""
        for name, value in ("num_slots", num_slots), ("prefill_tokens", prefill_tokens), ("max_running", max_running):
            if value < 1:
                raise EyasError("flags.range", f"{name} is {value}", f"give {name} 1 or more")
        self.target, self.cache = target, target.new_cache(num_slots)
        if isinstance(proposer, DraftModel):
            proposer = DraftProposer(proposer, proposer.new_cache(num_slots))
        self.proposer: Proposer = proposer or NoProposer()
        self.eos_ids, self.prefill_tokens, self.max_running = frozenset(eos_ids), prefill_tokens, max_running
        self.pool = SlotPool(num_slots)
        self.prefixes = PrefixCache(self.pool) if prefix_cache else None
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingSettings | None = None,
        speculation: SpeculativeSettings | None = None,
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
        request = Request(tuple(prompt), sampling, speculation, min(sampling.max_new_tokens, room), stops)
        self._check_room(_slots_needed(request))
        self.waiting.append(request)
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
        else:
            assert request in self.running, "the request is another engine's"
            self.running.remove(request)
            self._retire(request)
        request.finished = "abort"

    def step(self) -> list[Request]:
        """Admit, prefill, or run one round; returns the requests that finished."""
        self._admit()
        fresh = [request for request in self.running if not request.answer]
        if fresh:
            self._prefill(fresh)
        elif self.running:
            self._round()
        done = [request for request in self.running if request.finished]
        self.running = [request for request in self.running if not request.finished]
        for request in done:
            self._retire(request)
        return done

    def run(self, on_step: Callable[[], None] | None = None) -> None:
        """Step until nothing waits or runs."""
        while self.waiting or self.running:
            self.step()
            if on_step is not None:
                on_step()

    # ----------------------------------------------------------------------------------------------------------------

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

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if self._shares_prompts and any(r.prompt == request.prompt and not r.answer for r in self.running):
                return  # the same prompt is being read: its rows can be shared in a step or two
            shared = self.prefixes.match(request.prompt) if self.prefixes else []
            slots = allocate(self.pool, self.prefixes, _slots_needed(request) - len(shared))
            if slots is None:
                assert self.running, "a request alone fits: submit() checks it"
                self.pool.release(shared)
                return
            state = DecodeState(list(request.prompt), len(request.prompt), request.sampling, slots)
            state.share(shared)
            request.state, request.shared = state, shared
            self.running.append(self.waiting.popleft())

    def _prefill(self, fresh: list[Request]) -> None:
        budget, chosen, counts = self.prefill_tokens, [], []
        for request in fresh:
            assert request.state is not None
            count = min(len(request.prompt) - request.state.cached, budget)
            if count:
                chosen.append(request)
                counts.append(count)
                budget -= count
        states = [request.state for request in chosen if request.state is not None]
        tokens = prefill(self.target, self.cache, self.proposer.taps, states, counts)
        for request, token in zip(chosen, tokens, strict=True):
            request.begin(token)
            if request.answer and self._shares_prompts:
                self._keep_prompt(request)

    @property
    def _shares_prompts(self) -> bool:
        """Whether running requests lend their prompt's rows; what a draft has not absorbed counts as absent."""
        return self.prefixes is not None and not self.proposer.taps

    def _keep_prompt(self, request: Request) -> None:
        """Several answers to one prompt read it once."""
        assert request.state is not None
        assert self.prefixes is not None
        rows = request.state.table[: len(request.prompt)].tolist()
        self.pool.share(rows)
        self.prefixes.keep((*request.prompt, request.answer[0]), rows)

    def _round(self) -> None:
        states = [request.state for request in self.running if request.state is not None]
        limit = self.target.max_positions
        settings = [fitting(request.speculation, s, limit) for request, s in zip(self.running, states, strict=True)]
        outcomes = speculative_round(self.target, self.cache, self.proposer, states, settings)
        for request, outcome in zip(self.running, outcomes, strict=True):
            request.note(outcome)

    def _retire(self, request: Request) -> None:
        """Give the slots back, or keep the rows that another prompt may share."""
        state = request.state
        assert state is not None
        # The caller may hold the request for long; its features are of no more use.
        state.pending = []
        self.pool.release(state.spare)
        table = state.table.tolist()
        # Rows that the draft has not absorbed count as absent, or its proposals would depend on the cache.
        rows = state.absorbed if self.proposer.taps else state.cached
        self.pool.release(table[rows:])
        if self.prefixes is None:
            self.pool.release(table[:rows])
        else:
            self.prefixes.keep(state.tokens[: rows + 1], table[:rows])


def _slots_needed(request: Request) -> int:
    return len(request.prompt) + request.max_tokens + scratch_slots(request.speculation)
