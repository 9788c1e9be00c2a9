"""Samples: the loss-mask rule, cutting, splitting by prompt, and a file that reads back as itself or is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.corpus.chats import read_chats
from eyas.corpus.samples import (
    Sample,
    SampleSet,
    is_held_out,
    read_samples,
    split,
    trained_slots,
    write_samples,
)
from eyas.errors import EyasError
from train_rig import FACTS, tiny_samples


def sample(length: int, *answers: tuple[int, int], name: str = "a", prompt: str = "p") -> Sample:
    return Sample(name, prompt, "domain", np.arange(length, dtype=np.int32), answers, 0.8)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4), st.integers(0, 6))
def test_a_step_is_trained_iff_all_its_tokens_lie_in_one_answer(parts, step):
    answers, at = [], 0
    for gap, length in parts:
        answers.append((at + gap, at + gap + length))
        at += gap + length
    made = sample(at + 1, *answers)
    expected = [t for t in range(at + 1) if any(begin <= t + 1 and t + 2 + step < end for begin, end in answers)]
    for segments in (made.segments(), torch.from_numpy(made.segments())):
        slots = trained_slots(segments, step)
        assert np.flatnonzero(np.asarray(slots)).tolist() == expected
    assert made.is_trainable == bool(len(np.flatnonzero(trained_slots(made.segments(), 0))))


def test_answers_of_single_tokens_train_nothing():
    assert not sample(12, (5, 6), (10, 11)).is_trainable


def test_cutting_takes_the_end_of_an_answer_and_what_follows():
    cut = sample(20, (3, 8), (10, 18), (18, 20)).shortened(12)
    assert cut.tokens.tolist() == list(range(12))
    assert cut.answers == ((3, 8), (10, 12))
    whole = sample(5, (2, 4))
    assert whole.shortened(5) is whole


def test_samples_of_one_prompt_are_split_together():
    samples = [sample(5, (2, 4), name=f"{n}#{k}", prompt=f"prompt {n}") for n in range(300) for k in range(3)]
    trained, held = split(samples, 0.2)
    assert {s.prompt_id for s in trained}.isdisjoint({s.prompt_id for s in held})
    assert 0.1 < len(held) / len(samples) < 0.3
    assert all(is_held_out(s.prompt_id, 0.2) for s in held)


def test_a_file_reads_back_as_what_was_written(tmp_path):
    made = SampleSet(FACTS, tiny_samples())
    write_samples(tmp_path / "s.npz", made)
    read = read_samples(tmp_path / "s.npz")
    assert read.facts == made.facts
    for mine, theirs in zip(read.samples, made.samples, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        fields = ("id", "prompt_id", "domain", "answers", "temperature")
        assert [getattr(mine, f) for f in fields] == [getattr(theirs, f) for f in fields]


def test_no_samples_are_a_set_too(tmp_path):
    write_samples(tmp_path / "s.npz", SampleSet(FACTS, ()))
    assert read_samples(tmp_path / "s.npz").samples == ()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_file_is_refused(tmp_path, share):
    path = tmp_path / "s.npz"
    write_samples(path, SampleSet(FACTS, tiny_samples()))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(EyasError) as caught:
        read_samples(path)
    assert caught.value.code == "artifact.corrupt"


def test_arrays_that_contradict_each_other_are_refused(tmp_path):
    path = tmp_path / "s.npz"
    write_samples(path, SampleSet(FACTS, (sample(6, (2, 5)),)))
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    for name, value in (
        ("answers", np.array([[1, 2, 5]])),
        ("lengths", np.array([7])),
        ("answers", np.array([[0, 4, 9]])),
    ):
        np.savez(path, **{**arrays, name: value.astype(np.uint32)})
        with pytest.raises(EyasError) as caught:
            read_samples(path)
        assert caught.value.code == "artifact.corrupt"


def test_chats_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "chats.jsonl").write_bytes(b'{"id": "\xff\xfe"}\n')
    with pytest.raises(EyasError, match="line 1") as caught:
        list(read_chats(tmp_path / "chats.jsonl"))
    assert caught.value.code == "artifact.corrupt"
