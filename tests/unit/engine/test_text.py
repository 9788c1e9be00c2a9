"""Text of an answer: whole characters, stop strings anywhere, the same however the tokens come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from eyas.engine.text import Fed, TextStream
from eyas.testing import tiny_eos_ids, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
VOCAB = TOKENIZER.get_vocab_size()
EOS = tiny_eos_ids()[0]

some_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=40)
some_text = st.text(alphabet="abc ÄÖ€🦊<|>\n", max_size=30)
some_stops = st.lists(st.text(alphabet="abc €🦊\n", min_size=1, max_size=4), max_size=4)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def whole(stream: TextStream, tokens: list[int], cuts: list[int]) -> tuple[str, list[str], str | None]:
    """(all text, text per token, stop) when fed in pieces."""
    texts: list[str] = []
    borders = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    for begin, end in pairwise(borders):
        fed = stream.feed(tokens[begin:end])
        assert fed.kept == len(fed.texts)
        texts += fed.texts
        if fed.stop is not None:
            assert fed.kept <= end - begin
            break
        assert fed.kept == end - begin
    return "".join(texts) + stream.end(), texts, stream.stopped


def first_stop(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """(end, begin, stop) of the one that is complete first, found letter by letter."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return end, end - len(longest), longest
    return None


@given(some_tokens)
def test_the_text_is_the_tokenizers(tokens):
    assert whole(TextStream(TOKENIZER), tokens, [])[0] == TOKENIZER.decode(tokens, skip_special_tokens=True)
    shown = whole(TextStream(TOKENIZER, skip_special_tokens=False), tokens, [])[0]
    assert shown == TOKENIZER.decode(tokens, skip_special_tokens=False)


@given(some_tokens, st.lists(st.integers(0, 40), max_size=6), some_stops, st.booleans())
def test_how_the_tokens_come_changes_nothing(tokens, cuts, stops, include):
    once = whole(TextStream(TOKENIZER, stops, include), tokens, [])
    assert whole(TextStream(TOKENIZER, stops, include), tokens, cuts) == once
    watching = TextStream(TOKENIZER, stops, include)
    kept = watching.watch(tokens)
    assert (kept is None) == (watching.stopped is None)
    assert ("".join(watching.take()) + watching.end(), watching.stopped) == (once[0], once[2])
    assert watching.take() == []


@settings(max_examples=300)
@given(some_text, some_stops)
@example("ab🦊c", ["🦊"])
@example("xabc", ["abc", "bc"])
@example("abab€", ["aba", "b€"])
def test_the_stop_that_is_complete_first_ends_the_text(text, stops):
    tokens = ids(text)
    text = TOKENIZER.decode(tokens, skip_special_tokens=True)
    found = first_stop(text, stops)
    got, texts, stopped = whole(TextStream(TOKENIZER, stops), tokens, [])
    if found is None:
        assert (got, stopped, len(texts)) == (text, None, len(tokens))
        return
    end, begin, stop = found
    assert (got, stopped) == (text[:begin], stop)
    assert whole(TextStream(TOKENIZER, stops, include_stop=True), tokens, [])[0] == text[:end]
    kept = next(n for n in range(1, len(tokens) + 1) if TOKENIZER.decode(tokens[:n]).startswith(text[:end]))
    assert len(texts) == kept, "the token that completes it is the last"


@given(some_text, some_stops)
def test_no_more_is_held_back_than_could_be_a_stop(text, stops):
    tokens, stream, given_text = ids(text), TextStream(TOKENIZER, stops), ""
    for n, token in enumerate(tokens, start=1):
        given_text += "".join(stream.feed([token]).texts)
        if stream.stopped is not None:
            return
        so_far = TOKENIZER.decode(tokens[:n]).rstrip("\ufffd")
        assert so_far.startswith(given_text)
        held = so_far[len(given_text) :]
        assert len(held) < max(map(len, stops), default=1)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_half_a_character_waits_for_its_other_half():
    tokens = ids("🦊!")
    assert len(tokens) > 2, "the tiny tokenizer spells it in bytes"
    texts = TextStream(TOKENIZER).feed(tokens).texts
    assert [text for text in texts if text] == ["🦊", "!"]
    stream = TextStream(TOKENIZER)
    assert "".join(stream.feed(tokens[:2]).texts) == ""
    assert stream.end() == "\ufffd"


def test_wrong_bytes_are_not_held_back_for_ever():
    byte = ids("🦊")[0]
    stream = TextStream(TOKENIZER)
    texts = stream.feed([byte] * 20).texts
    assert 20 - len("".join(texts)) <= 3
    assert "".join(texts) + stream.end() == TOKENIZER.decode([byte] * 20)


@given(st.lists(st.integers(0, 255), min_size=100, max_size=260), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_what_never_comes_to_a_whole_character_is_looked_at_in_short_windows(choice, kind):
    first = TOKENIZER.decode(ids("🦊")[:1])
    assert first == "\ufffd"
    broken = ids("🦊")[: 1 + kind % 3]
    tokens = [broken[number % len(broken)] for number in choice]
    stream, widest = TextStream(TOKENIZER), 0
    texts = []
    for token in tokens:
        texts += stream.feed([token]).texts
        widest = max(widest, len(stream._characters._window))
    assert widest <= 80
    assert "".join(texts) + stream.end() == TOKENIZER.decode(tokens)


def test_a_stop_string_over_a_half_character_is_found_in_its_own_token():
    after = ids("stop🦊")
    stream = TextStream(TOKENIZER, ["stop"])
    fed = stream.feed(after)
    assert fed.stop == "stop"
    assert TOKENIZER.decode(after[: fed.kept]).startswith("stop")
    assert stream.feed(after) == Fed(0, [], "stop"), "nothing comes after it"


def test_special_and_silent_tokens_have_no_text():
    tokens = [*ids("a"), EOS, *ids("b")]
    assert TextStream(TOKENIZER).feed(tokens).texts == ["a", "", "b"]
    shown = TextStream(TOKENIZER, skip_special_tokens=False)
    assert shown.feed(tokens).texts == ["a", "<|im_end|>", "b"]
    assert TextStream(TOKENIZER, skip_special_tokens=False, silent=[EOS]).feed(tokens).texts == ["a", "", "b"]


def byte_fallback() -> Tokenizer:
    """A tokenizer of SentencePiece's kind: ▁ for a space, stripped at the beginning; bytes of what it does not know."""
    pieces = {"<unk>": 0, "▁a": 1, "b": 2} | {f"<0x{i:02X}>": 3 + i for i in range(256)}
    tokenizer = Tokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@pytest.mark.parametrize("tokens", [[1, 1, 2, 1], [1, *(3 + b for b in "€".encode()), 1], [1, 3 + 0xE2, 3 + 0x82, 1]])
def test_a_beginning_that_reads_otherwise_is_kept_apart(tokens):
    tokenizer = byte_fallback()
    assert whole(TextStream(tokenizer), tokens, [])[0] == tokenizer.decode(tokens)


def test_a_decoder_that_changes_its_mind_takes_nothing_back():
    tokens = [1, *(3 + b for b in "€".encode()), 3 + 0xFF, 2, 1]
    tokenizer = byte_fallback()
    assert tokenizer.decode(tokens).startswith("a\ufffd"), "it takes the euro sign back"
    text = whole(TextStream(tokenizer), tokens, [])[0]
    assert text.startswith("a€")
    assert text.endswith("b a")
