"""Engines and their versions, as the other tables here use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from eyas.errors import EyasError

EngineName = Literal["sglang", "vllm"]

# The newest and oldest versions whose source the tables were read from.
NEWEST: dict[str, str] = {"sglang": "0.5.23", "vllm": "0.32.0"}
OLDEST: dict[str, str] = {"sglang": "0.4.6.post5", "vllm": "0.9.0"}

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.post(\d+))?(?:\+[\w.]+)?$")


@dataclass(frozen=True, order=True)
class Version:
    """A release: 0.4.10.post2 is (0, 4, 10, 2). Ordered."""

    major: int
    minor: int
    patch: int = 0
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read "0.5.13" or "0.4.6.post5"; else, and for pre-releases, ``dialect.unknown-engine``."""
        match = _VERSION.match(text.strip())
        if match is None:
            cause = f"{text!r} is no release number, and pre-releases may be anything"
            raise EyasError("dialect.unknown-engine", cause, "name a release, such as 0.5.23 or 0.4.6.post5")
        return cls(*(int(part or 0) for part in match.groups()))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


@dataclass(frozen=True)
class Engine:
    """One engine at one version."""

    name: EngineName
    version: Version

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Read "sglang==0.5.23", "vllm==0.32.0", or a bare name for the newest version known.

        Raises ``dialect.unknown-engine`` for other engines and for versions older than the tables. A newer
        one is taken to do what the newest known does; :attr:`extrapolated` says so.
        """
        name, separator, version = text.strip().partition("==")
        known = get_args(EngineName)
        if name not in known:
            raise EyasError(
                "dialect.unknown-engine",
                f"{name!r} is no engine with rules here",
                f"use one of: {', '.join(known)}",
            )
        parsed = Version.parse(version if separator else NEWEST[name])
        if parsed < Version.parse(OLDEST[name]):
            cause = f"{name} {parsed} is older than {OLDEST[name]}, the oldest version whose rules are known"
            raise EyasError("dialect.unknown-engine", cause, f"use {name} {OLDEST[name]} or later")
        return cls("sglang" if name == "sglang" else "vllm", parsed)

    @property
    def extrapolated(self) -> bool:
        """True if the version is newer than any whose source was read."""
        return self.version > Version.parse(NEWEST[self.name])

    def within(self, since: str | None, before: str | None) -> bool:
        """True if ``since`` ≤ version < ``before``; None leaves that side open."""
        return (since is None or self.version >= Version.parse(since)) and (
            before is None or self.version < Version.parse(before)
        )

    def __str__(self) -> str:
        return f"{self.name} {self.version}"
