"""``environment.json``: on what a run was computed, without a word on whose machine it was."""

from __future__ import annotations

import getpass
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

import eyas
from eyas.artifacts import write_json

FILE = "environment.json"
PACKAGES = ("torch", "numpy", "safetensors", "transformers", "tokenizers")
CPUINFO = Path("/proc/cpuinfo")

_PATH_START = re.compile(r"([/\\~.]|[A-Za-z]:[/\\])")
_GIT_SECONDS = 10


def environment(command: Sequence[str]) -> dict[str, Any]:
    """What can be told of this machine and process, as plain JSON. ``command``: the words of the command line; places
    on this machine, addresses and the user's name are taken out of it. Memory in bytes.
    """
    return {
        "eyas": eyas.__version__,
        "git_commit": source_commit(Path(eyas.__file__).parent),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(CPUINFO),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": [_without_places(word) for word in command],
    }


def write_environment(folder: Path, command: Sequence[str]) -> Path:
    """Write :func:`environment` into ``folder``."""
    path = folder / FILE
    write_json(path, environment(command))
    return path


def cpu_model(cpuinfo: Path) -> str | None:
    """The processor's name; None where the system does not tell."""
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8", errors="replace"), re.M)
        if found:
            return found[1].strip()
    return platform.processor() or None


def source_commit(folder: Path) -> str | None:
    """The git commit of a folder of sources, with ``+changed`` if they differ from it; None if git does not hold them.

    A package that lies inside someone else's checkout has no commit of its own.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--", ".")
    return f"{commit}+changed" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run([git, *arguments], cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _without_places(word: str) -> str:
    """A word of a command line; of a path only its last part stays, of an address only its scheme."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return option + equals + _without_place(value)


def _without_place(value: str) -> str:
    scheme, separator, _ = value.partition("://")
    if separator:
        return f"{scheme}://…"
    if _PATH_START.match(value) or "\\" in value or ("/" in value and Path(value).exists()):
        name = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
        return "…" if name in ("", ".", "..", "~", getpass.getuser()) or name.startswith("~") else f"…/{name}"
    return value


def free_memory() -> int:
    """Available memory in bytes, also within a control group's limit."""
    free, group = int(psutil.virtual_memory().available), Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)
