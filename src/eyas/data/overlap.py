"""Whether a text repeats a part of an evaluation set, which then would no longer measure anything.

The rule, with n words to a run: a text overlaps an evaluation text if they share a run of n words. Where one of the two
is shorter than n, all of its words must stand in the other as one run; a text of fewer than ``SHORTEST`` words says too
little for that, and must be the whole of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from eyas.corpus.prompts import Prompt
from eyas.data.words import digest, grams, words_of

DEFAULT_WORDS = 8
SHORTEST = 4


class Evaluation:
    """Evaluation texts by name, and which of them a text overlaps."""

    def __init__(self, texts: Mapping[str, str], words: int = DEFAULT_WORDS) -> None:
        """``words``: n of the rule, at least ``SHORTEST``. Texts without a word are left out."""
        assert words >= SHORTEST, words
        self.words = words
        self._texts = {name: found for name, text in texts.items() if (found := words_of(text))}
        # By their length, all runs of evaluation texts that a text of that many words, or n-gram, is looked up in.
        self._runs: dict[int, dict[int, str]] = {}
        self._whole: dict[int, dict[int, str]] = {}
        for name, found in self._texts.items():
            if len(found) < words:
                self._whole.setdefault(len(found), {}).setdefault(digest(found), name)

    def find(self, text: str) -> str | None:
        """The name of an evaluation text that ``text`` overlaps, or None."""
        words = words_of(text)
        if not words:
            return None
        if len(words) < SHORTEST:
            return self._whole.get(len(words), {}).get(digest(words))
        size = min(len(words), self.words)
        runs = self._runs_of(size)
        found = next((runs[d] for gram in grams(words, size) if (d := digest(gram)) in runs), None)
        return found or self._find_whole(words)

    def _find_whole(self, words: list[str]) -> str | None:
        for size, names in self._whole.items():
            if SHORTEST <= size <= len(words):
                for gram in grams(words, size):
                    if (found := digest(gram)) in names:
                        return names[found]
        return None

    def _runs_of(self, size: int) -> dict[int, str]:
        if size not in self._runs:
            runs: dict[int, str] = {}
            for name, words in self._texts.items():
                for gram in grams(words, size):
                    runs.setdefault(digest(gram), name)
            self._runs[size] = runs
        return self._runs[size]


def evaluation_texts(prompts: list[Prompt]) -> dict[str, str]:
    """What of prompts is an evaluation text: the raw text where there is one (HumanEval's own, without the words that
    ask for it), else each user turn.
    """
    texts: dict[str, str] = {}
    for prompt in prompts:
        turns = [prompt.raw] if prompt.raw is not None else list(prompt.user_turns)
        texts.update({f"{prompt.source}/{prompt.id}/{turn}": text for turn, text in enumerate(turns)})
    return texts
