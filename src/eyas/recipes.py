"""Recipes: one whole run per target, from prompts to a draft, as a YAML file. The package has some in assets/recipes.

The header says what a run of it took and gave, or plainly that it was not run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from eyas.artifacts import read_yaml
from eyas.config import Settings
from eyas.contract import ExpectedAcceptLength
from eyas.contract.schema import describe
from eyas.data.regen.settings import RegenSettings
from eyas.errors import EyasError
from eyas.train.amounts import DataCounts, FeatureChoice
from eyas.train.settings import TrainSettings, parse_settings

FOLDER = Path(__file__).parent / "assets" / "recipes"
SUFFIX = ".yaml"
NOT_RUN = "not run"

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class Measured(Settings):
    """What a run gave. ``hours``: of training, None if nobody wrote them down; ``made_by``: which settings it had."""

    hours: Annotated[float, Field(gt=0)] | None
    machine: Text
    made_by: Text
    conversations: Count
    answer_tokens: Count
    accept_lengths: tuple[ExpectedAcceptLength, ...]


class TargetSource(Settings):
    """``source``: builtin:…, or a hub id; ``licence``: of its weights, and of what it says."""

    source: Text
    licence: Text


class PromptSource(Settings):
    """``source``: self-sampled, prompts:…, or a JSON Lines file of the user's; ``count``: prompts of it at most."""

    source: Text
    licence: Text
    count: Count
    note: Text | None = None


class Expected(Settings):
    """What the data is expected to be, on average a conversation: what a plan counts with until there are samples."""

    tokens: Count
    answer_tokens: Count
    answers: Count = 1


class Recipe(Settings):
    """One whole run. Raises ``flags.…`` for values and keys that mean nothing."""

    name: Text
    about: Text
    run: Literal["not run"] | Measured
    target: TargetSource
    prompts: Annotated[tuple[PromptSource, ...], Field(min_length=1)]
    regen: RegenSettings
    features: FeatureChoice
    expected: Expected
    train: TrainSettings

    @property
    def conversations(self) -> int:
        """Conversations that the prompts and the samples of each make, before any is dropped."""
        return sum(prompt.count for prompt in self.prompts) * self.regen.samples

    def counts(self) -> DataCounts:
        """The data that is expected, for a plan before there are samples."""
        e = self.expected
        return DataCounts.estimated(self.conversations, e.tokens, e.answer_tokens, self.train, e.answers)


def list_recipes() -> list[str]:
    """The names of the package's recipes."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def recipe_path(name_or_path: str) -> Path:
    """The file of a recipe. Raises ``artifact.missing``."""
    path = Path(name_or_path).expanduser() if name_or_path.endswith(SUFFIX) else FOLDER / f"{name_or_path}{SUFFIX}"
    if not path.is_file():
        cause = f"there is no recipe {name_or_path!r}"
        raise EyasError("artifact.missing", cause, f"give a {SUFFIX} file, or one of: {', '.join(list_recipes())}")
    return path


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe of the package by name, or any by path. Raises ``artifact.missing``, ``artifact.corrupt``, and
    ``flags.…`` naming the file and the part that is wrong.
    """
    path = recipe_path(name_or_path)
    document = read_yaml(path)
    parts = {part: _located(path, part, value) for part, value in document.items()}
    try:
        return Recipe(**parts)
    except EyasError as error:
        raise EyasError(error.code, f"{path.name}: {error.cause}", error.fix) from error


_SECTIONS: Mapping[str, type[Settings]] = {
    "target": TargetSource,
    "regen": RegenSettings,
    "features": FeatureChoice,
    "expected": Expected,
}


def _located(path: Path, part: str, value: Any) -> Any:
    try:
        return _read_part(part, value, path)
    except EyasError as error:
        raise EyasError(error.code, f"{path.name}, {part}: {error.cause}", error.fix) from error


def _read_part(part: str, value: Any, path: Path) -> Any:
    if part == "run":
        return value if not isinstance(value, dict) else _measured(value)
    if part == "train":
        return parse_settings(_mapping(value, part), path)
    if part == "prompts":
        if not isinstance(value, list):
            raise EyasError("artifact.corrupt", f"{value!r} is no list", "write one `- source: …` per set of prompts")
        return tuple(PromptSource(**_mapping(item, part)) for item in value)
    if part in _SECTIONS:
        return _SECTIONS[part](**_mapping(value, part))
    return value


def _measured(value: dict[str, Any]) -> Measured:
    try:
        lengths = tuple(
            ExpectedAcceptLength.model_validate_json(json.dumps(item)) for item in value.get("accept_lengths", ())
        )
    except ValidationError as error:
        raise EyasError(
            "flags.range", f"accept_lengths: {describe(error)}", "write them as contract.json does"
        ) from error
    return Measured(**{**value, "accept_lengths": lengths})


def _mapping(value: Any, part: str) -> dict[str, Any]:
    """A section's entries; YAML's lists are tuples here."""
    if not isinstance(value, dict):
        raise EyasError("artifact.corrupt", f"{value!r} is no mapping", f"write {part}: with indented lines below")
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
