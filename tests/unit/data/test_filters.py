import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.corpus.prompts import Prompt
from eyas.data.duplicates import ExactDuplicates, NearDuplicates, jaccard, shingles
from eyas.data.filters import FilterSettings, Rule, Sieve, rules_for
from eyas.data.language import language_of
from eyas.data.overlap import SHORTEST, Evaluation, evaluation_texts
from eyas.data.words import (
    FEWEST_LOOPED,
    FEWEST_REPEATS,
    alphabet_share,
    grams,
    is_garbled,
    loops,
    normalised,
    words_of,
)
from eyas.errors import EyasError

WORDS = [f"w{i}" for i in range(12)]
texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)


# Words.


@settings(deadline=None)
@given(st.text())
def test_normalising_is_done_once(text):
    once = normalised(text)
    assert normalised(once) == once
    assert words_of(once) == words_of(text)


@settings(deadline=None)
@given(st.text(), st.sampled_from([str.upper, str.swapcase, lambda t: f" {t}\n\t", lambda t: t.replace(" ", "  ")]))
def test_case_and_white_space_tell_nothing_apart(text, change):
    plain = "".join(c for c in text if c.upper().lower() == c.lower())
    assert normalised(change(plain)) == normalised(plain)


def test_words_are_letters_and_digits_and_single_characters_of_scripts_without_spaces():
    assert words_of("Don't  STOP—Ａb_1, 日本のnet!") == ["don", "t", "stop", "ab_1", "日", "本", "の", "net"]
    assert list(grams("abcd", 3)) == [("a", "b", "c"), ("b", "c", "d")]
    assert list(grams("ab", 3)) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_loops_are_what_a_slow_look_finds(words):
    def slow():
        for period in range(1, 13):
            for begin in range(len(words)):
                for end in range(begin + max(FEWEST_REPEATS * period, FEWEST_LOOPED), len(words) + 1):
                    piece = words[begin:end]
                    if all(piece[i] == piece[i % period] for i in range(len(piece))):
                        return True
        return False

    assert loops(list(map(str, words))) == slow()


@pytest.mark.parametrize(
    ("text", "looped"), [("ha " * 8, True), ("ha " * 7, False), ("a b c " * 4, True), ("a b c " * 3 + "a b d", False)]
)
def test_a_loop_needs_four_turns_and_eight_words(text, looped):
    assert loops(text.split()) is looped


def test_alphabets_and_garbage():
    assert alphabet_share("abc éß 123!", "LATIN") == 1
    assert alphabet_share("ab где", "LATIN") == pytest.approx(2 / 5)
    assert alphabet_share("123 !?", "CYRILLIC") == 1
    assert alphabet_share("漢字", "CJK") == 1
    assert not is_garbled("Line one\n\tline two 🦅 é")
    assert all(is_garbled(f"a{c}b") for c in ("\ufffd", "\x00", "\x1b", "\ue000"))


# Duplicates.


def test_exact_duplicates_name_the_first():
    known = ExactDuplicates()
    assert known.find("Tell me!") is None
    known.add("a", "Tell me!")
    known.add("b", "tell  ME!")
    assert known.find("TELL me!") == "a"
    assert known.find("Tell me?") is None


@settings(deadline=None)
@given(texts, texts)
def test_similarity_is_symmetric_and_one_for_the_same_text(a, b):
    one, two = shingles(a), shingles(b)
    assert jaccard(one, two) == jaccard(two, one)
    assert jaccard(one, one) == 1
    assert 0 <= jaccard(one, two) <= 1


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=8), texts, st.sampled_from([0.3, 0.7, 1.0]))
def test_what_is_found_is_near_and_the_same_text_is_always_found(added, text, threshold):
    known = NearDuplicates(threshold)
    for number, other in enumerate(added):
        known.add(str(number), other)
    found = known.find(text)
    similarities = [jaccard(shingles(text), shingles(other)) for other in added]
    if found is None:
        assert max(similarities) < 1
    else:
        assert similarities[int(found)] >= threshold
    first = known.find(added[0])
    assert first is not None
    assert shingles(added[int(first)]) == shingles(added[0])


def test_near_texts_are_found_among_many_and_others_are_not():
    known = NearDuplicates(0.7)
    base = [
        f"number {i} of a long list of things that differ by {i * i} and {i + 7} apples in basket {i}"
        for i in range(300)
    ]
    for i, text in enumerate(base):
        known.add(str(i), text)
    changed = "please " + " ".join(f"item{i}" for i in range(40))
    known.add("items", changed)
    assert known.find(changed + " thanks") == "items"
    assert known.find(" ".join(f"item{i}" for i in range(0, 40, 2))) is None
    again = NearDuplicates(0.7)
    for i, text in enumerate(base):
        again.add(str(i), text)
    asked = [text.replace("apples", "pears") for text in base[:40]]
    assert [known.find(text) for text in asked] == [again.find(text) for text in asked]


