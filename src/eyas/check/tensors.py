"""A draft's stored tensors against its config and against what training leaves behind.

A trained matrix has directions: singular values beyond those of noise, or rows and columns of unequal power. One that
has none of them is as it was initialised, or was made up when the file was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.check.findings import Finding, Weight
from eyas.check.keys import FLAGGED
from eyas.draft.config import DraftConfig
from eyas.draft.names import EMBEDDING, HEAD, KEPT, OFFSETS, canonical_name, parameter_pieces
from eyas.draft.stored import DTYPES
from eyas.models.strict import some
from eyas.models.weights.safetensors import TensorInfo

FP16_MAX = 65504.0
SAMPLED = 1024
"""Rows and columns of a matrix that are looked at: a part of noise is noise."""
_BEYOND_NOISE = 3.4, 4.7
"""Above these, in 1,400 draws of seven shapes, stood one largest singular value (in Tracy-Widom units), and no row or
column power (in standard deviations). Trained drafts of 135 M targets have 300 and more."""
_SLOW = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_SMALL = 128
"""Matrices that move little in training show it only where they are larger than this."""


@dataclass(frozen=True)
class Names:
    """Canonical name → name in the file, with unambiguous aliases understood. ``renamed``: those aliases."""

    stored: Mapping[str, str]
    renamed: Mapping[str, str]
    findings: tuple[Finding, ...]


def canonical(infos: Mapping[str, TensorInfo]) -> tuple[dict[str, str], list[Finding]]:
    """Canonical name → name in the file; of two names for one tensor one counts, and the other is a fault."""
    names: dict[str, str] = {}
    findings = []
    # A name as written here comes before its aliases.
    for name in sorted(infos, key=lambda name: canonical_name(name) != name):
        plain = canonical_name(name)
        if plain is not None and names.setdefault(plain, name) != name:
            said = f"{names[plain]} and {name} are the same tensor by two names"
            findings.append(_fault("weights.unknown", said, "keep the one that was trained", names=[name]))
    return names, findings


def match_names(names: Mapping[str, str], infos: Mapping[str, TensorInfo], config: DraftConfig, shared: bool) -> Names:
    """Missing and unknown tensors; an unknown one that can be only one of the missing is taken for it.

    ``shared``: the head is the target's, so that none is stored.
    """
    expected = expected_shapes(config, shared)
    unknown = [name for name in names if name not in {*expected, OFFSETS, KEPT, EMBEDDING}]
    missing = [name for name in expected if name not in names]
    shapes = {name: infos[names[name]].shape for name in unknown}
    fits = {name: [u for u in unknown if shapes[u] == expected[name] and _tail(u) == _tail(name)] for name in missing}
    for name in missing:
        # A whole-tensor alias has no part of its name in common; its shape alone must tell it from all others.
        alike = [u for u in unknown if shapes[u] == expected[name]]
        if not fits[name] and len(alike) == 1 and [expected[m] for m in missing].count(expected[name]) == 1:
            fits[name] = alike
    taken = [found[0] for found in fits.values() if len(found) == 1]
    renamed = {found[0]: name for name, found in fits.items() if len(found) == 1 and taken.count(found[0]) == 1}
    findings = _name_findings(
        [name for name in missing if name not in renamed.values()],
        [name for name in unknown if name not in renamed],
        renamed,
    )
    stored = {renamed.get(name, name): file for name, file in names.items()}
    return Names(stored, renamed, tuple(findings))


def expected_shapes(config: DraftConfig, shared: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of the stored floating-point tensors by canonical name."""
    shapes = {piece: shape for pieces in parameter_pieces(config).values() for piece, shape in pieces}
    if shared:
        del shapes[HEAD]
    return shapes


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: DraftConfig, shared: bool) -> list[Finding]:
    """Tensors of another shape than the config's. ``shapes``: by canonical name."""
    wrong = {
        name: (shapes[name], shape)
        for name, shape in expected_shapes(config, shared).items()
        if name in shapes and tuple(shapes[name]) != shape
    }
    if not wrong:
        return []
    said = "; ".join(f"{name} is {list(is_)}, config.json says {list(says)}" for name, (is_, says) in wrong.items())
    return [_fault("weights.shape", said, "use the config.json that belongs to these weights", names=sorted(wrong))]


