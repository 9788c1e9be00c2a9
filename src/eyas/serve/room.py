"""How many cache slots there are, and so how long a text may be."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.artifacts import human_bytes
from eyas.config import SpeculativeSettings
from eyas.errors import EyasError
from eyas.serve.settings import Origin, ServeSettings
from eyas.serve.sizes import Sizes
from eyas.speculate.propose import scratch_slots

FREE_SHARE = 2
"""Unless asked for otherwise, at most one part in so many of what is free beside the weights: others want some too."""
USUAL_TEXT = 1024
"""Tokens for which each request that may run has room unless asked for otherwise; the cache is paid for at once."""
MIN_CONTEXT = 16


@dataclass(frozen=True)
class Room:
    """Of each replica, in tokens."""

    slots: int
    slots_origin: Origin
    context: int
    context_origin: Origin


def room_for(settings: ServeSettings, sizes: Sizes, free: int, speculation: SpeculativeSettings | None) -> Room:
    """``free``: bytes for all replicas together. Raises ``flags.contradiction``, ``flags.range``."""
    asked = settings.context_length
    if asked is not None and asked > sizes.context:
        cause = f"--context-length {asked}, and the model's config says {sizes.context}"
        raise EyasError("flags.contradiction", cause, f"use --context-length {sizes.context} or less")
    context = asked or sizes.context
    slots, origin = _slots(settings, sizes, free, context, speculation)
    longest = slots - scratch_slots(speculation)
    if asked is not None and asked > longest:
        cause = f"--context-length {asked} with {slots} cache slots ({_why(settings)}): no such text fits"
        fix = f"use --context-length {max(longest, 1)}, or --max-total-tokens {asked + slots - longest} or more"
        raise EyasError("flags.contradiction", cause, fix)
    if longest < MIN_CONTEXT:
        cause = f"{slots} cache slots ({_why(settings)}) leave no room for a text"
        raise EyasError("flags.range", cause, "use a smaller model or --dtype bf16, or free some memory")
    if asked is None and longest < context:
        return Room(slots, origin, longest, origin)
    return Room(slots, origin, context, "model config")


def _slots(
    settings: ServeSettings, sizes: Sizes, free: int, context: int, speculation: SpeculativeSettings | None
) -> tuple[int, Origin]:
    share, asked = settings.mem_fraction_static, settings.max_total_tokens
    each = free // settings.dp_size
    beside = each - sizes.weights
    most = int(each * share) - sizes.weights if share is not None else beside
    if asked is not None:
        if asked * sizes.slot > most:
            _refuse(settings, sizes, most)
        return asked, "flag"
    if share is not None:
        return max(most, 0) // sizes.slot, "measured memory"
    enough = max(settings.max_running_requests * min(USUAL_TEXT, context), context + scratch_slots(speculation))
    holds = max(beside, 0) // FREE_SHARE // sizes.slot
    return (enough, "default") if enough <= holds else (holds, "measured memory")


def _refuse(settings: ServeSettings, sizes: Sizes, most: int) -> None:
    asked, share = settings.max_total_tokens, settings.mem_fraction_static
    assert asked is not None
    fits = max(most, 0) // sizes.slot
    needed = f"--max-total-tokens {asked} takes {human_bytes(asked * sizes.slot)}"
    fix = f"use --max-total-tokens {fits} or less" if fits else "use a smaller model, or free some memory"
    if share is not None:
        cause = f"{needed}, and --mem-fraction-static {share} leaves {human_bytes(max(most, 0))} beside the weights"
        raise EyasError("flags.contradiction", cause, f"{fix}, or drop one of the two")
    raise EyasError("flags.range", f"{needed}, and {human_bytes(max(most, 0))} are free beside the weights", fix)


def _why(settings: ServeSettings) -> str:
    if settings.max_total_tokens is not None:
        return f"--max-total-tokens {settings.max_total_tokens}"
    if settings.mem_fraction_static is not None:
        return f"--mem-fraction-static {settings.mem_fraction_static}"
    return "what the free memory holds"
