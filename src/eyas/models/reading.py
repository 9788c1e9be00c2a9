"""A target reads texts, finished ones or its own answers: the taps and the last state of every position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from eyas.kernels import KVCache, Part, Rows
from eyas.models.target import Outputs, Target

CHUNK = 512


def read_text(target: Target, tokens: Sequence[int], taps: Sequence[int], chunk: int = CHUNK) -> Outputs:
    """Run one text through the target, ``chunk`` rows at a time, and keep every position's taps and hidden state.

    Returns buffers of len(tokens) rows. Raises ``taps.range``.
    """
    return _read_together(target, [tokens], taps, chunk)[0]


def read_texts(
    target: Target, texts: Sequence[Sequence[int]], taps: Sequence[int], chunk: int = CHUNK
) -> list[Outputs]:
    """What :func:`read_text` gives for each text, bit for bit. Raises ``taps.range``.

    On a row-exact target all texts share their forwards: up to ``chunk`` rows of each, so the caller bounds the rows of
    a forward by how many texts it gives. The buffers are then parts of common ones. On any other target each text has
    forwards of its own, because rounding would depend on the company.
    """
    if not target.row_exact:
        return [read_text(target, tokens, taps, chunk) for tokens in texts]
    return _read_together(target, texts, taps, chunk)


def read_answers(
    target: Target,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    max_new_tokens: int,
    taps: Sequence[int],
    chunk: int = CHUNK,
) -> list[tuple[list[int], Outputs]]:
    """Each prompt's answer at temperature 0, its end token included where it came, and what :func:`read_text` gives for
    prompt and answer, bit for bit: every position runs once, where answering and then reading would run it twice.

    For row-exact targets, and prompts that with ``max_new_tokens`` fit their context. Raises ``taps.range``.
    """
    assert target.row_exact
    edges = [0, *accumulate(len(prompt) + max_new_tokens for prompt in prompts)]
    cache, out = target.new_cache(edges[-1]), target.new_outputs(edges[-1], taps)
    _read_into(target, cache, out, prompts, edges, chunk)
    answers: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    while running:
        ends = {i: edges[i] + len(prompts[i]) + len(answers[i]) for i in running}
        likeliest = target.logits(out.hidden[[end - 1 for end in ends.values()]]).argmax(-1).tolist()
        parts = []
        for (i, end), token in zip(ends.items(), likeliest, strict=True):
            answers[i].append(token)
            parts.append(Part.chain([token], end - edges[i], [end], torch.arange(edges[i], end)))
        _forward(target, cache, parts, [slice(end, end + 1) for end in ends.values()], out)
        running = [i for i in running if answers[i][-1] not in eos_ids and len(answers[i]) < max_new_tokens]
    spans = [slice(e, e + len(p) + len(a)) for e, p, a in zip(edges, prompts, answers, strict=False)]
    return [(a, Outputs(out.hidden[s], out.taps[s], out.tap_ids)) for a, s in zip(answers, spans, strict=True)]


def _read_together(target: Target, texts: Sequence[Sequence[int]], taps: Sequence[int], chunk: int) -> list[Outputs]:
    """Each text has the slots, and the rows of the buffers, behind those of the text before."""
    edges = [0, *accumulate(len(tokens) for tokens in texts)]
    cache, out = target.new_cache(edges[-1]), target.new_outputs(edges[-1], taps)
    _read_into(target, cache, out, texts, edges, chunk)
    spans = [slice(begin, end) for begin, end in pairwise(edges)]
    return [Outputs(out.hidden[span], out.taps[span], out.tap_ids) for span in spans]


def _read_into(
    target: Target, cache: KVCache, out: Outputs, texts: Sequence[Sequence[int]], edges: Sequence[int], chunk: int
) -> None:
    """Read the texts, ``chunk`` rows of each at a time; each has the slots and rows from its edge on."""
    for start in range(0, max((len(tokens) for tokens in texts), default=0), chunk):
        parts, places = [], []
        for tokens, first in zip(texts, edges, strict=False):
            piece = tokens[start : start + chunk]
            if len(piece):
                place = slice(first + start, first + start + len(piece))
                table = torch.arange(first, first + start)
                parts.append(Part.chain(piece, start, range(place.start, place.stop), table))
                places.append(place)
        _forward(target, cache, parts, places, out)


def _forward(target: Target, cache: KVCache, parts: Sequence[Part], places: Sequence[slice], out: Outputs) -> None:
    """One forward of ``parts``, whose rows belong at ``places`` of ``out``."""
    begin, end = places[0].start, places[-1].stop
    rows = Rows.build(parts)
    if len(rows) == end - begin:
        target.forward(rows, cache, Outputs(out.hidden[begin:end], out.taps[begin:end], out.tap_ids))
        return
    own, at = target.new_outputs(len(rows), out.tap_ids), 0
    target.forward(rows, cache, own)
    for place in places:
        size = place.stop - place.start
        out.hidden[place], out.taps[place] = own.hidden[at : at + size], own.taps[at : at + size]
        at += size
