"""What asked speculative flags become in SGLang and vLLM, by version: asked → effective, with the rule that
did it.

Pure: nothing is started. An engine that would fail gives a refusal here, with the failure it would show.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas import metrics
from eyas.config import DRAFT_TOKENS_FLAG, STEPS_FLAG, TOPK_FLAG, SpeculativeSettings, tree_capacity
from eyas.dialects.engines import Engine
from eyas.errors import EyasError


@dataclass(frozen=True)
class Flags:
    """The three flags as given; None: not given. ``num_draft_tokens`` counts the root."""

    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None


@dataclass(frozen=True)
class Change:
    """A flag that does not run as asked (``asked`` None: it was filled in), and the rule that changes it."""

    flag: str
    asked: int | None
    effective: int
    rule: str


@dataclass(frozen=True)
class Resolution:
    """What an engine really runs. ``overridden``: given flags that were changed; ``filled``: those that were
    not given.
    """

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    changes: tuple[Change, ...]

    @property
    def ceiling(self) -> int:
        """The greatest accept length that can be seen."""
        return metrics.ceiling(self.num_steps, self.num_draft_tokens, self.eagle_topk)

    @property
    def overridden(self) -> tuple[Change, ...]:
        """Changes of flags that the user gave."""
        return tuple(change for change in self.changes if change.asked is not None)

    @property
    def filled(self) -> tuple[Change, ...]:
        """Flags that the user left out."""
        return tuple(change for change in self.changes if change.asked is None)


@dataclass(frozen=True)
class AutoParameters:
    """SGLang's (steps, topk, draft tokens) when none is given, for ``families`` (None: all others), by
    version.
    """

    since: str | None
    before: str | None
    families: frozenset[str] | None
    values: tuple[int, int, int]


_LLAMA = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"})
_DEEPSEEK = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"})
AUTO_PARAMETERS: tuple[AutoParameters, ...] = (
    AutoParameters(None, None, _LLAMA, (5, 4, 8)),
    AutoParameters("0.4.8", None, _DEEPSEEK, (3, 1, 4)),
    AutoParameters("0.5.2", None, frozenset({"GptOssForCausalLM"}), (3, 1, 4)),
    AutoParameters(None, "0.5.8", None, (5, 4, 8)),
    AutoParameters("0.5.8", None, None, (3, 1, 4)),
)


@dataclass(frozen=True)
class TreePaging:
    """Attention backends that run trees on pages of more than one token, by version (None: any)."""

    since: str | None
    before: str | None
    backends: frozenset[str] | None


TREE_PAGING: tuple[TreePaging, ...] = (
    TreePaging("0.4.10.post2", "0.5.2", None),
    TreePaging("0.5.2", "0.5.6", frozenset({"flashinfer"})),
    TreePaging("0.5.6", "0.5.13", frozenset({"flashinfer", "fa3"})),
    TreePaging("0.5.13", None, frozenset({"flashinfer", "fa3", "triton"})),
)


def sglang_resolve(
    asked: Flags, engine: Engine, architecture: str, page_size: int = 1, attention_backend: str | None = None
) -> Resolution:
    """What SGLang runs for EAGLE-3 with these flags. ``architecture``: the target's class; ``page_size``:
    tokens.

    Raises ``flags.contradiction`` or ``flags.range`` where the engine itself would fail, with what it shows.
    ``attention_backend`` None: not known, and pages are then not judged.
    """
    assert engine.name == "sglang", engine
    _check_positive(asked)
    if asked.num_steps is None:
        return _sglang_auto(asked, engine, architecture)
    if asked.eagle_topk is None:
        cause = f"{STEPS_FLAG} {asked.num_steps} without {TOPK_FLAG}: {engine} fails with a TypeError"
        raise EyasError("flags.contradiction", cause, f"add {TOPK_FLAG} 1")
    changes: list[Change] = []
    topk = _sglang_paged_topk(asked.eagle_topk, engine, page_size, attention_backend, changes)
    if topk == 1:
        tokens = asked.num_steps + 1
        if asked.num_draft_tokens != tokens:
            rule = "with topk 1, draft tokens are set to steps + 1"
            changes.append(Change(DRAFT_TOKENS_FLAG, asked.num_draft_tokens, tokens, rule))
        return Resolution(asked.num_steps, 1, tokens, tuple(changes))
    if asked.num_draft_tokens is None:
        cause = f"{TOPK_FLAG} {topk} without {DRAFT_TOKENS_FLAG}: {engine} fails when it sizes its buffers"
        raise EyasError(
            "flags.contradiction",
            cause,
            f"add {DRAFT_TOKENS_FLAG} {tree_capacity(asked.num_steps, topk) + 1} or less",
        )
    # The engine does not check the tree's capacity: it fails on the first request instead. Ours is the same
    # rule.
    SpeculativeSettings.resolve(asked.num_steps, topk, asked.num_draft_tokens)
    return Resolution(asked.num_steps, topk, asked.num_draft_tokens, tuple(changes))


def _check_positive(asked: Flags) -> None:
    for flag, value in (
        (STEPS_FLAG, asked.num_steps),
        (TOPK_FLAG, asked.eagle_topk),
        (DRAFT_TOKENS_FLAG, asked.num_draft_tokens),
    ):
        if value is not None and value < 1:
            raise EyasError("flags.range", f"{flag} {value} is less than 1", f"use {flag} 1 or more, or leave it out")


def _sglang_auto(asked: Flags, engine: Engine, architecture: str) -> Resolution:
    if asked != Flags():
        cause = (
            f"{TOPK_FLAG} or {DRAFT_TOKENS_FLAG} without {STEPS_FLAG}: {engine} stops with an assertion that"
            " has no message"
        )
        raise EyasError("flags.contradiction", cause, f"add {STEPS_FLAG}, or leave all three out")
    row = next(
        r
        for r in AUTO_PARAMETERS
        if engine.within(r.since, r.before) and (r.families is None or architecture in r.families)
    )
    named = zip((STEPS_FLAG, TOPK_FLAG, DRAFT_TOKENS_FLAG), row.values, strict=True)
    rule = f"with none of the three given, {engine} chooses them by the target's architecture"
    return Resolution(*row.values, tuple(Change(flag, None, value, rule) for flag, value in named))


def _sglang_paged_topk(
    topk: int, engine: Engine, page_size: int, attention_backend: str | None, changes: list[Change]
) -> int:
    """The topk that is left when pages hold more than one token; adds to ``changes`` where it is set to 1."""
    if topk == 1 or page_size == 1:
        return topk
    row = next((r for r in TREE_PAGING if engine.within(r.since, r.before)), None)
    if row is None:
        changes.append(Change(TOPK_FLAG, topk, 1, "with pages of more than one token, topk is set to 1"))
        return 1
    if row.backends is not None and attention_backend is not None and attention_backend not in row.backends:
        cause = (
            f"{TOPK_FLAG} {topk} with --page-size {page_size} and --attention-backend {attention_backend}:"
            f" {engine} refuses it"
        )
        fix = f"use {TOPK_FLAG} 1, --page-size 1, or --attention-backend {' or '.join(sorted(row.backends))}"
        raise EyasError("flags.contradiction", cause, fix)
    return topk


def vllm_resolve(num_speculative_tokens: int) -> Resolution:
    """What vLLM runs: a chain of ``num_speculative_tokens`` = K drafts, the root not counted. Raises
    ``flags.range`` below 1.
    """
    if num_speculative_tokens < 1:
        cause = f"num_speculative_tokens {num_speculative_tokens} is less than 1: it is K, the drafts of a chain"
        raise EyasError("flags.range", cause, "use 1 or more, or leave --speculative-config out to decode plainly")
    return Resolution(num_speculative_tokens, 1, num_speculative_tokens + 1, ())


def vllm_from_settings(settings: SpeculativeSettings) -> int:
    """vLLM's ``num_speculative_tokens`` for these settings: K, so one less than ``num_draft_tokens``.

    Raises ``draft.dialect`` for a tree, which vLLM does not run.
    """
    if settings.is_tree:
        cause = f"{TOPK_FLAG} {settings.eagle_topk} is a tree, and vLLM runs chains only"
        raise EyasError("draft.dialect", cause, f"use {TOPK_FLAG} 1, or serve with SGLang")
    return settings.num_steps
