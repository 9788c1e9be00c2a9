"""Filters with names: what is dropped, why, and how often. They see text, so prompts, answers and chats take the same.

A :class:`Sieve` asks its rules in order; the first that objects is the reason. Rules that compare with earlier texts
stand at the end, so that only what is kept counts as earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

from pydantic import Field, model_validator

from eyas.config import Settings
from eyas.data.duplicates import DEFAULT_THRESHOLD, ExactDuplicates, NearDuplicates
from eyas.data.language import known_languages, language_of
from eyas.data.overlap import Evaluation
from eyas.data.words import alphabet_share, is_garbled, loops, words_of
from eyas.errors import EyasError

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A reason to drop a text. ``drops`` tells; ``keep``, called with (key, text) of what is kept, remembers."""

    reason: str
    drops: Callable[[str], bool]
    keep: Callable[[str, str], None] | None = None


@dataclass
class Sieve(Generic[T]):
    """Rules over things that have a text, and the counts of what they did. ``reasons`` lists every rule's, 0 too."""

    rules: tuple[Rule, ...]
    text: Callable[[T], str]
    seen: int = 0
    kept: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reasons = {rule.reason: 0 for rule in self.rules}

    def reason(self, item: T) -> str | None:
        """Why ``item`` is dropped, None if it is kept; counts it, and remembers it if it is kept."""
        text = self.text(item)
        self.seen += 1
        for rule in self.rules:
            if rule.drops(text):
                self.reasons[rule.reason] += 1
                return rule.reason
        for rule in self.rules:
            if rule.keep is not None:
                rule.keep(str(self.kept), text)
        self.kept += 1
        return None

    def keep(self, items: Iterable[T]) -> Iterator[T]:
        """The items that are kept, in order."""
        return (item for item in items if self.reason(item) is None)


class Finder(Protocol):
    """Something that knows texts: exact or near duplicates."""

    def find(self, text: str) -> str | None: ...
    def add(self, key: str, text: str) -> None: ...


class FilterSettings(Settings):
    """What is kept. None and () leave a filter out.

    ``shortest_tokens``, ``longest_tokens``: of the text, both still kept. ``alphabet``: a Unicode script's first word
    (LATIN, CYRILLIC, CJK, HANGUL, …) that ``alphabet_share`` of the letters must belong to. ``languages``: ISO 639-1
    codes; a text whose language cannot be told is kept. ``near_duplicate``: the least Jaccard similarity of word
    3-grams that makes two texts near. ``least_surprise``, ``most_surprise``: bounds of the mean surprise of a token
    under the target, in nats (the logarithm of the perplexity).
    """

    shortest_tokens: Annotated[int, Field(ge=1)] = 4
    longest_tokens: Annotated[int, Field(ge=1)] = 1024
    alphabet: str | None = None
    alphabet_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    languages: tuple[str, ...] = ()
    near_duplicate: Annotated[float, Field(gt=0, le=1)] | None = DEFAULT_THRESHOLD
    least_surprise: Annotated[float, Field(ge=0)] | None = None
    most_surprise: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _ranges(self) -> FilterSettings:
        least, most = self.least_surprise or 0.0, self.most_surprise
        if self.longest_tokens < self.shortest_tokens or (most is not None and most < least):
            raise EyasError("flags.contradiction", "a filter's least is more than its most", "turn the two around")
        if self.alphabet is not None and not self.alphabet.isupper():
            cause = f"{self.alphabet!r} is no script's name in capitals"
            raise EyasError("flags.range", cause, "write e.g. LATIN, CYRILLIC, GREEK, CJK or HANGUL")
        unknown = sorted(set(self.languages) - set(known_languages())) if self.languages else []
        if unknown:
            known = ", ".join(known_languages())
            raise EyasError("flags.range", f"{unknown[0]!r} is no language that can be told", f"use some of: {known}")
        return self


def rules_for(
    settings: FilterSettings,
    count_tokens: Callable[[str], int],
    evaluation: Evaluation | None = None,
    surprise: Callable[[str], float] | None = None,
) -> tuple[Rule, ...]:
    """The rules of ``settings``, cheap ones first. ``count_tokens``: tokens of a text. ``surprise``: its mean surprise
    in nats, needed where the settings bound it.
    """
    shortest, longest, alphabet = settings.shortest_tokens, settings.longest_tokens, settings.alphabet
    rules = [
        Rule("too-short", lambda text: not words_of(text) or count_tokens(text) < shortest),
        Rule("too-long", lambda text: count_tokens(text) > longest),
        Rule("garbled", is_garbled),
        Rule("repetition", lambda text: loops(words_of(text))),
    ]
    if alphabet is not None:
        share = settings.alphabet_share
        rules.append(Rule("alphabet", lambda text: alphabet_share(text, alphabet) < share))
    if settings.languages:
        rules.append(Rule("language", lambda text: language_of(text) not in (None, *settings.languages)))
    if evaluation is not None:
        rules.append(Rule("evaluation-overlap", lambda text: evaluation.find(text) is not None))
    rules.append(_unlike("duplicate", ExactDuplicates()))
    if settings.near_duplicate is not None:
        rules.append(_unlike("near-duplicate", NearDuplicates(settings.near_duplicate)))
    if (settings.least_surprise, settings.most_surprise) != (None, None):
        assert surprise is not None
        rules.append(_surprise_rule(settings, surprise))
    return tuple(rules)


def _unlike(reason: str, earlier: Finder) -> Rule:
    return Rule(reason, lambda text: earlier.find(text) is not None, earlier.add)


def _surprise_rule(settings: FilterSettings, surprise: Callable[[str], float]) -> Rule:
    least = settings.least_surprise or 0.0
    most = float("inf") if settings.most_surprise is None else settings.most_surprise
    return Rule("surprise", lambda text: not least <= surprise(text) <= most)
