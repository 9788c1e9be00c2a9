"""Which proposals become output.

With one-hot drafts (greedy or keyed sampling) the target's token at each node is known, and a proposal is
accepted iff it equals it: :func:`walk`. With probabilistic drafts a proposal is accepted with probability
min(1, p/q): :func:`speculative_sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from eyas.speculate import noise
from eyas.speculate.tree import Tree


def walk(tree: Tree, target_tokens: Sequence[int]) -> tuple[list[int], int]:
    """From the root, follow the child that is the target's own token, as far as there is one.

    ``target_tokens[i]`` is the target's token after node i. Returns the accepted nodes in order (the root not
    included) and the bonus token, the target's after the last of them. So a = len(accepted), and a + 1 tokens
    are committed.
    """
    assert len(target_tokens) == len(tree)
    accepted: list[int] = []
    node = 0
    while True:
        wanted = target_tokens[node]
        following = next((c for c in tree.children[node] if tree.tokens[c] == wanted), None)
        if following is None:
            return accepted, wanted
        accepted.append(following)
        node = following


@dataclass(frozen=True)
class Uniforms:
    """The random numbers of one round, each strictly between 0 and 1."""

    accept: tuple[float, ...]
    """[K]: decides on proposal i."""
    residual: tuple[float, ...]
    """[K + 1]: draws the token at place i if proposal i is rejected; the last one, the token after all K."""

    @classmethod
    def keyed(cls, seed: int, position: int, K: int) -> Self:
        """Those of the round whose first proposal takes ``position``."""
        return cls(
            tuple(noise.uniform(seed, position + i, noise.ACCEPT) for i in range(K)),
            tuple(noise.uniform(seed, position + i, noise.RESIDUAL) for i in range(K + 1)),
        )


def speculative_sample(p: Tensor, q: Tensor, proposals: Sequence[int], uniforms: Uniforms) -> tuple[int, int]:
    """Speculative sampling of a chain (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2).

    ``p`` [K + 1, V] are the target's probabilities, after temperature and truncation, at the places of the
    K proposals and after the last; ``q`` [K, V] the draft's, over the whole target vocabulary, and proposal
    i was drawn from ``q[i]``. Rows are normalised here, in float64. Returns (a, next token): the first a
    proposals are accepted, then the token follows. The committed tokens are distributed exactly as if drawn
    from ``p`` one by one.

    Proposal x is accepted with probability min(1, p(x) / q(x)); at the first rejection the token is drawn
    from norm(max(p - q, 0)), and after K acceptances from p.
    """
    K = len(proposals)
    assert p.shape[0] == K + 1
    assert q.shape == (K, p.shape[1])
    assert len(uniforms.accept) == K == len(uniforms.residual) - 1
    x_K1 = torch.tensor(proposals, dtype=torch.int64, device=p.device)[:, None]
    p_sum, q_sum = p.sum(-1, dtype=torch.float64), q.sum(-1, dtype=torch.float64)
    p_x = (p[:K].gather(1, x_K1)[:, 0] / p_sum[:K]).tolist()
    q_x = (q.gather(1, x_K1)[:, 0] / q_sum).tolist()
    for i in range(K):
        assert q_x[i] > 0, "a proposal is drawn from q"
        if uniforms.accept[i] * q_x[i] >= p_x[i]:
            return i, _inverse_cdf(_residual(p[i] / p_sum[i], q[i] / q_sum[i]), uniforms.residual[i])
    return K, _inverse_cdf(p[K], uniforms.residual[K])


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0), [V], not normalised, of two normalised rows.

    If nothing is left, p and q are equal but for rounding, and the rejection itself had the probability of a
    rounding error; p is then the limit of the residual to that same accuracy.
    """
    residual = (p - q).clamp_(min=0.0)
    return residual if bool(residual.any()) else p


def _inverse_cdf(weights: Tensor, u: float) -> int:
    """The token at share ``u`` of the summed ``weights`` [V]; never one of weight 0."""
    cdf = weights.cumsum(0, dtype=torch.float64)
    token = int(torch.searchsorted(cdf, u * cdf[-1], right=True))
    # u times the sum can round up to the sum itself; the last token with weight is meant.
    return min(token, int(weights.nonzero()[-1]))