# Overlap with evaluation sets.


def overlaps_by_rule(a, b, n):
    """The rule as it is written, slowly."""
    one, two = words_of(a), words_of(b)
    if not one or not two:
        return False
    size = min(n, len(one), len(two))
    if size < SHORTEST:
        return one == two
    return not set(grams(one, size)).isdisjoint(grams(two, size))


few = st.lists(st.sampled_from("abc"), max_size=14).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(few, max_size=4), few, st.integers(SHORTEST, 9))
def test_overlap_is_the_rule(evaluation, text, n):
    known = Evaluation({str(i): other for i, other in enumerate(evaluation)}, n)
    found = known.find(text)
    expected = [str(i) for i, other in enumerate(evaluation) if overlaps_by_rule(text, other, n)]
    assert (found in expected) if expected else found is None


def test_of_humaneval_its_own_text_counts_and_of_a_chat_each_turn():
    code = Prompt(id="h", messages=({"role": "user", "content": "Complete: def f(x)"},), raw="def f(x)", source="e")
    chat = Prompt(id="m", messages=({"role": "user", "content": "a"}, {"role": "user", "content": "b"}), source="e")
    assert evaluation_texts([code, chat]) == {"e/h/0": "def f(x)", "e/m/0": "a", "e/m/1": "b"}


# Language.


def test_languages_are_told_where_they_can_be():
    assert language_of("Schreibe ein Gedicht über den Herbst") == "de"
    assert language_of("Describe the weather in the mountains and why it changes so quickly.") == "en"
    assert language_of("2 + 2 = ?") is None


# The sieve.


def sieve(evaluation=None, surprise=None, **chosen):
    return Sieve(rules_for(FilterSettings(**chosen), lambda text: len(text.split()), evaluation, surprise), str)


GOOD = "Tell me something about the way that whales sleep."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Too short.", "too-short"),
        ("? ? ? ? ?", "too-short"),
        (" ".join(f"w{i}" for i in range(13)), "too-long"),
        ("one two three four \ufffd", "garbled"),
        ("no no no no no no no no", "repetition"),
        ("скажи мне что это", "alphabet"),
        ("Schreibe ein Gedicht über den Herbst", "language"),
        ("You know that the quick brown fox jumps over it", "evaluation-overlap"),
        (GOOD.upper(), "duplicate"),
        (GOOD.replace("Tell", "Say"), "near-duplicate"),
        ("This text surprises the target far too much.", "surprise"),
        ("What do penguins eat in winter?", None),
    ],
)
def test_each_fault_is_dropped_under_its_own_name(text, reason):
    evaluation = Evaluation({"e": "The quick brown fox jumps over the dog and that the quick brown fox jumps over"}, 7)
    own = sieve(
        evaluation,
        lambda said: 9.0 if "surprises" in said else 1.0,
        longest_tokens=12,
        alphabet="LATIN",
        languages=("en",),
        most_surprise=5.0,
        least_surprise=0.5,
    )
    assert own.reason(GOOD) is None
    assert own.reason(text) == reason
    assert (own.seen, own.kept) == (2, 1 + (reason is None))
    assert {name for name, number in own.reasons.items() if number} == ({reason} if reason else set())


def test_only_what_is_kept_counts_as_earlier():
    own = sieve(None, lambda said: 9.0 if said.endswith("!") else 1.0, most_surprise=5.0)
    assert list(own.keep([GOOD + "!", GOOD, GOOD])) == [GOOD]
    assert (own.reasons["surprise"], own.reasons["duplicate"]) == (1, 1)


@settings(deadline=None)
@given(st.lists(texts, max_size=12))
def test_counts_add_up(items):
    own = sieve(shortest_tokens=2, longest_tokens=20)
    kept = list(own.keep(items))
    assert own.kept == len(kept) == len({normalised(text) for text in kept})
    assert own.seen == len(items) == own.kept + sum(own.reasons.values())


def test_filters_that_are_off_are_not_there():
    own = sieve(near_duplicate=None)
    assert list(own.reasons) == ["too-short", "too-long", "garbled", "repetition", "duplicate"]
    assert list(Sieve((Rule("odd", lambda text: len(text) % 2 == 1),), str).keep(["a", "bb"])) == ["bb"]


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"shortest_tokens": 9, "longest_tokens": 8}, "flags.contradiction"),
        ({"least_surprise": 2.0, "most_surprise": 1.0}, "flags.contradiction"),
        ({"alphabet": "latin"}, "flags.range"),
        ({"languages": ("english",)}, "flags.range"),
        ({"near_duplicate": 1.5}, "flags.range"),
        ({"shortest": 3}, "flags.unknown"),
    ],
)
def test_settings_that_cannot_be_are_refused(chosen, code):
    with pytest.raises(EyasError) as caught:
        FilterSettings(**chosen)
    assert caught.value.code == code
