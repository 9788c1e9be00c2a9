"""How a setting looks on the command line, written beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyas.config import Settings


@dataclass(frozen=True)
class Flag:
    """``panel``: the heading in --help · ``aliases``: other names, with their dashes."""

    help: str
    panel: str
    aliases: tuple[str, ...] = ()


def flag(panel: str, help_: str, *aliases: str) -> Flag:
    """A flag; its own name is ``--`` and the field's, with dashes."""
    return Flag(help_, panel, aliases)


def flags_of(settings: type[Settings]) -> dict[str, tuple[Any, Flag]]:
    """Field → (its type, its flag), in order, for fields that have one."""
    found = {}
    for name, field in settings.model_fields.items():
        for item in field.metadata:
            if isinstance(item, Flag):
                found[name] = field.annotation, item
    return found
