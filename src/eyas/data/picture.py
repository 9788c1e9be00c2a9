"""Samples as coloured text: what is prompt, what is trained, where an answer ends, what a draft cannot propose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.text import Text
from transformers import PreTrainedTokenizerBase

from eyas.corpus.samples import Sample

PROMPT, GIVEN, TRAINED, END, OUTSIDE, CUT = "dim", "bold cyan", "green", "bold black on green", "underline", "bold red"
"""Styles of: the prompt; an answer's first token, which the target itself gives; tokens that the draft learns to
propose; the end of turn; tokens outside the draft vocabulary, which is added to the others; an answer without its end.
"""


def legend(with_vocabulary: bool) -> Text:
    """One line that explains the styles."""
    parts = [("prompt", PROMPT), ("the answer's first token, the target's own", GIVEN), ("trained", TRAINED)]
    parts += [("end of turn", END), ("✂ cut before its end", CUT)]
    if with_vocabulary:
        parts.append(("outside the draft vocabulary", f"{TRAINED} {OUTSIDE}"))
    return Text(" · ").join(Text(words, style=style) for words, style in parts)


def draw_sample(
    sample: Sample,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Collection[int],
    kept: Collection[int] | None = None,
) -> Text:
    """One sample as text. ``kept``: the draft vocabulary's target ids, or None if it is not known."""
    text, styles = Text(), styles_of(sample, eos_ids, kept)
    ends = {end for begin, end in sample.answers if int(sample.tokens[end - 1]) not in eos_ids}
    for begin, end, piece in _pieces(sample.tokens.tolist(), tokenizer):
        text.append(piece, style=styles[begin])
        if any(begin < cut <= end for cut in ends):
            text.append("✂", style=CUT)
    return text


def styles_of(sample: Sample, eos_ids: Collection[int], kept: Collection[int] | None = None) -> list[str]:
    """The style of each token."""
    styles = [PROMPT] * len(sample.tokens)
    for begin, end in sample.answers:
        for i in range(begin, end):
            token = int(sample.tokens[i])
            style = END if token in eos_ids else GIVEN if i == begin else TRAINED
            styles[i] = style if kept is None or token in kept or i == begin else f"{style} {OUTSIDE}"
    return styles


def _pieces(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, int, str]]:
    """(begin, end, text) of the tokens; several together where only they make a character."""
    begin = 0
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(list(tokens[begin:end]), clean_up_tokenization_spaces=False))
        if "\ufffd" in text and end < len(tokens) and end - begin < 8:
            continue
        yield begin, end, text
        begin = end
