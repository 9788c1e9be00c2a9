"""The contract against what is about to run: any difference is an error that names both sides."""

from __future__ import annotations

from typing import Any

from eyas.contract.schema import (
    Contract,
    FeatureFormat,
    NormOptions,
    Rendering,
    RopeOptions,
    Sha256,
    Strict,
    TargetShape,
)
from eyas.errors import EyasError

_OTHER_TARGET = "run the target that the contract names, or a draft trained for this one"
_OTHER_TEXT = "use the tokenizer and template that the contract names, or a draft trained with these"
_OTHER_DRAFT = "take the draft's config.json and weights from its source again; they are not those of its contract"

# Where to compare, the most telling difference first, and what to do about it.
_FIXES: dict[str, str] = {
    "target": _OTHER_TARGET,
    "taps": "use the contract's taps (leave --taps out), or a draft trained on these",
    "vocab_map_sha256": _OTHER_DRAFT,
    "norms": _OTHER_DRAFT,
    "rope": _OTHER_DRAFT,
    "weights_sha256": _OTHER_TARGET,
    "tokenizer_sha256": _OTHER_TEXT,
    "chat_template_sha256": _OTHER_TEXT,
    "rendering": "render chats as the contract says, or use a draft trained with this rendering",
    "features": ("run the target in the contract's dtype and quantisation, or a draft trained on such features"),
}


class ContractFacts(Strict):
    """What is about to run. A field that is left out is not known and not compared; None, if passed, is a
    fact.

    Pass ``features`` only where another dtype or quantisation is to be an error, and ``rendering`` only where
    it is fixed.
    """

    target: TargetShape | None = None
    weights_sha256: Sha256 | None = None
    tokenizer_sha256: Sha256 | None = None
    chat_template_sha256: Sha256 | None = None
    rendering: Rendering | None = None
    taps: tuple[int, ...] | None = None
    norms: NormOptions | None = None
    rope: RopeOptions | None = None
    vocab_map_sha256: Sha256 | None = None
    features: FeatureFormat | None = None


def enforce(contract: Contract, facts: ContractFacts) -> tuple[str, ...]:
    """Compare every known fact with the contract; return the names of those that were not known.

    Raises ``contract.mismatch``: the most telling difference first, then all others, each with both sides.
    """
    promised = contract.model_dump()
    promised["weights_sha256"] = promised["target"].pop("weights_sha256")
    known = facts.model_dump(exclude_unset=True)
    differences = [
        (name, path, expected, actual)
        for name in _FIXES
        if name in known
        for path, expected, actual in _compare(name, promised[name], known[name])
    ]
    if differences:
        lines = [f"{path} is {e!r} in the contract and {a!r} in what is about to run" for _, path, e, a in differences]
        raise EyasError("contract.mismatch", "; ".join(lines), _FIXES[differences[0][0]])
    return tuple(name for name in _FIXES if name not in known)


def _compare(path: str, expected: Any, actual: Any) -> list[tuple[str, Any, Any]]:
    """Differences of one entry, field by field where both sides have fields."""
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        return [d for name in expected for d in _compare(f"{path}.{name}", expected[name], actual[name])]
    return [] if expected == actual else [(path, expected, actual)]
