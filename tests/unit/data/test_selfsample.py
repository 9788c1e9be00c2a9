"""Self-sampling on the tiny target, which was trained on user turns, too."""

import json
import re

import pytest

from eyas.data import selfsample
from eyas.data.draws import Draw, DrawJournal
from eyas.data.filters import FilterSettings, Sieve, rules_for
from eyas.data.selfsample import Openings, SelfSampleSettings, UserSampler, sample_prompts
from eyas.data.surprise import mean_surprise
from eyas.data.user_turn import cut_user_turn
from eyas.engine.session import open_session
from eyas.errors import EyasError
from eyas.testing import tiny_pair

ORIGIN = ("tiny", "CC0-1.0")
NO_OPENINGS = {"words_share": 0.0, "code_share": 0.0}


@pytest.fixture(scope="module")
def session():
    return open_session(tiny_pair()[0], None)


@pytest.fixture
def template(session, monkeypatch):
    """Give the session another chat template."""

    def change(text):
        monkeypatch.setattr(session.tokenizer, "chat_template", text)

    return change


def sampler(session, batch=8, openings=None, **chosen):
    settings = SelfSampleSettings(**{"max_new_tokens": 40, **NO_OPENINGS, **chosen})
    return UserSampler(session, settings, openings or Openings.packaged(), batch)


def sieve(**chosen):
    return Sieve(rules_for(FilterSettings(near_duplicate=None, **chosen), len), lambda draw: draw.text)


def run(session, folder, count=24, stop_after=None, batch=8, **chosen):
    """Sample; with ``stop_after`` as if killed once that many prompts are kept."""

    def progress(what, done, total):
        if done == stop_after:
            raise KeyboardInterrupt

    own = sampler(session, batch, **chosen)
    with DrawJournal(folder, own.depends()) as journal:
        return sample_prompts(own, sieve(), journal, count, ORIGIN, progress)


# Cutting the template.


def test_the_user_turn_is_cut_out_of_the_template(session, template):
    turn = cut_user_turn(session)
    assert (turn.before, turn.end_text) == ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant")
    assert turn.end_ids == (session.eos_ids[0],)
    template("{{ 'Be kind. [INST] ' + messages[0].content + ' [/INST]' }}")
    turn = cut_user_turn(session)
    assert (turn.before, turn.end_text, turn.end_ids) == ("Be kind. [INST]", "[/INST]", ())
    template("U: {{ messages[0].content }}<|im_end|>{% if enable_thinking %}<think>{% endif %}A:")
    assert cut_user_turn(session).end_text == "<|im_end|>A:"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("U: {{ messages[0].content }} again {{ messages[0].content }} A:", "2 times"),
        ("U: {{ messages[0].content | upper }} A:", "0 times"),
        ("{{ messages[0].content | length }} U: {{ messages[0].content }} A:", "depends on them"),
        ("{{ messages[0].content }}<|im_end|>", "at their end only"),
        ("U: {{ messages[0].content }}\n", "at their beginning only"),
    ],
)
def test_a_template_that_cannot_be_cut_is_refused(session, template, text, said):
    template(text)
    with pytest.raises(EyasError) as caught:
        cut_user_turn(session)
    assert caught.value.code == "rendering.user-turn"
    assert said in caught.value.cause


# Drawing.


def test_the_target_asks_what_it_was_trained_to_be_asked(session, tmp_path):
    made = run(session, tmp_path)
    assert len(made.prompts) == 24
    assert made.draws == 24 + sum(made.dropped.values())
    first = made.prompts[0]
    assert (first.source, first.licence, first.domain) == ("self-sampled:tiny", "CC0-1.0", "chat")
    known = re.compile(r"(Tell|How do I|Write a story|Count from|Where does|Give me|What is)\b.*[.?]")
    assert all(known.fullmatch(prompt.user_turns[0]) for prompt in made.prompts)
    assert len({prompt.user_turns[0] for prompt in made.prompts}) > 12, "each turn has a seed of its own"


def test_neither_the_batch_nor_a_kill_nor_the_count_changes_a_prompt(session, tmp_path):
    whole = run(session, tmp_path / "a", 24)
    assert run(session, tmp_path / "b", 24, batch=3) == whole
    for stop in (1, 9, 17):
        with pytest.raises(KeyboardInterrupt):
            run(session, tmp_path / "c", 24, stop_after=stop)
    drawn = (tmp_path / "c" / "draws.jsonl").read_bytes()
    assert run(session, tmp_path / "c", 24) == whole
    lines = (tmp_path / "c" / "draws.jsonl").read_bytes()
    assert lines.startswith(drawn)
    indices = [json.loads(line)["index"] for line in lines.splitlines()[1:]]
    assert sorted(set(indices)) == sorted(indices)
    assert run(session, tmp_path / "a", 10).prompts == whole.prompts[:10]
    assert run(session, tmp_path / "a", 30).prompts[:24] == whole.prompts


