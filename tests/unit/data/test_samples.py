"""Chats → samples: what is cut, what is left out, and that the account tells of both."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eyas.contract import ContractFacts, Rendering
from eyas.corpus.chats import Answer, Chat
from eyas.corpus.rendering import Renderer
from eyas.corpus.samples import LOSS_MASK_RULE, read_samples, write_samples
from eyas.data.regen.journal import NAME as JOURNAL
from eyas.data.regen.journal import Header
from eyas.data.regen.settings import Identity, RegenSettings
from eyas.data.samples import (
    CHATS,
    NOTHING_TO_TRAIN,
    account_path,
    build_samples,
    open_chats,
    origin_facts,
    read_account,
    rendering_for,
    write_account,
)
from eyas.errors import EyasError
from eyas.testing import tiny_pair
from support.chat_templates import LLAMA3, QWEN3, templated
from support.chats import PLAIN, tiny_chat, tiny_renderer

KNOWN = ContractFacts(weights_sha256="a" * 64, tokenizer_sha256="b" * 64, chat_template_sha256="c" * 64)


def two_turns() -> Chat:
    first = tiny_chat(0)
    more = ({"role": "user", "content": "And the cat?"}, {"role": "assistant", "content": "The cat sleeps."})
    second = Answer(message=3, token_ids=None, finish="stop", temperature=0.8, seed=1)
    return first.model_copy(update={"messages": first.messages + more, "answers": (*first.answers, second)})


def test_samples_and_their_facts():
    chats = [tiny_chat(0), tiny_chat(1, temperature=0.8, source="other", licence="MIT", domain="code")]
    made, account = build_samples(chats, tiny_renderer(), KNOWN, 512)
    assert [s.id for s in made.samples] == ["c0", "c1"]
    assert [s.temperature for s in made.samples] == [0.0, 0.8]
    assert made.facts.tokenizer_sha256 == "b" * 64
    assert made.facts.target_weights_sha256 == "a" * 64
    assert made.facts.rendering == PLAIN
    assert made.facts.loss_mask_rule == LOSS_MASK_RULE
    assert [(s.name, s.licence) for s in made.facts.sources] == [("made", "Apache-2.0"), ("other", "MIT")]
    assert (account.chats, account.answers, account.cut_answers, account.dropped) == (2, 2, 0, {})
    assert account.sources == {"made": 1, "other": 1}
    (run,) = tiny_renderer().chat_tokens(chats[0])
    assert made.samples[0].tokens.tolist() == run.tokens
    assert made.samples[0].answers == tuple(run.answers)


def test_what_is_longer_than_the_limit_loses_its_end():
    whole = build_samples([two_turns()], tiny_renderer(), KNOWN, 512)[0].samples[0]
    (_, end), (begin, _) = whole.answers
    assert math.isnan(whole.temperature), "0 and 0.8"
    for limit, spans, truncated in (
        (len(whole.tokens), whole.answers, ()),
        (begin + 3, (whole.answers[0], (begin, begin + 3)), ("c0",)),
        (begin, whole.answers[:1], ("c0",)),
        (end - 1, ((whole.answers[0][0], end - 1),), ("c0",)),
    ):
        made, account = build_samples([two_turns()], tiny_renderer(), KNOWN, limit)
        assert made.samples[0].answers == spans
        assert np.array_equal(made.samples[0].tokens, whole.tokens[: spans[-1][1]])
        assert account.truncated == truncated
        assert account.cut_answers == 0, "cut by us, not by the target"


def test_nothing_left_to_train_on():
    chats = [tiny_chat(0), tiny_chat(1, "x" * 90), tiny_chat(2, answers=())]
    starts = [tiny_renderer().chat_tokens(chat)[0].answers[0][0] for chat in chats[:2]]
    with pytest.raises(EyasError) as caught:
        build_samples(chats, tiny_renderer(), KNOWN, min(starts) + 1)
    assert caught.value.code == "samples.no-answers"
    made, account = build_samples(chats, tiny_renderer(), KNOWN, 512)
    assert len(made.samples) == 2
    assert account.dropped == {NOTHING_TO_TRAIN: 1}
    with pytest.raises(EyasError) as caught:
        build_samples(chats, tiny_renderer(), KNOWN, 2)
    assert caught.value.code == "flags.range"
    with pytest.raises(EyasError) as caught:
        build_samples([], tiny_renderer(), KNOWN, 512)
    assert caught.value.code == "samples.no-answers"


def test_chats_that_cannot_be_rendered_are_counted_with_a_cause():
    system = {"role": "system", "content": "Be brief."}
    bad = tiny_chat(1)
    shifted = bad.answers[0].model_copy(update={"message": 2})
    bad = bad.model_copy(update={"messages": (system, *bad.messages), "answers": (shifted,)})
    made, account = build_samples([tiny_chat(0), bad], tiny_renderer(), KNOWN, 512)
    assert [s.id for s in made.samples] == ["c0"]
    assert account.dropped == {"rendering.system-prompt": 1}
    assert "Be brief." in account.examples["rendering.system-prompt"]
    with pytest.raises(EyasError) as caught:
        build_samples([bad], tiny_renderer(), KNOWN, 512)
    assert caught.value.code == "rendering.system-prompt"
    assert "none of 1 chats" in caught.value.cause


def test_cut_answers_are_marked():
    made, account = build_samples([tiny_chat(0, finish="length"), tiny_chat(1)], tiny_renderer(), KNOWN, 512)
    assert (account.answers, account.cut_answers) == (2, 1)
    ends = [int(s.tokens[s.answers[-1][1] - 1]) in account.eos_ids for s in made.samples]
    assert ends == [False, True]


def test_a_chat_whose_history_is_rewritten_becomes_several_samples_of_one_prompt():
    tokenizer, end = templated(tiny_pair()[0], QWEN3)
    off = Rendering(thinking="off", system_prompt="none", system_prompt_text=None)
    made, account = build_samples([two_turns()], Renderer(tokenizer, off, (end,)), KNOWN, 512)
    assert [s.id for s in made.samples] == ["c0/1", "c0/3"]
    assert {s.prompt_id for s in made.samples} == {"p0"}
    assert [s.temperature for s in made.samples] == [0.0, 0.8]
    assert account.rewritten == 1


def test_the_system_prompts_of_the_chats_decide_the_rendering():
    system = tiny_chat(0)
    system = system.model_copy(update={"messages": ({"role": "system", "content": "x"}, *system.messages)})
    assert rendering_for([tiny_chat(0)], "none", None).system_prompt == "none"
    assert rendering_for([tiny_chat(0), system], "off", None).system_prompt == "per-conversation"
    assert rendering_for([tiny_chat(0)], "none", "Be brief.").system_prompt_text == "Be brief."
    with pytest.raises(EyasError) as caught:
        rendering_for([], "loud", None)
    assert caught.value.code == "flags.range"


def test_the_account_belongs_to_its_samples(tmp_path):
    path = tmp_path / "samples.npz"
    made, account = build_samples([tiny_chat(0), tiny_chat(1)], tiny_renderer(), KNOWN, 512)
    write_samples(path, made)
    assert read_account(path) is None
    write_account(path, account)
    read = read_account(path)
    assert read is not None
    assert read.model_copy(update={"samples_sha256": None}) == account
    assert len(read_samples(path).samples) == 2
    other, _ = build_samples([tiny_chat(0)], tiny_renderer(), KNOWN, 512)
    write_samples(path, other)
    for damage in (lambda: None, lambda: account_path(path).write_text("{}")):
        damage()
        with pytest.raises(EyasError) as caught:
            read_account(path)
        assert caught.value.code == "artifact.corrupt"


def test_a_template_with_its_own_system_prompt_is_part_of_every_sample():
    tokenizer, end = templated(tiny_pair()[0], LLAMA3)
    made, _ = build_samples([tiny_chat(0)], Renderer(tokenizer, PLAIN, (end,)), KNOWN, 512)
    assert "Today Date: 26 Jul 2024" in tokenizer.decode(made.samples[0].tokens.tolist())


def regenerated(folder, chats, **source):
    settings = RegenSettings(temperatures=(0.0,), thinking="off")
    folder.mkdir(exist_ok=True)
    (folder / CHATS).write_text("".join(chat.to_line() + "\n" for chat in chats), encoding="utf-8")
    header = Header(identity=Identity.of(settings, source))
    (folder / JOURNAL).write_text(header.model_dump_json() + "\n", encoding="utf-8")
    return folder


def test_regenerated_chats_tell_which_target_answered(tmp_path):
    hashes = KNOWN.model_dump(exclude_unset=True)
    folder = regenerated(tmp_path / "chats", [tiny_chat(0)], kind="engine", **hashes)
    model = ContractFacts(tokenizer_sha256="b" * 64, chat_template_sha256="c" * 64)
    for path in (folder, folder / CHATS):
        read = open_chats(path)
        assert [chat.id for chat in read.chats] == ["c0"]
        assert read.identity is not None
        assert read.identity.thinking == "off"
        assert origin_facts(read.identity, model) == KNOWN
    elsewhere = open_chats((folder / CHATS).rename(tmp_path / "moved.jsonl"))
    assert elsewhere.identity is None
    assert origin_facts(None, model).weights_sha256 is None
    served = open_chats(regenerated(folder, [tiny_chat(0)], kind="server", model="m"))
    assert origin_facts(served.identity, model).weights_sha256 is None


@pytest.mark.parametrize("field", ["tokenizer_sha256", "chat_template_sha256"])
def test_answers_of_another_tokenizer_or_template_are_refused(tmp_path, field):
    read = open_chats(regenerated(tmp_path, [tiny_chat(0)], **KNOWN.model_dump(exclude_unset=True)))
    with pytest.raises(EyasError) as caught:
        origin_facts(read.identity, KNOWN.model_copy(update={field: "d" * 64}))
    assert caught.value.code == "features.origin"
    assert "dddddddd" in caught.value.cause


def test_a_damaged_journal_and_missing_chats_are_named(tmp_path):
    (regenerated(tmp_path / "a", [tiny_chat(0)]) / JOURNAL).write_text("{}\n")
    (tmp_path / "b").mkdir()
    for name, code in (("a", "artifact.corrupt"), ("b", "artifact.missing"), ("c.jsonl", "artifact.missing")):
        with pytest.raises(EyasError) as caught:
            open_chats(tmp_path / name)
        assert caught.value.code == code


def test_a_source_or_licence_that_nobody_names_is_unknown():
    made, account = build_samples([tiny_chat(0, source="", licence="")], tiny_renderer(), KNOWN, 512)
    assert [(s.name, s.licence) for s in made.facts.sources] == [("unknown", "unknown")]
    assert account.sources == {"unknown": 1}
