from hypothesis import given
from hypothesis import strategies as st

from eyas.speculate.ngram import NgramIndex, propose_ngram

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def by_scanning(tokens: list[int], max_ngram: int, min_ngram: int, k: int) -> list[int]:
    for n in range(min(max_ngram, len(tokens)), min_ngram - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                for i in range(k):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


@given(TEXT, st.integers(1, 5), st.integers(1, 5), st.integers(0, 8))
def test_equals_a_scan_of_the_text(tokens: list[int], a: int, b: int, k: int) -> None:
    tree = propose_ngram(tokens, max(a, b), min(a, b), k)
    assert tree.is_chain
    assert list(tree.tokens) == [tokens[-1], *by_scanning(tokens, max(a, b), min(a, b), k)]


@given(TEXT, TEXT)
def test_appending_equals_building_anew(head: list[int], tail: list[int]) -> None:
    index = NgramIndex(3, 1, head)
    for i, token in enumerate(tail):
        index.append(token)
        assert index.propose(4) == propose_ngram(head + tail[: i + 1], 3, 1, 4)


def test_longest_then_most_recent() -> None:
    assert propose_ngram([1, 2, 9, 5, 2, 8, 1, 2], 3, 1, 1).tokens == (2, 9)  # [1, 2] beats the later [2]
    assert propose_ngram([1, 2, 9, 1, 2, 8, 1, 2], 3, 1, 2).tokens == (2, 8, 1)
    assert propose_ngram([1, 2, 9, 5, 2, 8, 3, 2], 3, 2, 4).tokens == (2,)


def test_a_repeating_text_goes_on_repeating() -> None:
    assert propose_ngram([4, 5, 6, 4, 5, 6], 3, 1, 7).tokens == (6, 4, 5, 6, 4, 5, 6, 4)
