"""Texts as words: what filters compare, and what they look at within one text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Scripts that put no space between words: each character stands for one.
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


def normalised(text: str) -> str:
    """The text without what does not tell two apart: letter case, width and other forms of a character, white space.

    A fixed point: normalising twice is normalising once.
    """
    # Unicode's own recipe for caseless matching (D147): folding once can leave what folds again.
    folded = unicodedata.normalize("NFD", text).casefold()
    folded = unicodedata.normalize("NFKC", folded).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def words_of(text: str) -> list[str]:
    """Words of the normalised text, without punctuation; of Chinese and Japanese, each character."""
    return _WORD.findall(normalised(text))


def grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """All runs of ``n`` words, in order; none where there are fewer words."""
    assert n >= 1, n
    return (tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def digest(words: Sequence[str]) -> int:
    """64 bits that stand for a run of words, the same on every machine."""
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")


def alphabet_share(text: str, alphabet: str) -> float:
    """Share of the text's letters that belong to ``alphabet``, by their Unicode name (LATIN, CYRILLIC, CJK, …).

    1 where there are no letters at all.
    """
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return 1.0
    return sum(_alphabet(character) == alphabet for character in letters) / len(letters)


@lru_cache(maxsize=1 << 14)
def _alphabet(character: str) -> str:
    return unicodedata.name(character, "?").split()[0]


def is_garbled(text: str) -> bool:
    """Whether it holds a character that nobody types: the sign for bytes that are none, controls, unassigned ones."""
    return any(
        c == "\ufffd" or (unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r") for c in text
    )


LONGEST_LOOP = 12
FEWEST_REPEATS = 4
FEWEST_LOOPED = 8


def loops(words: Sequence[str]) -> bool:
    """Whether some run of at most ``LONGEST_LOOP`` words stands ``FEWEST_REPEATS`` times or more in succession, and
    fills ``FEWEST_LOOPED`` words or more.
    """
    for period in range(1, LONGEST_LOOP + 1):
        needed = max(FEWEST_REPEATS * period, FEWEST_LOOPED) - period
        run = 0
        for word, earlier in zip(words[period:], words, strict=False):
            run = run + 1 if word == earlier else 0
            if run >= needed:
                return True
    return False
