"""What a launch's flags become: one row for each flag that does not run as asked, or that an operator should know of.

The rules stand in ``launch_sglang`` and ``launch_vllm``, as tables with version ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal

from eyas.dialects.checkpoint import DRAFT_ARCHITECTURES
from eyas.dialects.engines import Engine
from eyas.dialects.flags import Resolution
from eyas.dialects.launch import LaunchFlags
from eyas.errors import EyasError

Value = str | int | float | bool | None
Weight = Literal["fault", "warning", "note"]
Method = Literal["eagle3", "eagle", "other"]


@dataclass(frozen=True)
class Row:
    """One flag, asked → effective (None: not given, or nothing runs), and the rule that does it.

    ``weight`` ``fault``: the engine fails, or serves something else than asked · ``kind``: "flags." and a word, by
    which the fault catalogue explains it.
    """

    flag: str
    asked: Value
    effective: Value
    rule: str
    weight: Weight
    kind: str
    fix: str = ""


@dataclass(frozen=True)
class DraftFacts:
    """What the rules ask of a draft's config. ``vocab_size``, ``draft_vocab_size``: tokens; None: not said ·
    ``own_quantization``: it is stored quantised · ``max_positions``: the longest position that it declares.
    """

    method: Method = "eagle3"
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    own_quantization: bool = False
    model_type: str = "llama"
    max_positions: int | None = None
    dtype: str | None = None
    has_depth: bool = False
    """It names a depth of its own (n_predict), as an MTP module does."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> DraftFacts:
        """From a draft's config.json, whatever stands in it."""
        named = document.get("architectures")
        architectures = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        dtype = document.get("dtype", document.get("torch_dtype"))
        return cls(
            method=_method(architectures),
            vocab_size=_size(document.get("vocab_size")),
            draft_vocab_size=_size(document.get("draft_vocab_size")),
            own_quantization=document.get("quantization_config") is not None,
            model_type=str(document.get("model_type", "")),
            max_positions=_size(document.get("max_position_embeddings")),
            dtype=dtype if isinstance(dtype, str) else None,
            has_depth=_size(document.get("n_predict")) is not None,
        )

    @property
    def reduced(self) -> bool:
        """True if the head is known to have fewer rows than the target has tokens."""
        sizes = self.vocab_size, self.draft_vocab_size
        return None not in sizes and sizes[0] != sizes[1]


def _method(architectures: list[str]) -> Method:
    if any(name in DRAFT_ARCHITECTURES or "eagle3" in name.lower() for name in architectures):
        return "eagle3"
    if any("eagle" in name.lower() for name in architectures):
        return "eagle"
    # A config that names nothing is taken for what it was given as.
    return "other" if architectures else "eagle3"


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True)
class Case:
    """What a rule looks at. ``architecture``: the target's class · ``resolution``: steps, topk and draft tokens as they
    run; None: nothing of the kind runs, or it is not known · ``page_size``: in tokens, as the backend has it.
    """

    flags: LaunchFlags
    engine: Engine
    architecture: str
    draft: DraftFacts
    resolution: Resolution | None = None
    page_size: int = 1


_FIELD = re.compile(r"\{[^{}]+\}")
Text = Value | Callable[[Case], Value]


@dataclass(frozen=True)
class Rule:
    """From ``since`` until before ``before``, where it ``applies``: a row. Texts are templates over ``flags``,
    ``draft``, ``engine`` and ``run`` (the resolution), or functions of the case.
    """

    kind: str
    weight: Weight
    flag: str
    asked: Text
    effective: Text
    applies: Callable[[Case], bool]
    rule: str
    fix: str = ""
    since: str | None = None
    before: str | None = None

    def row(self, case: Case) -> Row | None:
        """The row that it gives here, if any."""
        if not (case.engine.within(self.since, self.before) and self.applies(case)):
            return None
        asked, effective = (_said(text, case) for text in (self.asked, self.effective))
        rule, fix = (str(_said(text, case)) for text in (self.rule, self.fix))
        return Row(self.flag, asked, effective, rule, self.weight, self.kind, fix)


def _said(text: Text, case: Case) -> Value:
    if not isinstance(text, str):
        return text(case) if callable(text) else text
    parts = {"flags": case.flags, "draft": case.draft, "engine": case.engine, "run": case.resolution}
    if _FIELD.fullmatch(text):
        value = Formatter().get_field(text[1:-1], (), parts)[0]
        return value if isinstance(value, str | int | float | None) else str(value)
    # Only our own texts are templates; what a user wrote is put into them.
    return text.format(**parts)


def rows_of(rules: tuple[Rule, ...], case: Case) -> tuple[Row, ...]:
    """Every row that the rules give, in their order."""
    return tuple(row for rule in rules if (row := rule.row(case)) is not None)


def refusal(flag: str, asked: Value, error: EyasError) -> Row:
    """A row for values with which the engine does not start."""
    return Row(flag, asked, None, error.cause, "fault", "flags.refused", error.fix)


def common_rows(flags: LaunchFlags, engine: Engine) -> tuple[Row, ...]:
    """Flags that are not this engine's, and flags given twice."""
    unknown = tuple(
        Row(flag, "given", None, f"{engine} knows no such flag and does not start", "fault", "flags.refused",
            "leave it out, or write it as this engine names it")
        for flag in flags.unrecognised
    )  # fmt: skip
    twice = tuple(
        Row(flag, "given twice", "the last", "of a flag that is given twice, the last value counts", "warning",
            "flags.repeated", f"give {flag} once")
        for flag in flags.repeated
    )  # fmt: skip
    return (*unknown, *twice)


def half_precision(case: Case) -> bool:
    """fp16 asked for a draft that was not trained in it."""
    return case.flags.dtype in ("half", "float16") and case.draft.dtype not in ("float16", "half")


def simulated_length(flags: LaunchFlags) -> float | None:
    """The accept length that SGLang's environment makes up; None if it makes up none."""
    try:
        length = float(flags.env.get("SGLANG_SIMULATE_ACC_LEN", "-1"))
    except ValueError:
        return None
    return length if length > 0 else None
