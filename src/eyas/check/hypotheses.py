"""What may be wrong, as readings to try: each of them a single change of the one that the files declare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from eyas.check.readings import Reading, Rope, rotated_size
from eyas.contract import default_taps
from eyas.draft.config import DraftConfig
from eyas.errors import EyasError

DECLARED = "as the files declare"
ROPE_BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0, 5_000_000.0)
ROPE_FACTORS = (2.0, 4.0, 8.0)
ROPE_SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Hypothesis:
    """``name``: what the draft was trained with, if this is true; ``kinds``: the faults that it then has.

    ``looks_ahead``: it reads what no server has, so that it explains nothing by being better.
    """

    name: str
    kinds: tuple[str, ...]
    reading: Reading
    looks_ahead: bool = False


def single_changes(
    now: Reading, config: DraftConfig, target_rope: Rope | None, own_embedding: bool
) -> Iterator[Hypothesis]:
    """Every cheap hypothesis but the search over all taps. ``target_rope``: how the target rotates, if it is known."""
    yield from _taps(now, config.target_num_layers)
    yield from _norms(now)
    yield from _alignment(now)
    yield from _rope(now, config.head_dim, target_rope)
    if config.has_map and now.map == "offsets":
        yield Hypothesis("d2t holds target ids, not offsets", ("map.absolute",), replace(now, map="absolute"))
        yield Hypothesis("draft ids are target ids", ("map.wrong",), replace(now, map="missing"))
    # That the target's head does better says nothing: it is a good head, whatever the draft's own has suffered.
    if config.hidden_size == config.target_hidden_size and own_embedding and now.embedding == "own":
        yield Hypothesis("the embedding is the target's", ("weights.replaced",), replace(now, embedding="target"))


def other_taps(now: Reading, taps: tuple[int, ...]) -> Hypothesis:
    """The hypothesis that the draft was trained on these taps, or on this order of its taps."""
    listed = ", ".join(map(str, taps))
    if sorted(taps) == sorted(now.taps):
        return Hypothesis(f"trained on the order ({listed})", ("taps.order",), replace(now, taps=taps))
    return Hypothesis(f"trained on taps ({listed})", ("taps.wrong",), replace(now, taps=taps))


def _taps(now: Reading, layers: int) -> Iterator[Hypothesis]:
    candidates = [tuple(tap + shift for tap in now.taps) for shift in (1, -1)]
    for i in range(len(now.taps)):
        candidates += [(*now.taps[:i], now.taps[i] + shift, *now.taps[i + 1 :]) for shift in (1, -1)]
    candidates += [(0, *now.taps[:-1]), (*now.taps[1:], layers), _default(layers), *permutations(now.taps)]
    for taps in dict.fromkeys(candidates):
        distinct = len(set(taps)) == len(taps) == len(now.taps)
        if taps != now.taps and distinct and all(0 <= tap <= layers for tap in taps):
            yield other_taps(now, taps)
    if not now.last_normed:
        name = "the last tap was taken after the final norm"
        yield Hypothesis(name, ("taps.post-norm",), replace(now, last_normed=True))


def _default(layers: int) -> tuple[int, ...]:
    try:
        return default_taps(layers)
    except EyasError:  # a target too shallow for the default
        return ()


def _norms(now: Reading) -> Iterator[Hypothesis]:
    on = "off" if now.norm_output else "on"
    yield Hypothesis(f"norm_output {on}", ("norm.output",), replace(now, norm_output=not now.norm_output))
    on = "off" if now.norm_before_residual else "on"
    changed = replace(now, norm_before_residual=not now.norm_before_residual)
    yield Hypothesis(f"norm_before_residual {on}", ("norm.residual",), changed)
    said = "no final norm before the head" if now.final_norm else "a final norm before the head"
    yield Hypothesis(said, ("norm.final",), replace(now, final_norm=not now.final_norm))


def _alignment(now: Reading) -> Iterator[Hypothesis]:
    if now.feature_shift == 0:
        late, early = replace(now, feature_shift=-1), replace(now, feature_shift=1)
        yield Hypothesis("features one position late", ("align.feature",), late)
        yield Hypothesis("features one position early", ("align.feature",), early, looks_ahead=True)
    if now.token_shift == 0:
        yield Hypothesis("tokens not shifted against features", ("align.token",), replace(now, token_shift=-1))
        yield Hypothesis("tokens shifted by two", ("align.token",), replace(now, token_shift=1), looks_ahead=True)
    if not now.swapped:
        yield Hypothesis(
            "cat(hidden, embedding) in place of cat(embedding, hidden)", ("align.halves",), replace(now, swapped=True)
        )


def _rope(now: Reading, head_dim: int, target: Rope | None) -> Iterator[Hypothesis]:
    rope = now.rope
    for theta in dict.fromkeys((*(() if target is None else (target.theta,)), *ROPE_BASES)):
        if theta != rope.theta:
            changed = replace(now, rope=replace(rope, theta=theta))
            yield Hypothesis(f"RoPE base {theta:g}", ("rope.base",), changed)
    scalings = [() if target is None else target.scaling, ()]
    scalings += [Rope.of(0, {"rope_type": "linear", "factor": factor}).scaling for factor in ROPE_FACTORS]
    for scaling in dict.fromkeys(scalings):
        if scaling != rope.scaling:
            changed = replace(now, rope=replace(rope, scaling=scaling))
            yield Hypothesis(f"RoPE scaling: {_scaling(scaling)}", ("rope.scaling",), changed)
    for share in ROPE_SHARES:
        if rope.share == 1 and 0 < rotated_size(head_dim, share) < head_dim:
            changed = replace(now, rope=replace(rope, share=share))
            yield Hypothesis(f"RoPE on {share:.0%} of a head", ("rope.partial",), changed)


def _scaling(scaling: tuple[tuple[str, object], ...]) -> str:
    said = dict(scaling)
    kind = said.pop("rope_type", "none")
    return f"{kind} {', '.join(f'{name} {value}' for name, value in said.items())}".strip()


def rope_of(target: object) -> Rope | None:
    """How a target rotates, where it says so."""
    config = getattr(target, "config", None)
    theta = getattr(config, "rope_theta", None)
    return None if theta is None else Rope.of(theta, getattr(config, "rope_scaling", None))
