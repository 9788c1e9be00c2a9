"""The report of a run: figures as they are seen, written whenever some are added, so that a broken run leaves them."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import eyas

PACKAGES = ("torch", "transformers", "fastapi", "uvicorn", "llguidance")
ROOT = Path(__file__).parents[2]


class Told:
    """``path``: where the report goes; None: it is only printed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.report: dict[str, Any] = {"machine": machine()}

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Keep and show them."""
        self.report[name] = figures
        print(f"\n{name}: {json.dumps(figures, indent=1)}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return {
        "cpu": model or platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "eyas": eyas.__version__,
        "commit": commit.stdout.strip(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
