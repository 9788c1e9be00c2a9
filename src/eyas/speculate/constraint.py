"""What a grammar allows next: the one thing that proposing and verifying need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """The state of one request's grammar after its committed answer."""

    def mask(self, path: Sequence[int]) -> Tensor | None:
        """[V] bool on the host: which tokens may follow the committed answer and then ``path``.

        None: any token may. Also None after a path that the grammar forbids: no text ever comes there.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens were added to the answer."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end of the answer."""
        ...
