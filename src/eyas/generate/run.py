"""``eyas generate``: one answer, shown token by token, with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from eyas.config import SamplingSettings
from eyas.engine.asked import Plan
from eyas.engine.request import Request
from eyas.engine.session import Session
from eyas.generate.decode import Pieces, decode
from eyas.generate.report import figures_of
from eyas.generate.style import accept_length_text, style_of
from eyas.speculate.propose import NgramProposer


def run_generate(
    session: Session, ids: Sequence[int], sampling: SamplingSettings, plan: Plan, console: Console
) -> dict[str, Any]:
    """Answer the prompt, show it token by token on ``console``, and return it with its figures as plain values."""
    pieces = Pieces(session.tokenizer)
    speculation = plan.speculation

    def show(request: Request) -> None:
        for piece, origin in pieces.new(request):
            console.print(Text(piece, style=style_of(origin)), end="", soft_wrap=True)

    proposer = NgramProposer() if plan.algorithm == "NGRAM" else session.draft
    slack = 64 if speculation is None else 64 + speculation.num_draft_tokens * speculation.eagle_topk
    engine = session.engine(proposer, len(ids) + sampling.max_new_tokens + slack)
    done = decode(engine, ids, sampling, speculation, show)
    figures = figures_of([done.request], done.decode_seconds, speculation)
    speed = f"{figures.tokens} tokens · {figures.tokens_per_second:.1f} tok/s"
    line = f"{speed} · {plan.algorithm} · {session.target.backend.name} kernels"
    if speculation is not None:
        line += f" · accept length {accept_length_text(figures)} of {figures.ceiling}"
    console.print(f"\n[dim]{line}[/]")
    answer = done.request.answer
    return {
        "text": session.tokenizer.decode(answer, skip_special_tokens=True),
        "tokens": answer,
        "finish_reason": done.request.finished,
        "prompt_tokens": len(ids),
        "prefill_seconds": done.prefill_seconds,
        "algorithm": plan.algorithm,
        "backend": session.target.backend.name,
        "speculation": None if speculation is None else speculation.model_dump(),
        "figures": figures.to_json(),
    }
