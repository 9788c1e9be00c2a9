"""Faults of training data that no loss shows, found in the samples: each with a code, its evidence and the fix."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.corpus.rendering import Renderer
from eyas.corpus.samples import Sample, SampleSet, trained_slots
from eyas.data.alike import MOST, prompt_grams
from eyas.data.samples import BuildAccount
from eyas.errors import EyasError

_MOST = 0.5
_REBUILD = "make the samples again with `eyas data build`"


def find_faults(
    made: SampleSet,
    sides: tuple[Sequence[Sample], Sequence[Sample]],
    account: BuildAccount | None = None,
    renderer: Renderer | None = None,
) -> list[EyasError]:
    """What is wrong with the samples; empty if nothing is found.

    ``sides``: (trained on, held out). ``account``, where there is one, tells what was truncated and which tokens end an
    answer; ``renderer``, where there is one, tells what stands before an answer.
    """
    if not any(trained_slots(sample.segments(), 0).any() for sample in made.samples):
        cause = f"none of {len(made.samples)} samples has a slot that is trained: the mask is zero everywhere"
        return [EyasError("samples.no-answers", cause, "let the target answer with `eyas regen`")]
    eos_ids = renderer.eos_ids if renderer else account.eos_ids if account else None
    found: list[EyasError | None] = []
    if eos_ids is not None:
        found += [_over_the_end(made.samples, eos_ids), _no_end(made.samples, eos_ids, account)]
    if renderer is not None:
        found.append(_not_opened(made.samples, renderer))
    if not any(found):
        # Where a prompt ends is known only from a mask that is right.
        found.append(_leak(*sides))
    found += [_split(sides), _truncated(made.samples, account) if account is not None else None]
    return [fault for fault in found if fault is not None]


def _over_the_end(samples: Sequence[Sample], eos_ids: Sequence[int]) -> EyasError | None:
    """An answer that goes on after its end of turn reaches into the next turns."""
    for sample in samples:
        for begin, end in sample.answers:
            inside = [i for i in range(begin, end - 1) if sample.tokens[i] in eos_ids]
            if inside:
                cause = f"sample {sample.id}: the answer at {begin} … {end} goes on after the end-of-turn token at "
                return EyasError("samples.mask", cause + str(inside[0]), _REBUILD)
    return None


def _no_end(samples: Sequence[Sample], eos_ids: Sequence[int], account: BuildAccount | None) -> EyasError | None:
    answers = [(sample, begin, end) for sample in samples for begin, end in sample.answers]
    if any(sample.tokens[end - 1] in eos_ids for sample, _, end in answers):
        return None
    after = [sample.id for sample, _, end in answers if end < len(sample.tokens) and sample.tokens[end] in eos_ids]
    if after:
        cause = f"the end-of-turn token stands after the answers, in {after[0]} for one, and belongs to none"
        return EyasError("samples.end-of-turn", cause, _REBUILD)
    limit = f" {len(account.truncated)} at {account.max_length} tokens." if account and account.truncated else ""
    cause = f"none of {len(answers)} answers ends with one of the end-of-turn tokens {list(eos_ids)}.{limit}"
    return EyasError("samples.all-cut", cause, "let answers be longer: `eyas regen --max-new-tokens`, --max-length")


def _truncated(samples: Sequence[Sample], account: BuildAccount) -> EyasError | None:
    share = len(account.truncated) / len(samples)
    if share <= _MOST:
        return None
    cause = f"{share:.0%} of the samples were cut at {account.max_length} tokens"
    return EyasError("samples.truncated", cause, "build with a greater --max-length, or regenerate shorter answers")


def _not_opened(samples: Sequence[Sample], renderer: Renderer) -> EyasError | None:
    """Before every answer stands what the template writes to open one. A tool's result may come before it too."""
    opening, window = renderer.opening, len(renderer.encode(renderer.opening)) + 8
    if not opening.strip() or renderer.rendering.thinking == "mixed":
        return None
    answers = wrong = 0
    example = ""
    for sample in samples:
        for begin, _ in sample.answers:
            before = str(renderer.tokenizer.decode(sample.tokens[max(begin - window, 0) : begin].tolist()))
            answers += 1
            if not before.endswith(opening):
                wrong += 1
                example = example or f"{sample.id}: before the answer at {begin} stands {before[-len(opening) :]!r}"
    if not wrong:
        return None
    cause = f"{wrong} of {answers} answers do not begin where the template opens one ({opening!r}). {example}"
    return EyasError("samples.mask", cause, f"{_REBUILD}, with the template of this model")


def _split(sides: tuple[Sequence[Sample], Sequence[Sample]]) -> EyasError | None:
    counts = [len(side) for side in sides]
    if all(counts):
        return None
    cause = f"{counts[0]} samples are trained on and {counts[1]} held out"
    return EyasError("samples.split", cause, "use more prompts, or another --held-out")


def _leak(trained: Sequence[Sample], held: Sequence[Sample]) -> EyasError | None:
    """Held-out prompts whose text is trained on, whole or for the most part, under another prompt id."""
    contents = prompt_grams([*trained, *held])
    seen = set[bytes]().union(*contents[: len(trained)])
    pairs = zip(held, contents[len(trained) :], strict=True)
    leaked = [sample.id for sample, own in pairs if len(own & seen) > MOST * len(own)]
    if not leaked:
        return None
    cause = f"{len(leaked)} of {len(held)} held-out samples have a prompt that is trained on, such as {leaked[0]}"
    fix = "put them on one side with `eyas data join FILE --together --out NEW`, or answer only one of them"
    return EyasError("samples.leak", cause, fix)
