"""Which target token each row of a draft's head is for, told by the rows themselves.

A head that was started from the target's rows stays near them, so that its map can be read off it, whatever d2t says.
A head that was started from random values tells nothing.

Shape legend: n rows of the head, V target vocabulary, H hidden.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.check.findings import Finding

ANCHORS = 256
"""Rows compared with the whole vocabulary; draft ids rise with target ids, so that the rows between two of them are
only compared with the tokens between."""
LEAST_COSINE = 0.5
LEAST_GAP = 0.05
"""Cosine by which the nearest row of the target must be nearer than the second."""
MOST_TOLD = 0.9
"""Share of rows that must be told for the head to be called one that was started from the target's."""
CONTRADICTED = 0.01
"""Share of rows that tell of other tokens than the map from which the map is wrong."""
FIX = "`eyas check DRAFT --target T --fix OUT` writes the map that the head's rows tell"


def told_by_head(head: Tensor, target_head: Tensor) -> Tensor | None:
    """[n] int64: the token of each row, rising, −1 where a row does not tell; None where the head tells nothing.

    ``head`` [n, H], ``target_head`` [V, H], n < V.
    """
    if head.dim() != 2 or head.shape[1] != target_head.shape[1] or not 2 <= len(head) < len(target_head):
        return None
    if not bool(head.isfinite().all()):
        return None
    rows = torch.linspace(0, len(head) - 1, min(ANCHORS, len(head))).long().unique()
    told = torch.full((len(head),), -1)
    told[rows] = _nearest(head[rows], target_head)
    anchors = [int(row) for row in rows if told[row] >= 0]
    if len(anchors) < MOST_TOLD * len(rows) or any(told[a] >= told[b] for a, b in pairwise(anchors)):
        return None
    ends = [(-1, -1), *((row, int(told[row])) for row in anchors), (len(head), len(target_head))]
    for (row, token), (next_row, next_token) in pairwise(ends):
        between, tokens = next_row - row - 1, next_token - token - 1
        if between > tokens:
            return None
        if between == tokens:
            told[row + 1 : next_row] = torch.arange(token + 1, next_token)
        elif between:
            near = _nearest(head[row + 1 : next_row], target_head[token + 1 : next_token])
            told[row + 1 : next_row] = torch.where(near >= 0, near + token + 1, -1)
    return told if _has_room(told, len(target_head)) and int((told >= 0).sum()) >= MOST_TOLD * len(told) else None


def _has_room(told: Tensor, vocabulary: int) -> bool:
    """Whether the tokens rise, with enough of them left for the rows between that do not tell."""
    rows = torch.cat([torch.tensor([-1]), (told >= 0).nonzero()[:, 0], torch.tensor([len(told)])])
    tokens = torch.cat([torch.tensor([-1]), told[told >= 0], torch.tensor([vocabulary])])
    return bool((tokens.diff() >= rows.diff()).all())


def check_against_head(told: Tensor, ids: Tensor | None) -> Finding | None:
    """The map's target ``ids`` [n] against what the head's rows tell."""
    if ids is None:
        return None
    wrong = ((told >= 0) & (told != ids)).nonzero()[:, 0]
    if len(wrong) < max(2, CONTRADICTED * len(told)):
        return None
    row = int(wrong[0])
    said = (
        f"{len(wrong)} of {len(told)} rows of the head are the target's rows of other tokens than d2t says: row {row}"
    )
    said += f" is token {int(told[row])}, not {int(ids[row])}"
    data = {"rows": len(wrong), "recoverable": True}
    return Finding("map.wrong", "static", "fault", said, fix=FIX, data=data)


def map_told(told: Tensor, head: Tensor, target_head: Tensor) -> Tensor:
    """Offsets d2t [n] int64 from :func:`told_by_head`'s rows. A row that does not tell plainly gets the likeliest of
    the tokens that are left between its neighbours': rows of the target that are alike mean tokens that hardly occur.
    """
    ids = torch.cat([told, torch.tensor([len(target_head)])])
    for row in (told < 0).nonzero()[:, 0].tolist():
        ahead = next(i for i in range(row + 1, len(ids)) if ids[i] >= 0)
        low, high = int(ids[row - 1]) + 1 if row else 0, int(ids[ahead]) - (ahead - row - 1)
        ids[row] = low + int(_cosines(head[row : row + 1], target_head[low:high]).argmax())
    return ids[:-1] - torch.arange(len(told))


def _cosines(rows: Tensor, targets: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=1) @ F.normalize(targets.float(), dim=1).T


def _nearest(rows: Tensor, targets: Tensor) -> Tensor:
    """[m] int64: the index of the target's row that each row is plainly nearest to, else −1."""
    cosines = _cosines(rows, targets)
    if len(targets) == 1:
        return torch.where(cosines[:, 0] >= LEAST_COSINE, 0, -1)
    (first, second), index = cosines.topk(2, 1).values.T, cosines.argmax(1)
    return torch.where((first >= LEAST_COSINE) & (first - second >= LEAST_GAP), index, -1)
