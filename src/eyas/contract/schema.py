"""The contract, schema version 1: what a draft was trained for, as ``contract.json`` beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

from eyas.contract.taps import validate_taps
from eyas.errors import EyasError

SCHEMA_VERSION = 2
# A contract is a few kilobytes; a larger file is something else, and must not be read into memory.
MAX_BYTES = 1 << 20

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Frozen, no conversions, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class TargetSizes(Strict):
    """What a draft's layout depends on: the target's architecture (Hugging Face class name) and its sizes."""

    architecture: Name
    num_layers: Count
    hidden_size: Count
    vocab_size: Count


class TargetShape(TargetSizes):
    """What can be read off a target's config."""

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count


class TargetIdentity(TargetShape):
    """The target: its shape and the fingerprint of its stored weights (``weights_sha256``)."""

    weights_sha256: Sha256


class Rendering(Strict):
    """How chats became text. ``thinking``: the template's switch ("none": it has no such mode).

    ``system_prompt``: "none" is sent (the template may add its own), a "fixed" text, or "per-conversation"
    from the data.
    """

    thinking: Literal["none", "off", "on", "mixed"]
    system_prompt: Literal["none", "fixed", "per-conversation"]
    system_prompt_text: str | None

    @model_validator(mode="after")
    def _text_belongs_to_fixed(self) -> Rendering:
        if (self.system_prompt == "fixed") != (self.system_prompt_text is not None):
            raise ValueError("system_prompt_text is given exactly when system_prompt is 'fixed'")
        return self


class NormOptions(Strict):
    """Which norms the draft has, and what is carried to the next step.

    ``fc_norm``: one norm per tap before fc · ``norm_before_fc``: one over the whole feature ·
    ``norm_output``: the state after the final norm is carried · ``norm_before_residual``: the residual is
    taken after ``hidden_norm``.
    """

    fc_norm: bool
    norm_before_fc: bool
    norm_output: bool
    norm_before_residual: bool


class RopeOptions(Strict):
    """The draft's rotary embedding. ``scaling``: the config's dictionary as it stands, None for none."""

    theta: Annotated[float, Field(gt=0)]
    scaling: dict[str, JsonValue] | None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)]


class FeatureFormat(Strict):
    """How the target computed the features: activation dtype, and its weights' quantisation or None."""

    dtype: Literal["float32", "bfloat16", "float16"]
    quantisation: Name | None


class DataSource(Strict):
    """A set of prompts and its licence; "self-sampled" under the target's licence if the target made them."""

    name: Name
    licence: Name


class DataFacts(Strict):
    """What was trained on: conversations, answer tokens (those that the loss saw), and their sources."""

    conversations: Count
    answer_tokens: Count
    sources: tuple[DataSource, ...]


class ExpectedAcceptLength(Strict):
    """The accept length to expect of a chain on one prompt set, with its 95 % interval and its ceiling.

    ``survival``: the share of rounds that accept at least i drafts, for i = 1 … num_steps.
    """

    prompt_set: Name
    num_steps: Count
    temperature: Annotated[float, Field(ge=0)]
    draft_sampling: Literal["one-hot", "probabilistic"]
    accept_length: float
    low: float
    high: float
    ceiling: Annotated[int, Field(ge=2)]
    survival: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _ordered(self) -> ExpectedAcceptLength:
        if not 1 <= self.low <= self.accept_length <= self.high <= self.ceiling:
            raise ValueError("1 ≤ low ≤ accept_length ≤ high ≤ ceiling does not hold")
        if self.ceiling != self.num_steps + 1:
            raise ValueError(
                f"a chain of {self.num_steps} steps has the ceiling {self.num_steps + 1}, not {self.ceiling}"
            )
        if len(self.survival) != self.num_steps:
            raise ValueError(f"survival has {len(self.survival)} shares for {self.num_steps} steps")
        if abs(1 + sum(self.survival) - self.accept_length) > 1e-6:
            raise ValueError(f"accept_length is 1 + the sum of survival, not {self.accept_length}")
        return self


class Contract(Strict):
    """``contract.json``: what the draft was trained for.

    ``basis``: who says so, the "training" itself or a "measurement" of finished weights, which knows nothing of the
    data · ``taps``: in the feature's order · ``vocab_map_sha256``: None for the full vocabulary ·
    ``longest_trained_position``: the greatest RoPE position of a trained row · ``loss_mask_rule``: its name.
    """

    schema_version: Literal[2]
    basis: Literal["training", "measurement"]
    target: TargetIdentity
    tokenizer_sha256: Sha256
    chat_template_sha256: Sha256 | None
    rendering: Rendering
    taps: tuple[int, ...]
    norms: NormOptions
    rope: RopeOptions
    vocab_map_sha256: Sha256 | None
    longest_trained_position: Annotated[int, Field(ge=0)] | None
    features: FeatureFormat
    loss_mask_rule: Name | None
    data: DataFacts | None
    expected: tuple[ExpectedAcceptLength, ...]

    @model_validator(mode="after")
    def _training_knows_its_data(self) -> Contract:
        for name in ("longest_trained_position", "loss_mask_rule", "data"):
            if (getattr(self, name) is None) != (self.basis == "measurement"):
                raise ValueError(f"{name} is null exactly when the basis is 'measurement'")
        return self

    @model_validator(mode="after")
    def _taps_in_target(self) -> Contract:
        validate_taps(self.taps, self.target.num_layers)
        return self

    def to_json(self) -> str:
        """The file's text: sorted keys, two spaces, one newline at the end. The same contract gives the same
        bytes in UTF-8.
        """
        document = self.model_dump(mode="json")
        return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Contract:
        """Read what :meth:`to_json` wrote; for anything else ``contract.schema``, naming the field."""
        _check_version(_parse(text))
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise EyasError("contract.schema", describe(error), _FIX) from error

    @classmethod
    def read(cls, path: Path) -> Contract:
        """Read a file. Raises ``artifact.missing``, ``contract.schema``."""
        try:
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise EyasError("contract.schema", f"{path} has {size} bytes, a contract at most {MAX_BYTES}", _FIX)
            text = path.read_bytes()
        except FileNotFoundError as error:
            fix = "name the folder of a draft that has a contract"
            raise EyasError("artifact.missing", f"there is no contract at {path}", fix) from error
        return cls.from_json(text)


_FIX = "take contract.json from the draft's source again"


def describe(error: ValidationError) -> str:
    """One line per wrong field: its path and what is wrong with it."""
    lines = []
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"]) or "the whole"
        rule = item.get("ctx", {}).get("error")
        said = rule.cause if isinstance(rule, EyasError) else item["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {said}")
    return "; ".join(lines)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"{', '.join(doubled)}: given twice")
    return dict(pairs)


def _parse(text: str | bytes) -> dict[str, Any]:
    """Parsed once on its own, because pydantic would take the last of two equal keys in silence."""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        document = json.loads(plain, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise EyasError("contract.schema", f"not a whole JSON document: {error}", _FIX) from error
    if not isinstance(document, dict):
        raise EyasError("contract.schema", f"a JSON object is expected, not {type(document).__name__}", _FIX)
    return document


def _check_version(document: dict[str, Any]) -> None:
    version = document.get("schema_version")
    if version is None:
        raise EyasError("contract.schema", "schema_version: missing", _FIX)
    if version is True or version != SCHEMA_VERSION:
        cause = f"schema_version: {version!r}, and this Eyas reads version {SCHEMA_VERSION}"
        raise EyasError("contract.schema", cause, "use the Eyas that wrote it, or upgrade with `pip install -U eyas`")
