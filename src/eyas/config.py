"""Settings of speculation and sampling: strict, frozen, each default written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from eyas import metrics
from eyas.errors import EyasError

STEPS_FLAG = "--speculative-num-steps"
TOPK_FLAG = "--speculative-eagle-topk"
DRAFT_TOKENS_FLAG = "--speculative-num-draft-tokens"
DRAFT_SAMPLING_FLAG = "--draft-sampling"

# No draft gains from more; larger values are slips of the keyboard that would allocate memory first.
MAX_STEPS = 64
MAX_TOPK = 64
MAX_DRAFT_TOKENS = 1024
# Below this a temperature makes logits overflow; 0 is greedy.
MIN_TEMPERATURE = 1e-3

DEFAULT_STEPS = 3
DEFAULT_TREE_DRAFT_TOKENS = 8

DraftSampling = Literal["one-hot", "probabilistic"]


class Settings(BaseModel):
    """Base: no conversions, no unknown keys, no NaN; a wrong value is an :class:`EyasError` with ``CODE``."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    CODE: ClassVar[str] = "flags.range"

    # Hidden from the type checker, which knows the fields from pydantic and checks calls by them.
    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _as_eyas_error(error, self.CODE, type(self)) from error


def _as_eyas_error(error: ValidationError, code: str, settings: type[Settings]) -> EyasError:
    """The first error of a validation; one that a rule of ours raised passes through as it is."""
    first = error.errors(include_url=False)[0]
    original = first.get("ctx", {}).get("error")
    if isinstance(original, EyasError):
        return original
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(settings.model_fields)
        return EyasError("flags.unknown", f"{name} is no setting", f"use one of: {known}")
    return EyasError(code, f"{name} = {first['input']!r}: {first['msg']}", f"give {name} a value that fits")


def tree_capacity(num_steps: int, eagle_topk: int) -> int:
    """Nodes that drafting scores, the root not counted: topk + (steps − 1)·topk²; for a chain, the steps."""
    assert min(num_steps, eagle_topk) >= 1, (num_steps, eagle_topk)
    return eagle_topk + (num_steps - 1) * eagle_topk**2


class SpeculativeSettings(Settings):
    """What a round proposes. ``num_draft_tokens`` counts the root: ``num_steps`` + 1 for a chain
    (``eagle_topk`` 1).

    Raises ``flags.range`` and, naming both flags, ``flags.contradiction``. Use :meth:`resolve` to fill what
    is not given.
    """

    num_steps: int = DEFAULT_STEPS
    eagle_topk: int = 1
    num_draft_tokens: int = DEFAULT_STEPS + 1
    draft_sampling: DraftSampling = "one-hot"

    @model_validator(mode="after")
    def _consistent(self) -> SpeculativeSettings:
        _check_ranges(self.num_steps, self.eagle_topk, self.num_draft_tokens)
        if self.eagle_topk == 1:
            _check_chain(self.num_steps, self.num_draft_tokens)
        else:
            _check_tree(self.num_steps, self.eagle_topk, self.num_draft_tokens)
        if self.draft_sampling == "probabilistic" and self.eagle_topk > 1:
            cause = (
                f"{DRAFT_SAMPLING_FLAG} probabilistic draws one token a step, and {TOPK_FLAG}"
                f" {self.eagle_topk} takes several"
            )
            raise EyasError("flags.contradiction", cause, f"use {TOPK_FLAG} 1 or {DRAFT_SAMPLING_FLAG} one-hot")
        return self

    @classmethod
    def resolve(
        cls,
        num_steps: int | None = None,
        eagle_topk: int | None = None,
        num_draft_tokens: int | None = None,
        draft_sampling: DraftSampling = "one-hot",
    ) -> SpeculativeSettings:
        """Fill what is None from what is given; change nothing that is given."""
        topk = 1 if eagle_topk is None else eagle_topk
        _check_ranges(num_steps, topk, num_draft_tokens)
        if topk == 1:
            steps = num_steps or (DEFAULT_STEPS if num_draft_tokens is None else num_draft_tokens - 1)
            tokens = num_draft_tokens or steps + 1
        else:
            steps = num_steps or DEFAULT_STEPS
            tokens = num_draft_tokens or min(DEFAULT_TREE_DRAFT_TOKENS, tree_capacity(steps, topk) + 1)
        return cls(num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens, draft_sampling=draft_sampling)

    @property
    def ceiling(self) -> int:
        """The greatest accept length that these settings allow."""
        return metrics.ceiling(self.num_steps, self.num_draft_tokens, self.eagle_topk)

    @property
    def is_tree(self) -> bool:
        """True if a round proposes a tree."""
        return self.eagle_topk > 1


