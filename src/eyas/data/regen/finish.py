"""From the journal to the finished file, and the report about it. Both depend on the journal's chats alone, not on the
order in which they came: a run that was interrupted ends with the same bytes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eyas.artifacts import named_disk_errors, write_json
from eyas.corpus.chats import Chat
from eyas.data.regen.conversation import Conversation
from eyas.data.regen.journal import Journal
from eyas.data.regen.run import LeftOut, Work
from eyas.data.regen.settings import Identity
from eyas.data.regen.sift import REASONS, Sieve

EXAMPLES = 5
CHATS, REPORT = "chats.jsonl", "report.json"
QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


@dataclass
class Tally:
    """Counts over some of the chats. ``shortened``: kept, but for later answers that were cut or empty."""

    chats: int = 0
    kept: int = 0
    shortened: int = 0
    answers: int = 0
    answer_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, kept: Chat | None, reason: str | None) -> None:
        """Count one chat."""
        self.chats += 1
        if kept is None:
            assert reason is not None
            self.dropped[reason] += 1
            return
        self.kept += 1
        self.shortened += reason is not None
        self.answers += len(kept.answers)
        self.answer_tokens += sum(len(answer.token_ids or ()) for answer in kept.answers)

    def to_json(self) -> dict[str, Any]:
        """As plain values, with the shares that were dropped."""
        dropped = {reason: self.dropped[reason] for reason in REASONS}
        share = round(sum(dropped.values()) / self.chats, 4) if self.chats else 0.0
        return {**vars(self), "dropped": dropped, "share_dropped": share}


@dataclass
class Account:
    """Everything that the report counts."""

    all: Tally = field(default_factory=Tally)
    domains: dict[str, Tally] = field(default_factory=dict)
    temperatures: dict[float, Tally] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def add(self, chat: Chat, kept: Chat | None, reason: str | None) -> None:
        """Count one chat and what is kept of it."""
        by_domain = self.domains.setdefault(chat.domain, Tally())
        by_temperature = self.temperatures.setdefault(chat.answers[0].temperature, Tally())
        for tally in (self.all, by_domain, by_temperature):
            tally.add(kept, reason)
        if kept is None:
            return
        self.turns.append(len(kept.answers))
        for answer in kept.answers:
            self.characters.append(len(kept.messages[answer.message].get("content") or ""))
            if answer.token_ids is not None:
                self.tokens.append(len(answer.token_ids))


def finish(
    folder: Path, journal: Journal, work: Work, left_out: Sequence[LeftOut], sieve: Sieve, identity: Identity
) -> dict[str, Any]:
    """Write ``chats.jsonl`` and ``report.json`` into ``folder``, each whole or not at all; returns the report.

    ``left_out``: what the run could not have, beside what ``work`` left out from the start.
    Raises ``pull.disk-full``, ``artifact.not-writable``.
    """
    account = Account()
    _write(folder / CHATS, _kept(journal, work.wanted, sieve, account))
    report = {
        "schema_version": 1,
        "chats_file": CHATS,
        "wanted": len(work.wanted) + len(work.left_out),
        "left_out": summary([*work.left_out, *left_out]),
        **account.all.to_json(),
        "lengths": {
            "answer_tokens": _quantiles(account.tokens),
            "answer_characters": _quantiles(account.characters),
            "answers_per_chat": _quantiles(account.turns),
        },
        "domains": {name: account.domains[name].to_json() for name in sorted(account.domains)},
        "temperatures": {f"{t:g}": account.temperatures[t].to_json() for t in sorted(account.temperatures)},
        "identity": identity.model_dump(mode="json"),
    }
    write_json(folder / REPORT, report)
    return report


def summary(left_out: Iterable[LeftOut]) -> dict[str, Any]:
    """Why → how many, and the first ones with what was said about them."""
    groups: dict[str, list[LeftOut]] = {}
    for one in left_out:
        groups.setdefault(one.why, []).append(one)
    return {why: {"chats": len(ones), "first": [vars(one) for one in ones[:EXAMPLES]]} for why, ones in groups.items()}


def _kept(journal: Journal, wanted: Sequence[Conversation], sieve: Sieve, account: Account) -> Iterator[str]:
    for conversation in wanted:
        if conversation.id not in journal.places:
            continue
        chat = journal.read(conversation.id)
        sifted = sieve.sift(chat)
        account.add(chat, sifted.chat, sifted.reason)
        if sifted.chat is not None:
            yield sifted.chat.to_line()


def _write(path: Path, lines: Iterable[str]) -> None:
    """As ``atomic_write``, line by line: all chats at once may not fit into memory."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with named_disk_errors(path.parent):
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _quantiles(values: Sequence[int]) -> dict[str, int]:
    if not values:
        return {}
    return {name: int(np.quantile(values, q, method="nearest")) for name, q in QUANTILES.items()}