def check_values(tensors: Mapping[str, Tensor], served_as_fp16: bool) -> list[Finding]:
    """Stored kinds, NaN and infinity, and values that fp16 cannot hold (a fault if the config says fp16)."""
    floats = {name: value for name, value in tensors.items() if name not in (OFFSETS, KEPT)}
    findings = []
    other = [name for name, value in floats.items() if value.dtype not in DTYPES]
    if other:
        kinds = sorted({str(floats[name].dtype).removeprefix("torch.") for name in other})
        said = f"{some(other)}: stored as {', '.join(kinds)}"
        findings.append(_fault("weights.dtype", said, "use weights in fp32, bf16 or fp16", names=other))
    plain = {name: value for name, value in floats.items() if name not in other}
    broken = [name for name, value in plain.items() if not bool(value.isfinite().all())]
    if broken:
        said = f"{some(broken)}: NaN or infinity among the values"
        fix = "take an earlier checkpoint, and store it in bf16 or fp32"
        findings.append(_fault("weights.nonfinite", said, fix, names=broken))
    peaks = {n: float(v.abs().max()) for n, v in plain.items() if n not in broken and v.numel()}
    large = {name: peak for name, peak in peaks.items() if peak >= FP16_MAX}
    if large:
        weight: Weight = "fault" if served_as_fp16 else "warning"
        said = (
            f"{some(sorted(large))}: values up to {max(large.values()):.3g}, beyond {FP16_MAX:.0f} that fp16 can hold"
        )
        data = {"names": sorted(large)}
        findings.append(Finding("weights.nonfinite", "static", weight, said, fix="serve it in bf16 or fp32", data=data))
    return findings


