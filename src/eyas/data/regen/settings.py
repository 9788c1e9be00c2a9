"""What is asked of the target, and how often."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator

from eyas.config import SamplingSettings, Settings
from eyas.contract.schema import Strict
from eyas.errors import EyasError

Thinking = Literal["none", "off", "on", "mixed"]

DEFAULT_MAX_NEW_TOKENS = 1024


class RegenSettings(Settings):
    """How answers are drawn. Sample i of a prompt takes the i-th temperature, and begins again after the last.

    ``num_samples`` None: one for each temperature. ``thinking``: the template's ``enable_thinking``: ``none`` leaves it
    to the template, ``mixed`` tosses a coin that each chat's id decides. ``system``: put before prompts that have no
    system message. ``keep_given``: assistant turns that come with the prompt stay, and only missing ones are answered.
    ``max_new_tokens`` counts one answer. Raises ``flags.range``, ``flags.contradiction``, ``request.sampling``.
    """

    temperatures: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0,)
    num_samples: Annotated[int, Field(ge=1)] | None = None
    top_p: float = 1.0
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    seed: Annotated[int, Field(ge=0)] = 0
    thinking: Thinking = "none"
    system: Annotated[str, Field(min_length=1)] | None = None
    keep_given: bool = False

    @field_validator("num_samples")
    @classmethod
    def _uses_each_temperature(cls, value: int | None, info: Any) -> int | None:
        temperatures = info.data.get("temperatures", ())
        if value is not None and value < len(temperatures):
            cause = f"--samples {value} with {len(temperatures)} temperatures: the last ones would never be used"
            raise EyasError("flags.contradiction", cause, f"use --samples {len(temperatures)} or fewer --temperatures")
        return value

    def model_post_init(self, _: object) -> None:
        for temperature in self.temperatures:
            self.sampling(temperature, 0)

    @property
    def samples(self) -> int:
        """Chats of each prompt."""
        return len(self.temperatures) if self.num_samples is None else self.num_samples

    def temperature(self, sample: int) -> float:
        """At which a prompt's sample is drawn."""
        return self.temperatures[sample % len(self.temperatures)]

    def sampling(self, temperature: float, seed: int) -> SamplingSettings:
        """For the own engine; greedy answers have no use for ``top_p``."""
        top_p = self.top_p if temperature else 1.0
        return SamplingSettings(temperature=temperature, top_p=top_p, seed=seed, max_new_tokens=self.max_new_tokens)


class Identity(Strict):
    """What a journal's chats have in common; a run that goes on must agree in all of it. The number of samples is not
    part of it: more may be asked for later.
    """

    temperatures: tuple[float, ...]
    top_p: float
    max_new_tokens: int
    seed: int
    thinking: Thinking
    system: str | None
    keep_given: bool
    source: dict[str, JsonValue]

    @classmethod
    def of(cls, settings: RegenSettings, source: dict[str, JsonValue]) -> Identity:
        """Of a run's settings and its source's facts."""
        return cls(source=source, **settings.model_dump(exclude={"num_samples"}))
