"""Texts that say again what an earlier one said: exactly, or nearly."""

from __future__ import annotations

from datasketch import MinHash, MinHashLSH

from eyas.data.words import digest, grams, normalised, words_of

SHINGLE = 3
"""Words in the runs that two texts are compared by."""
PERMUTATIONS = 128
DEFAULT_THRESHOLD = 0.7
_SEED = 1


def shingles(text: str) -> frozenset[int]:
    """Digests of all runs of ``SHINGLE`` words; of a shorter text, of all its words together."""
    words = words_of(text)
    return frozenset(map(digest, grams(words, min(SHINGLE, max(len(words), 1))))) or frozenset((digest(words),))


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Share of what two sets hold together that both hold."""
    return len(a & b) / len(a | b) if a or b else 1.0


class ExactDuplicates:
    """Texts that were added, up to letter case and white space."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}

    def find(self, text: str) -> str | None:
        """The key of the text that was added and says the same, or None."""
        return self._keys.get(digest((normalised(text),)))

    def add(self, key: str, text: str) -> None:
        """Remember a text under ``key``; the first one of the same text counts."""
        self._keys.setdefault(digest((normalised(text),)), key)


class NearDuplicates:
    """Texts that were added, found again by any text whose Jaccard similarity of word 3-grams is at least
    ``threshold``.

    Candidates come from MinHash with locality-sensitive hashing (Broder 1997), and each is compared by its true
    similarity: what is found is near for certain; a pair just at the threshold may be overlooked, always the same one,
    because all hashes are fixed. One added text takes about 8 kB and 8 bytes a word.
    """

    def __init__(self, threshold: float = DEFAULT_THRESHOLD) -> None:
        """``threshold``: 0 < threshold ≤ 1."""
        assert 0 < threshold <= 1, threshold
        self.threshold = threshold
        # A lower threshold of the hashing finds more candidates, of which the true similarity keeps the right ones.
        self._lsh = MinHashLSH(threshold=max(0.85 * threshold, 0.01), num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        self._sets: dict[str, tuple[int, frozenset[int]]] = {}

    def find(self, text: str) -> str | None:
        """The key of the nearest text that was added, the first of equally near ones; None if none is near."""
        own = shingles(text)
        near = []
        for key in self._lsh.query(_sketch(own)):
            place, other = self._sets[key]
            similarity = jaccard(own, other)
            if similarity >= self.threshold:
                near.append((-similarity, place, key))
        return min(near)[2] if near else None

    def add(self, key: str, text: str) -> None:
        """Remember a text under a ``key`` that no other has."""
        assert key not in self._sets, key
        own = shingles(text)
        self._sets[key] = (len(self._sets), own)
        self._lsh.insert(key, _sketch(own))


def _sketch(values: frozenset[int]) -> MinHash:
    sketch = MinHash(num_perm=PERMUTATIONS, seed=_SEED)
    sketch.update_batch([value.to_bytes(8, "big") for value in sorted(values)])
    return sketch