def test_another_seed_draws_other_prompts(session, tmp_path):
    one, two = (run(session, tmp_path / str(seed), 12, seed=seed) for seed in (0, 1))
    assert [p.user_turns for p in one.prompts] != [p.user_turns for p in two.prompts]
    assert not {p.id for p in one.prompts} & {p.id for p in two.prompts}
    with pytest.raises(EyasError, match=r"prompts.settings"):
        run(session, tmp_path / "0", 12, seed=1)


def test_the_batch_is_kept_full(session):
    own, indices = sampler(session, batch=4), iter(range(1000))
    ended, steps = 0, 0
    while ended < 12:
        ended += len(own.step(indices))
        steps += 1
        # What ended leaves its place for the next step; drained batches would leave more and more of them.
        assert own.engine.running
        assert len(own.running) == next(indices) - ended - (steps - 1)
    own.close()
    assert not own.engine.running


def test_openings_begin_the_turn_and_say_its_domain(session, tmp_path):
    openings = Openings(words=("Count",), code=("Give me a",))
    own = sampler(session, openings=openings, words_share=0.5, code_share=0.3)
    draws, indices = [], iter(range(60))
    while len(draws) < 60:
        draws += own.step(indices)
    kinds = [draw.opening for draw in draws]
    assert {kind: kinds.count(kind) > 5 for kind in set(kinds)} == {"none": True, "words": True, "code": True}
    begun = {"words": "Count from ", "code": "Give me a recipe", "none": ""}
    usable = [draw for draw in draws if draw.unusable is None]
    assert sum(draw.text.startswith(begun[draw.opening]) for draw in usable) > 0.8 * len(usable)
    with DrawJournal(tmp_path, own.depends()) as journal:
        made = sample_prompts(own, sieve(), journal, 20, ORIGIN)
    assert {prompt.domain for prompt in made.prompts if prompt.user_turns[0].startswith("Give me a")} >= {"code"}


def test_the_packaged_openings_spread_over_both_kinds():
    own, settings = Openings.packaged(), SelfSampleSettings()
    drawn = [own.of(settings, index) for index in range(2000)]
    assert len({text for _, text in drawn}) == 1 + len(own.words) + len(own.code)
    assert drawn == [own.of(settings, index) for index in range(2000)]


# What is no prompt.


def test_turns_that_do_not_end_and_strange_tokens_are_unusable(session):
    own = sampler(session, max_new_tokens=3)
    (draw,) = drawn(own, 1)
    assert draw.unusable == "unended"
    other = sampler(session)
    other.turn = type(other.turn)(other.turn.before, "a text that nobody says", ())
    assert drawn(other, 1)[0].unusable == "unended"
    strange = sampler(session)
    strange._special = ["e"]
    assert drawn(strange, 1)[0].unusable == "special-token"


def test_a_turn_that_ends_by_plain_text_is_cut_there(session):
    own = sampler(session)
    own.turn = type(own.turn)(own.turn.before, "the", ())
    texts = [draw.text for draw in drawn(own, 40) if draw.unusable is None]
    assert texts
    assert all("the" not in text for text in texts)


def test_a_text_that_decodes_otherwise_with_what_follows_is_unusable(session, monkeypatch):
    own = sampler(session)
    monkeypatch.setattr(own, "_decode", lambda ids: f"{len(ids)}")
    assert drawn(own, 1)[0].unusable == "undecodable"


def drawn(own, number) -> list[Draw]:
    draws, indices = [], iter(range(number))
    while len(draws) < number:
        draws += own.step(indices)
    return draws


def test_a_target_that_hardly_says_anything_usable_is_given_up(session, tmp_path, monkeypatch):
    monkeypatch.setattr(selfsample, "PATIENCE", 20)
    own = sampler(session)
    rules = rules_for(FilterSettings(shortest_tokens=900), len)
    with DrawJournal(tmp_path, own.depends()) as journal, pytest.raises(EyasError) as caught:
        sample_prompts(own, Sieve(rules, lambda draw: draw.text), journal, 5, ORIGIN)
    assert caught.value.code == "prompts.too-few"
    assert "too-short" in caught.value.cause
    assert len(journal.draws) >= 20


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"words_share": 0.7, "code_share": 0.4}, "flags.contradiction"),
        ({"temperature": 0.0}, "flags.range"),
        ({"temperature": 1e-9}, "request.sampling"),
        ({"top_p": 0.0}, "flags.range"),
    ],
)
def test_settings_that_cannot_be_are_refused(chosen, code):
    with pytest.raises(EyasError) as caught:
        SelfSampleSettings(**chosen)
    assert caught.value.code == code


def test_an_empty_batch_is_refused(session):
    with pytest.raises(EyasError, match=r"flags.range"):
        sampler(session, batch=0)


# Surprise.


def test_surprise_is_the_mean_over_the_words_alone(session):
    before, said = (list(session.tokenizer(t)["input_ids"]) for t in ("<|im_start|>user\n", "Tell me about the fox."))
    known = mean_surprise(session.target, before, said)
    one = [mean_surprise(session.target, [*before, *said[:i]], said[i : i + 1]) for i in range(len(said))]
    assert known == pytest.approx(sum(one) / len(one), abs=1e-4)
    assert mean_surprise(session.target, before, said[::-1]) > known + 2
