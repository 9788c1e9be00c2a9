"""Compile the native library with whatever C++ compiler there is. Used by the build hook; by hand:

python src/eyas/kernels/cpu/build.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "libeyas_cpu.so"
SOURCES: dict[str, tuple[str, ...]] = {"api": (), "layer_api": (), "linear_base": ()}
X86_SOURCES = {
    "linear_avx2": ("-mavx2", "-mfma"),
    "linear_avx512": ("-mavx512f", "-mfma"),
    "linear_avx512vnni": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mfma"),
}
# Multiply-adds are fused wherever the processor can, so that all tiles round alike.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fvisibility=hidden")
API_FLAGS = ("-fvisibility=default",)
HERE = Path(__file__).parent


def sources_digest() -> str:
    """What the library is compiled from, as 64 hex digits; the library keeps it, so that a stale one is known."""
    digest = hashlib.sha256()
    for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp"), Path(__file__)]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def compile_library(folder: Path, compiler: str | None = None) -> Path | None:
    """Build the library into ``folder``; None where there is no compiler or the platform is not Linux.

    ``compiler``: a command line, by default $CXX or the system's. One that fails raises CalledProcessError, one that is
    not there OSError. The instruction set is chosen when the library runs.
    """
    command = shlex.split(compiler or os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    if not command or sys.platform != "linux":
        return None
    sources = SOURCES | (X86_SOURCES if platform.machine() in ("x86_64", "AMD64") else {})
    with tempfile.TemporaryDirectory() as scratch:
        objects = []
        for name, extra in sources.items():
            made = Path(scratch) / f"{name}.o"
            flags = (*FLAGS, *API_FLAGS, f'-DEYAS_SOURCES="{sources_digest()}"') if name.endswith("api") else FLAGS
            subprocess.run([*command, *flags, *extra, "-c", str(HERE / f"{name}.cpp"), "-o", str(made)], check=True)
            objects.append(str(made))
        # Not linked with an OpenMP library: torch's own is there when this is loaded, and its threads are used.
        partial = Path(scratch) / NAME
        subprocess.run([*command, "-shared", *objects, "-o", str(partial)], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        # Beside, then renamed: a process that has the old one loaded keeps it.
        staged = folder / f".{NAME}.{os.getpid()}"
        shutil.copyfile(partial, staged)
        staged.replace(folder / NAME)
    return folder / NAME


if __name__ == "__main__":
    made = compile_library(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
    sys.exit(0 if made else "no C++ compiler: Eyas runs without its own kernels")