def _check_ranges(num_steps: int | None, eagle_topk: int, num_draft_tokens: int | None) -> None:
    if num_steps is not None and num_steps < 1:
        cause = (
            f"{STEPS_FLAG} {num_steps}: K is the number of drafts in a chain, and without one there is no speculation"
        )
        raise EyasError("flags.range", cause, f"use {STEPS_FLAG} 1 or more, or leave the draft out to decode plainly")
    if eagle_topk < 1:
        cause = f"{TOPK_FLAG} {eagle_topk}: the number of candidates kept in a step is 1 for a chain, more for a tree"
        raise EyasError("flags.range", cause, f"use {TOPK_FLAG} 1")
    if num_draft_tokens is not None and num_draft_tokens < 2:
        cause = (
            f"{DRAFT_TOKENS_FLAG} {num_draft_tokens}: it counts the root, the last committed token, so one"
            " draft makes 2"
        )
        raise EyasError(
            "flags.range",
            cause,
            f"use {DRAFT_TOKENS_FLAG} 2 or more, or leave the draft out to decode plainly",
        )
    for flag, value, most in (
        (STEPS_FLAG, num_steps, MAX_STEPS),
        (TOPK_FLAG, eagle_topk, MAX_TOPK),
        (DRAFT_TOKENS_FLAG, num_draft_tokens, MAX_STEPS + 1 if eagle_topk == 1 else MAX_DRAFT_TOKENS),
    ):
        if value is not None and value > most:
            raise EyasError("flags.range", f"{flag} {value} is more than {most}", f"use {flag} {most} or less")


def _check_chain(num_steps: int, num_draft_tokens: int) -> None:
    if num_draft_tokens == num_steps + 1:
        return
    cause = (
        f"{DRAFT_TOKENS_FLAG} {num_draft_tokens} with {STEPS_FLAG} {num_steps} and {TOPK_FLAG} 1 can"
        f" only be {num_steps + 1}:"
        " a chain has one draft a step, and the root"
    )
    fix = f"use {STEPS_FLAG} {num_draft_tokens - 1} or {DRAFT_TOKENS_FLAG} {num_steps + 1}"
    raise EyasError("flags.contradiction", cause, fix)


def _check_tree(num_steps: int, eagle_topk: int, num_draft_tokens: int) -> None:
    capacity = tree_capacity(num_steps, eagle_topk)
    if num_draft_tokens - 1 <= capacity:
        return
    cause = (
        f"{DRAFT_TOKENS_FLAG} {num_draft_tokens} asks for {num_draft_tokens - 1} nodes and the root, and"
        f" {STEPS_FLAG} {num_steps} with"
        f" {TOPK_FLAG} {eagle_topk} drafts only {capacity}"
    )
    steps = 1 + -(-(num_draft_tokens - 1 - eagle_topk) // eagle_topk**2)
    fixes = [f"{DRAFT_TOKENS_FLAG} {capacity + 1}"]
    if steps <= MAX_STEPS:
        fixes.insert(0, f"{STEPS_FLAG} {steps}")
    raise EyasError("flags.contradiction", cause, f"use {' or '.join(fixes)}")


class SamplingSettings(Settings):
    """How the target's token is chosen. Raises ``request.sampling`` for a value outside its range.

    ``temperature`` 0 is greedy, else 0.001 … 100. ``top_k`` 0 is off. ``top_p``, ``min_p``: shares of
    probability; 1 and 0 are off. ``seed`` keys the noise together with the position. Penalties:
    ``repetition_penalty`` divides (1 is off), the other two subtract (0 is off). ``logit_bias``: token id →
    added logit. ``max_new_tokens`` counts the answer; ``stop_token_ids`` come on top of the model's own end
    tokens, which ``ignore_eos`` switches off.
    """

    CODE: ClassVar[str] = "request.sampling"

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 256
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    ignore_eos: bool = False

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            cause = f"temperature = {value!r}: so small a temperature overflows; 0 is greedy"
            raise EyasError(cls.CODE, cause, f"use temperature 0, or {MIN_TEMPERATURE} or more")
        return value

    @property
    def greedy(self) -> bool:
        """True if the most likely token is taken."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """True if the logits depend on the tokens before, beyond the model itself."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
