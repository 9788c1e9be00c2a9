"""Several files of samples as one, so that they are captured and trained on together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eyas.contract import DataSource, Rendering
from eyas.corpus.features import short
from eyas.corpus.samples import SampleFacts, SampleSet
from eyas.errors import EyasError

_SAME = ("tokenizer_sha256", "chat_template_sha256", "target_weights_sha256", "loss_mask_rule")


def join_samples(parts: Sequence[tuple[Path, SampleSet]]) -> SampleSet:
    """All samples in the order of the files. A target that is not known in one is not known in all.

    Raises ``features.origin`` where two files' targets, tokenizers, templates or renderings differ, and
    ``samples.twice`` where an id is in two files.
    """
    first, facts = parts[0][0], parts[0][1].facts
    where: dict[str, Path] = {}
    for path, part in parts:
        facts = _both(facts, part.facts, first, path)
        for sample in part.samples:
            if sample.id in where:
                cause = f"sample {sample.id} is in {where[sample.id]} and in {path}"
                raise EyasError("samples.twice", cause, "name each file once, and files of different prompts or seeds")
            where[sample.id] = path
    return SampleSet(facts, tuple(sample for _, part in parts for sample in part.samples))


def _both(one: SampleFacts, other: SampleFacts, first: Path, path: Path) -> SampleFacts:
    changed: dict[str, object] = {}
    for field in _SAME:
        a, b = getattr(one, field), getattr(other, field)
        if field == "target_weights_sha256" and None in (a, b):
            changed[field] = None
        elif a != b:
            said = f"{field} is {short(a)} in {first} and {short(b)} in {path}"
            raise EyasError("features.origin", said, "join samples of one target, rendered alike")
    sources = {(source.name, source.licence) for facts in (one, other) for source in facts.sources}
    changed["sources"] = tuple(DataSource(name=name, licence=licence) for name, licence in sorted(sources))
    changed["rendering"] = _rendering(one.rendering, other.rendering, first, path)
    return one.model_copy(update=changed)


def _rendering(one: Rendering, other: Rendering, first: Path, path: Path) -> Rendering:
    """Conversations that bring no system prompt are among those that may bring one."""
    if one == other:
        return one
    kinds = {one.system_prompt, other.system_prompt}
    if one.thinking == other.thinking and kinds == {"none", "per-conversation"}:
        return one if one.system_prompt == "per-conversation" else other
    cause = f"{first} was rendered with {_said(one)}, {path} with {_said(other)}"
    raise EyasError("features.origin", cause, "build both files with the same --thinking and --system-prompt")


def _said(rendering: Rendering) -> str:
    text = "" if rendering.system_prompt_text is None else f" {rendering.system_prompt_text!r}"
    return f"thinking {rendering.thinking}, system prompt {rendering.system_prompt}{text}"
