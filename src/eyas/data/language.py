"""Which language a text is in, where that can be told."""

from __future__ import annotations

from functools import lru_cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

SURE = 0.5
"""Below this the guess is none: short texts, formulas and code look like many languages."""


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the text's language, None where it cannot be told."""
    language, probability = _identifier().classify(text)
    return str(language) if probability >= SURE else None


def known_languages() -> tuple[str, ...]:
    """All codes that :func:`language_of` may give."""
    return tuple(sorted(str(label) for label in _identifier().labels))
