"""How runs look in a terminal: tokens coloured by who proposed them, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from eyas.generate.report import Figures
from eyas.generate.style import accept_length_text, style_of


def legend(num_steps: int) -> Text:
    """One line that explains the colours."""
    text = Text("tokens by ", style="dim")
    text.append("the target itself")
    for step in range(1, num_steps + 1):
        text.append(" · ", style="dim")
        text.append(f"draft step {step}", style=style_of(step))
    return text


def figures_table(rows: Sequence[tuple[str, Figures, Figures]], bandwidth: float, weight_bytes: int) -> Table:
    """Plain beside speculative, one row per prompt set. ``bandwidth`` in bytes/s; ``weight_bytes`` read per round."""
    table = Table(title="plain decoding and EAGLE-3, the same engine, the same text")
    for name in ("prompts", "plain tok/s", "EAGLE-3 tok/s", "ratio", "accept length", "ceiling", "survival 1, 2, …"):
        table.add_column(name, justify="left" if name == "prompts" else "right")
    for name, plain, speculative in rows:
        table.add_row(
            f"{name} ({plain.prompts})",
            f"{plain.tokens_per_second:.1f}",
            f"{speculative.tokens_per_second:.1f}",
            f"{speculative.tokens_per_second / plain.tokens_per_second:.2f}",
            accept_length_text(speculative),
            str(speculative.ceiling),
            " ".join(f"{s:.2f}" for s in speculative.survival),
        )
    whole = rows[-1][1]
    used = whole.tokens_per_second * weight_bytes
    table.caption = (
        f"plain decoding reads {weight_bytes / 1e6:.0f} MB of weights a token: {used / 1e9:.1f} GB/s "
        f"of the {bandwidth / 1e9:.1f} GB/s measured here ({used / bandwidth:.0%})"
    )
    return table
