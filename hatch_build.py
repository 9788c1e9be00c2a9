"""Build hook: compile the native library if there is a C++ compiler, else leave Eyas to run without it."""

from __future__ import annotations

import runpy
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibraryHook(BuildHookInterface):
    """One ``py3-none-<platform>`` wheel where the library was built, a pure one elsewhere."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "src" / "eyas" / "kernels" / "cpu"
        compile_library = runpy.run_path(str(folder / "build.py"))["compile_library"]
        try:
            library, reason = compile_library(folder), "no C++ compiler, or not Linux"
        except (OSError, subprocess.CalledProcessError) as error:
            library, reason = None, str(error)
        if library is None:
            self.app.display_warning(f"the native library was not built, Eyas runs without it: {reason}")
        else:
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
