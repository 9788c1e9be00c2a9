"""The fault catalogue: every kind that a check can name, with symptom, cause, how it is found, and the fix.

docs/faults.md is generated from here, and ``eyas explain KIND`` prints an entry.
"""

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


KINDS: dict[str, Kind] = {
    "taps.wrong": Kind(
        "The draft was trained on other taps",
        "Accept length between 1.0 and 1.9; the text is right and every log is green.",
        "The layer ids in config.json are missing, in another convention, shifted by one, or another trainer's.",
        "features: every tap is tried in every slot of fc, and the likelihoods of the same positions are compared.",
        "`eyas check DRAFT --fix OUT` writes the right ids; where none can capture them, retrain.",
    ),
    "taps.order": Kind(
        "The taps are concatenated in another order than in training",
        "Accept length close to 1.0.",
        "Engines concatenate taps in rising layer order, whatever the order of the ids.",
        "features: the permutations of the declared taps are tried.",
        "`eyas check DRAFT --fix OUT` permutes the column blocks of fc.weight into rising order.",
    ),
}
