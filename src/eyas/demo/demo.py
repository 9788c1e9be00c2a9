"""``eyas demo``: a real model answers real questions twice, and the two texts are compared token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from eyas.artifacts import Progress
from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.corpus.prompts import Prompt
from eyas.demo.render import figures_table, legend
from eyas.draft.model import DraftModel
from eyas.engine.exactness import Divergence, first_divergence
from eyas.engine.session import Session
from eyas.errors import EyasError
from eyas.generate.decode import Decoded, Pieces, decode
from eyas.generate.report import Figures, figures_of
from eyas.generate.style import style_of
from eyas.kernels.bandwidth import read_bandwidth
from eyas.pull import load_prompts

DEMO_SETS = ("prompts:mt-bench", "prompts:humaneval")

DEMO_STEPS = 2
"""K where nothing is asked: what pays most with the built-in draft on a CPU (benchmarks/results)."""


@dataclass(frozen=True)
class Pair:
    """One prompt answered both ways."""

    prompt: Prompt
    plain: Decoded
    speculative: Decoded
    divergence: Divergence | None
    """None: the same tokens. Otherwise where they part, with the proof that it is a tie, or is none."""


def demo_prompts(cache: Path, of_each: int, progress: Progress) -> list[Prompt]:
    """``of_each`` prompts of each set, spread evenly over it."""
    chosen: list[Prompt] = []
    for name in DEMO_SETS:
        prompts = load_prompts(name, cache, progress=progress)
        count = min(of_each, len(prompts))
        chosen += [prompts[i * len(prompts) // count] for i in range(count)]
    return chosen


def run_demo(
    session: Session,
    prompts: Sequence[Prompt],
    speculation: SpeculativeSettings,
    max_new_tokens: int,
    console: Console,
) -> dict[str, Any]:
    """Answer every prompt plain and speculative, show both, and return the figures as plain values."""
    if session.draft is None:
        raise EyasError("flags.contradiction", "the demo compares with a draft, and there is none", "give --draft")
    sampling = SamplingSettings(max_new_tokens=max_new_tokens)
    console.print(legend(speculation.num_steps))
    console.print(f"[dim]kernels: {session.target.backend.name}[/]")
    bandwidth = read_bandwidth()
    pairs = []
    for number, prompt in enumerate(prompts, start=1):
        pair = _answer_twice(session, session.draft, prompt, sampling, speculation, (number, len(prompts)), console)
        pairs.append(pair)
    rows = [(name, *_figures(chosen, speculation)) for name, chosen in _by_set(pairs)]
    console.print(figures_table(rows, bandwidth, session.target.weight_bytes()))
    console.print(_verdict(pairs))
    return {
        "sets": {name: {"plain": p.to_json(), "speculative": s.to_json()} for name, p, s in rows},
        "identical": all(pair.divergence is None for pair in pairs),
        "ties": [asdict(pair.divergence) for pair in pairs if pair.divergence is not None],
        "bandwidth_bytes_per_second": bandwidth,
        "weight_bytes": session.target.weight_bytes(),
        "backend": session.target.backend.name,
        "speculation": speculation.model_dump(),
    }


def _answer_twice(
    session: Session,
    draft: DraftModel,
    prompt: Prompt,
    sampling: SamplingSettings,
    speculation: SpeculativeSettings,
    place: tuple[int, int],
    console: Console,
) -> Pair:
    asked = prompt.user_turns[0]
    ids = session.encode_chat([("user", asked)])
    slots = len(ids) + sampling.max_new_tokens + 64
    title = " ".join(asked.split())
    console.print(Rule(f"[bold]{place[0]}/{place[1]}[/] {prompt.domain}", align="left", style="dim"))
    console.print(Text(title if len(title) <= 220 else title[:219] + "…", style="italic dim"))
    plain = decode(session.engine(None, slots), ids, sampling, None)
    speculative = decode(session.engine(draft, slots), ids, sampling, speculation, _shower(session, console))
    console.print()
    divergence = first_divergence(session.target, ids, plain.request.answer, speculative.request.answer, sampling)
    if divergence is not None and not divergence.is_tie:
        raise EyasError("engine.not-lossless", str(divergence), "report this: it must never happen")
    one, two = (figures_of([d.request], d.decode_seconds, s) for d, s in ((plain, None), (speculative, speculation)))
    same = "identical" if divergence is None else "a proven tie, then different"
    console.print(
        f"[dim]plain {one.tokens_per_second:.1f} tok/s · EAGLE-3 {two.tokens_per_second:.1f} tok/s · accept length "
        f"{two.accept_length or 1:.2f} of {two.ceiling} · {same}[/]"
    )
    return Pair(prompt, plain, speculative, divergence)


def _shower(session: Session, console: Console) -> Callable[[Any], None]:
    pieces = Pieces(session.tokenizer)

    def show(request: Any) -> None:
        for piece, origin in pieces.new(request):
            console.print(Text(piece, style=style_of(origin)), end="", soft_wrap=True)

    return show


def _by_set(pairs: Sequence[Pair]) -> list[tuple[str, list[Pair]]]:
    """The pairs of each source, then all of them."""
    sources = list(dict.fromkeys(pair.prompt.source for pair in pairs))
    groups = [
        (source.removeprefix("prompts:"), [pair for pair in pairs if pair.prompt.source == source])
        for source in sources
    ]
    return [*groups, ("all", list(pairs))] if len(groups) > 1 else [("all", list(pairs))]


def _figures(pairs: Sequence[Pair], speculation: SpeculativeSettings) -> tuple[Figures, Figures]:
    plain = figures_of([p.plain.request for p in pairs], sum(p.plain.decode_seconds for p in pairs), None)
    seconds = sum(p.speculative.decode_seconds for p in pairs)
    return plain, figures_of([p.speculative.request for p in pairs], seconds, speculation)


def _verdict(pairs: Sequence[Pair]) -> Text:
    ties = [pair.divergence for pair in pairs if pair.divergence is not None]
    if not ties:
        return Text(f"identical: yes, all {len(pairs)} answers token for token", style="bold green")
    text = Text(f"identical but for {len(ties)} proven ties", style="bold yellow")
    for tie in ties:
        text.append(f"\n  {tie}", style="yellow")
    return text
