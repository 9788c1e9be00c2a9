"""Samples in colours."""

from __future__ import annotations

import numpy as np

from eyas.corpus.samples import Sample
from eyas.data.picture import CUT, END, GIVEN, OUTSIDE, PROMPT, TRAINED, draw_sample, legend, styles_of
from support.chats import tiny_chat, tiny_renderer

EOS = tiny_renderer().eos_ids


def sample_of(said: str, finish: str = "stop") -> Sample:
    (run,) = tiny_renderer().chat_tokens(tiny_chat(0, said, finish=finish))
    return Sample("c0", "p", "d", np.array(run.tokens, dtype=np.int32), tuple(run.answers), 0.0)


def test_styles_say_what_each_token_is():
    sample = sample_of("The fox is quick.")
    begin, end = sample.answers[0]
    styles = styles_of(sample, EOS)
    assert styles[:begin] == [PROMPT] * begin
    assert styles[begin] == GIVEN
    assert styles[begin + 1 : end - 1] == [TRAINED] * (end - begin - 2)
    assert styles[end - 1] == END
    kept = set(sample.tokens.tolist()) - {int(sample.tokens[begin + 1])}
    assert [i for i, style in enumerate(styles_of(sample, EOS, kept)) if OUTSIDE in style] == [begin + 1]


def test_the_picture_is_the_text_and_marks_a_cut():
    tokenizer = tiny_renderer().tokenizer
    for finish in ("stop", "length"):
        sample = sample_of("Ein schöner 🦊 läuft.", finish)
        drawn = draw_sample(sample, tokenizer, EOS)
        cut = "✂" if finish == "length" else ""
        assert drawn.plain == tokenizer.decode(sample.tokens.tolist()) + cut
        assert any(span.style == CUT for span in drawn.spans) == bool(cut)


def test_the_legend_names_a_vocabulary_only_if_there_is_one():
    assert "outside the draft vocabulary" in legend(True).plain
    assert "outside" not in legend(False).plain
