"""One request between two rounds: its committed tokens, and what the caches hold of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.speculate.constraint import Constraint
from eyas.speculate.sampling import History, SamplingParams


@dataclass(eq=False)
class DecodeState:
    """With m committed tokens, the target's cache holds positions 0 … m − 2: the last token is the next root.

    One table of slots serves the target's cache and the draft's: slot ``table[t]`` holds the keys and values of
    target row t and of draft row t.
    """

    tokens: list[int]
    """Committed: the prompt, then the answer."""
    prompt_length: int
    params: SamplingParams
    spare: list[int]
    """Slots that are the request's but hold nothing that counts, ascending."""
    table: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """[cached] the slot of each position whose keys and values count."""
    absorbed: int = 0
    """Draft rows 0 … absorbed − 1 are in the draft's cache, computed from the target's own features."""
    pending: list[Tensor] = field(default_factory=list)
    """Features [·, n · H] of positions absorbed … cached − 1, for the draft to absorb."""
    drafted: bool = True
    """Whether a draft may come to propose; else features are not kept, and nothing is absorbed from then on."""
    constraint: Constraint | None = None
    """The grammar of the answer."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens' log-probabilities each round tells; None: not the token's own either."""

    @property
    def cached(self) -> int:
        """Positions whose target keys and values are in the cache."""
        return len(self.table)

    @property
    def root_position(self) -> int:
        """The position of the last committed token."""
        return len(self.tokens) - 1

    def share(self, slots: Sequence[int], drafted: bool = True) -> None:
        """Begin with rows of a kept prefix, valid for the target, and for the draft too where ``drafted``."""
        assert not self.cached
        self.table = torch.tensor(slots, dtype=torch.int64)
        self.absorbed = len(slots) if drafted else 0

    def take(self, slots: Sequence[int], features: Tensor | None) -> None:
        """Commit rows: the table grows by ``slots``, the other spare slots stay spare."""
        self.table = torch.cat([self.table, torch.tensor(slots, dtype=torch.int64)])
        used = set(slots)
        self.spare = [slot for slot in self.spare if slot not in used]
        if features is not None and self.drafted:
            self.pending.append(features)

    def cut(self, num_tokens: int) -> None:
        """Forget committed tokens beyond ``num_tokens`` (a stop or a limit), and the rows that depend on them."""
        assert self.prompt_length <= num_tokens <= len(self.tokens)
        del self.tokens[num_tokens:]
        rows = min(self.cached, num_tokens - 1)
        self.spare = sorted([*self.spare, *self.table[rows:].tolist()])
        self.table = self.table[:rows]
        kept = rows - self.absorbed
        self.absorbed = min(self.absorbed, rows)
        self.pending = [torch.cat(self.pending)[:kept]] if self.pending and kept > 0 else []

    def forget_rows(self) -> None:
        """The caches hold nothing of the text any more; its slots are someone else's."""
        self.table = torch.empty(0, dtype=torch.int64)
        self.spare, self.pending, self.absorbed = [], [], 0

    def stop_drafting(self) -> None:
        """No draft will propose from here on: its features are of no more use."""
        self.drafted, self.pending = False, []

    def history(self, path: Sequence[int] = ()) -> History:
        """The tokens before the one to be drawn, a tree path's own included, and what the grammar allows there."""
        n = self.prompt_length
        allowed = self.constraint.mask(path) if self.constraint is not None else None
        return History(self.tokens[:n], [*self.tokens[n:], *path], allowed)
