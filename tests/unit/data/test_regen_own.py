"""The own engine as a source: exact tokens, the same answers in any batch, cut loops, prompts that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from eyas.config import SamplingSettings
from eyas.corpus.chats import Chat
from eyas.data.regen import own
from eyas.data.regen.own import OwnEngine
from eyas.data.regen.run import LeftOut
from eyas.data.regen.settings import RegenSettings
from eyas.data.regen.source import Ask
from eyas.engine.engine import Engine
from eyas.engine.session import Session, open_session
from eyas.errors import EyasError
from eyas.testing import TINY_PROMPTS, load_tiny_target, tiny_eos_ids, tiny_pair, tiny_prompts
from regen_rigs import prompt, regenerated, user

PROMPTS = [prompt(user(text), id=f"p{i}") for i, text in enumerate(TINY_PROMPTS)]
TWO_TURNS = [prompt(user(text), user(TINY_PROMPTS[i - 1]), id=f"t{i}") for i, text in enumerate(TINY_PROMPTS[:4])]


@pytest.fixture(scope="module")
def session() -> Session:
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair()[0])
    return Session(load_tiny_target(), None, tokenizer, tuple(tiny_eos_ids()))


def run(
    folder: Path, session: Session, prompts: list = PROMPTS, batch: int = 4, **settings: object
) -> tuple[list[Chat], list[LeftOut]]:
    wanted = RegenSettings(**{"max_new_tokens": 100, **settings})
    source = OwnEngine(session, {}, wanted, batch)
    done = regenerated(folder, prompts, source, wanted)
    assert source.tokens == sum(len(a.token_ids or ()) for chat in done[0] for a in chat.answers)
    return done


def test_answers_are_those_of_plain_decoding_with_the_seed_that_is_told(tmp_path: Path, session: Session) -> None:
    chats, _ = run(tmp_path, session, temperatures=(0.0, 0.9), top_p=0.95)
    engine = Engine(session.target, eos_ids=session.eos_ids)
    for chat in chats:
        answer = chat.answers[0]
        sampling = SamplingSettings(max_new_tokens=100)
        if answer.temperature:
            assert answer.seed is not None
            sampling = SamplingSettings(max_new_tokens=100, temperature=0.9, top_p=0.95, seed=answer.seed)
        request = engine.submit(tiny_prompts()[int(chat.prompt_id[1:])], sampling)
        engine.run()
        assert answer.token_ids == tuple(request.answer)
        assert answer.finish == request.finished
        text = session.tokenizer.decode([t for t in request.answer if t not in session.eos_ids])
        assert chat.messages[-1] == {"role": "assistant", "content": text}
    assert sum(chat.answers[0].finish == "stop" for chat in chats) >= 8


def test_the_batch_changes_nothing(tmp_path: Path, session: Session) -> None:
    one, _ = run(tmp_path / "one", session, TWO_TURNS, batch=1, temperatures=(0.0, 1.0))
    many, _ = run(tmp_path / "many", session, TWO_TURNS, batch=8, temperatures=(0.0, 1.0))
    assert one == many
    assert [len(chat.answers) for chat in one].count(2) >= 4


def test_a_later_turn_is_answered_in_its_own_context_and_finds_the_rows_of_the_first(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = []
    submit = Engine.submit

    def noted(self: Engine, *args: object) -> object:
        submitted.append(submit(self, *args))  # type: ignore[arg-type]
        return submitted[-1]

    monkeypatch.setattr(Engine, "submit", noted)
    chats, _ = run(tmp_path, session, TWO_TURNS[:1])
    first, second = submitted
    rendered = session.tokenizer.apply_chat_template(
        list(chats[0].messages[:3]), tokenize=False, add_generation_prompt=True
    )
    assert list(second.prompt) == session.tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert len(second.shared) >= len(first.prompt) + len(first.answer) - 2


def test_a_loop_is_cut_where_it_is_seen_and_its_slots_serve_others(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = run(tmp_path / "whole", session, max_new_tokens=64)
    monkeypatch.setattr(own, "first_repeat", lambda tokens, seen: 32 if len(tokens) == 32 else None)
    cut, _ = run(tmp_path / "cut", session, max_new_tokens=64, batch=2)
    long = 0
    for a, b in zip(whole, cut, strict=True):
        tokens = a.answers[0].token_ids
        assert tokens is not None
        if len(tokens) > 32:
            long += 1
            assert b.answers[0].finish == "repetition"
            assert b.answers[0].token_ids == tokens[:32]
            assert b.messages[-1]["content"] == session.tokenizer.decode(list(tokens[:32]))
        else:
            assert a == b
    assert long >= 2


def test_prompts_that_do_not_fit_are_left_out(tmp_path: Path, session: Session) -> None:
    long = prompt(user("fox " * 5000), id="long")
    wide = prompt(user("fox " * 120), id="wide")
    settings = RegenSettings(max_new_tokens=100)
    source = OwnEngine(session, {}, settings, batch=1, num_slots=150)
    chats, left_out = regenerated(tmp_path, [long, PROMPTS[0], wide], source, settings)
    assert [chat.prompt_id for chat in chats] == ["p0"]
    assert [(one.chat_id, one.why) for one in left_out] == [("long#0", "too-long"), ("wide#0", "too-long")]
    assert "context" in left_out[0].detail
    assert "slots" in left_out[1].detail


def test_a_second_turn_that_does_not_fit_leaves_the_first(tmp_path: Path, session: Session) -> None:
    given = prompt(user(TINY_PROMPTS[0]), user("fox " * 5000))
    chats, left_out = run(tmp_path, session, [given])
    assert len(chats[0].answers) == 1
    assert len(chats[0].messages) == 2
    assert left_out == []


def test_what_the_template_has_no_place_for_is_left_out(tmp_path: Path, session: Session) -> None:
    strict = AutoTokenizer.from_pretrained(tiny_pair()[0])
    strict.chat_template = (
        "{% if messages | length > 2 %}{{ raise_exception('too many') }}{% endif %}" + strict.chat_template
    )
    chats, left_out = run(tmp_path, replace(session, tokenizer=strict), [TWO_TURNS[0], PROMPTS[0]])
    assert [len(chat.answers) for chat in chats] == [1, 1]
    shots = prompt(user("a"), {"role": "assistant", "content": "b"}, user("c"), id="s")
    _, left_out = run(tmp_path / "given", replace(session, tokenizer=strict), [shots], keep_given=True)
    assert left_out[0].why == "refused"
    assert "too many" in left_out[0].detail


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}{% endif %}"
)


def thinking_session(session: Session) -> Session:
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair()[0])
    tokenizer.chat_template = THINKING
    return replace(session, tokenizer=tokenizer)


def test_the_template_is_told_whether_to_think(session: Session) -> None:
    thinker = thinking_session(session)
    for thinking, seen in ("on", "<think>"), ("off", "<think></think>"):
        source = OwnEngine(thinker, {}, RegenSettings(thinking=thinking))
        source.submit(Ask("c", (user(),), (), 0.0, 0, thinking == "on"))
        first = source.engine.waiting.peek()
        assert first is not None
        text = thinker.tokenizer.decode(list(first.prompt))
        assert text.endswith(f"assistant\n{seen}")
        source.close()
        assert not source.engine.waiting


def test_a_thinking_mode_that_the_template_has_not_is_refused(session: Session) -> None:
    for one, thinking in (session, "on"), (thinking_session(session), "none"):
        with pytest.raises(EyasError) as error:
            OwnEngine(one, {}, RegenSettings(thinking=thinking))
        assert error.value.code == "rendering.thinking"


@pytest.mark.parametrize(("numerics", "weights"), [("fp32", None), ("bf16", "bfloat16"), ("int8", "int8")])
def test_the_journal_says_in_which_numerics_the_target_answered(numerics: str, weights: str | None) -> None:
    """So that a run does not go on in others."""
    own = OwnEngine(open_session(tiny_pair()[0], None, numerics), {}, RegenSettings())
    assert own.identity().get("weights") == weights
