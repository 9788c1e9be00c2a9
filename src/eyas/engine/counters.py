"""What an engine has done since it began."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from eyas.engine.request import Request
from eyas.metrics import Round
from eyas.speculate.round import Outcome


@dataclass
class Counters:
    """Only ever rising."""

    prompt_tokens: int = 0
    """Of prompts that were begun, whether read or known."""
    cached_tokens: int = 0
    """Of these, tokens that the prefix cache had."""
    answer_tokens: int = 0
    rows_read: int = 0
    """Rows of texts that the target ran over outside rounds."""
    aborted: int = 0
    finished: int = 0
    rounds: Counter[Round] = field(default_factory=Counter)
    """Every round, by what it proposed and accepted; those that proposed nothing too."""

    def note(self, request: Request, read: int, outcome: Outcome | None) -> None:
        """One step of one request. Called after the request's own note."""
        self.rows_read += read
        if outcome is None:
            return
        if read:
            self.prompt_tokens += len(request.prompt)
            self.cached_tokens += request.cached_prompt or 0
            self.answer_tokens += 1
        else:
            last = request.rounds[-1]
            self.rounds[last] += 1
            self.answer_tokens += last.committed
        self.finished += request.finished is not None