def check_trained(tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Matrices without any structure, and constant ones. Small matrices that move little are only noted.

    The largest singular value is compared with what noise of the same power has (Johnstone 2001, Annals of
    Statistics 29), and the powers of rows and columns with their spread in noise.
    """
    matrices = {
        name: value
        for name, value in tensors.items()
        if value.dim() == 2 and min(value.shape) > 1 and value.dtype in DTYPES and bool(value.isfinite().all())
    }
    figures = {name: noise_figures(value) for name, value in matrices.items()}
    noise = [name for name, figure in figures.items() if figure is None or is_noise(figure)]
    sure = [n for n in noise if min(matrices[n].shape) >= _SMALL or not any(part in n for part in _SLOW)]
    findings = []
    if sure:
        whole = "every matrix is" if len(noise) == len(matrices) else f"{some(sure)}:"
        said = f"{whole} without structure, as after initialisation: never trained, or lost when the file was written"
        evidence = "; ".join(f"{name} {_shown(figures[name])}" for name in sure[:4])
        fix = "take the checkpoint from its trainer again; a tensor that was never saved must be trained again"
        data = {"names": sure}
        findings.append(Finding("weights.random", "static", "fault", said, evidence, fix, data))
    unsure = [name for name in noise if name not in sure]
    if unsure and not sure:
        said = f"{some(unsure)}: too small to tell from the initial values by its statistics"
        findings.append(Finding("weights.random", "static", "note", said, data={"names": unsure}))
    return findings


def noise_figures(matrix: Tensor) -> tuple[float, float, float] | None:
    """(largest singular value in Tracy-Widom units, spread of row powers, of column powers in standard deviations);
    None for a matrix whose values are all one.
    """
    rows, columns = (-(-size // SAMPLED) for size in matrix.shape)
    w = matrix[::rows, ::columns].double()
    w = w - w.mean()
    w = w.T if w.shape[0] > w.shape[1] else w
    n, m = w.shape
    power = w.square().mean()
    if float(power) == 0:
        return None
    largest = float(torch.linalg.eigvalsh(w @ w.T / power)[-1])
    a, b = math.sqrt(n - 1), math.sqrt(m)
    beyond = (largest - (a + b) ** 2) / ((a + b) * (1 / a + 1 / b) ** (1 / 3))
    spread = max(float(w.pow(4).mean() - power**2), 1e-30)
    by_row = float(w.square().mean(1).var()) * m / spread
    by_column = float(w.square().mean(0).var()) * n / spread
    return beyond, (by_row - 1) / math.sqrt(2 / (n - 1)), (by_column - 1) / math.sqrt(2 / (m - 1))


def is_noise(figures: tuple[float, float, float]) -> bool:
    """Whether a matrix with these figures has nothing that noise has not."""
    top, spread = _BEYOND_NOISE
    return figures[0] < top and max(figures[1:]) < spread


def check_replaced(tensors: Mapping[str, Tensor], head: Tensor | None, kept: Tensor | None) -> list[Finding]:
    """A stored head that is the target's, row by row. ``head``: the target's [V, H]; ``kept``: target ids of rows."""
    stored = tensors.get(HEAD)
    if stored is None or head is None or stored.dim() != 2 or stored.shape[1] != head.shape[1]:
        return []
    rows = torch.arange(len(stored)) if kept is None else kept
    if len(rows) != len(stored) or not bool(((rows >= 0) & (rows < len(head))).all()):
        return []
    if not same_numbers(stored, head[rows.to(head.device)].cpu()):
        return []
    said = f"{HEAD} is the target's head, row by row: never trained, or put in the trained one's place"
    fix = "take the checkpoint from its trainer again, unless its head was frozen in training"
    return [Finding("weights.replaced", "static", "warning", said, fix=fix, data={"names": [HEAD]})]


def same_numbers(stored: Tensor, original: Tensor) -> bool:
    """Whether ``stored`` is ``original``, or its rounding to the stored dtype."""
    if stored.shape != original.shape:
        return False
    original = original.cpu()
    return torch.equal(stored, original.to(stored.dtype)) or torch.equal(stored.to(original.dtype), original)


def _name_findings(missing: list[str], unknown: list[str], renamed: Mapping[str, str]) -> list[Finding]:
    findings = []
    if renamed:
        said = "; ".join(f"{old} stands for {new}" for old, new in sorted(renamed.items())[:3])
        said += f", and {len(renamed) - 3} more" if len(renamed) > 3 else ""
        said += ": engines drop names that they do not know, and start from random values"
        fix = "`eyas check DRAFT --fix OUT` writes the names that engines read"
        findings.append(_fault("weights.unknown", said, fix, renamed=dict(renamed)))
    unknown = [name for name in unknown if name not in FLAGGED]
    if unknown:
        fix = "use the engine that it was made for, or take the checkpoint again"
        findings.append(_fault("weights.unknown", f"{some(unknown)}: no tensors of such a draft", fix, names=unknown))
    if missing:
        said = f"{some(missing)}: not in the checkpoint, and engines start such a tensor from random values in silence"
        fix = "take the whole checkpoint from its source again"
        findings.append(_fault("weights.missing", said, fix, names=missing))
    return findings


def _tail(name: str) -> str:
    """The part that names a tensor within its layer."""
    return ".".join(name.split(".")[-2:])


def _shown(figures: tuple[float, float, float] | None) -> str:
    return "is constant" if figures is None else f"{figures[0]:.1f} (noise: below {_BEYOND_NOISE[0]})"


def _fault(kind: str, said: str, fix: str, names: list[str] | None = None, **data: object) -> Finding:
    return Finding(kind, "static", "fault", said, fix=fix, data={**data, **({"names": names} if names else {})})
