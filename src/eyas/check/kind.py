"""What the catalogue holds of each kind of fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of fault. ``title``: a short name · ``found``: at which level and by what."""

    title: str
    symptom: str
    cause: str
    found: str
    fix: str
