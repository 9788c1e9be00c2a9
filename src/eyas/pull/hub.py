"""Models from the Hugging Face hub: safetensors, tokenizer and config files; no pickles, no code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from threading import Event, Thread
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from eyas.artifacts import Progress, build_folder, file_sizes, hold_lock, is_whole, require_free
from eyas.errors import EyasError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*", "README.md")
# Mistral ships the same weights a second time under this name.
LEFT_OUT = ("consolidated*.safetensors", "*/*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
POLL_SECONDS = 0.2
OFFLINE_FIX = "check the network (and HF_ENDPOINT, HF_HUB_OFFLINE), or give a local model folder"


def pull_hub(source: str, cache: Path, progress: Progress) -> Path:
    """The folder of a hub model ``org/name`` or ``org/name@revision``; an interrupted download resumes.

    Raises ``pull.unknown-source``, ``pull.no-access``, ``pull.no-network``, ``pull.disk-full``,
    ``artifact.pickle``.
    """
    repo, _, revision = source.partition("@")
    target = cache / "models" / ("hub--" + source.replace("/", "--").replace("@", "--at--"))
    with hold_lock(cache, target.name, progress):
        if is_whole(target):
            return target
        progress(f"asking the hub for {source}", 0, 0)
        try:
            info = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
            files = _wanted_files(source, info.siblings or [])
            require_free(cache, sum(files.values()), source)
            with build_folder(target, "model", source, f"Hugging Face hub {repo}", resume=True) as draft:
                with _watch(draft.path, f"downloading {source}", sum(files.values()), progress):
                    snapshot_download(repo, revision=info.sha, local_dir=draft.path, allow_patterns=sorted(files))
                _tidy(draft.path, files)
                draft.provenance.update(repo=repo, revision=revision or "main", commit=info.sha)
        except GatedRepoError as error:
            fix = f"accept the licence of {repo} on the hub, then log in with `hf auth login`"
            raise EyasError("pull.no-access", f"{repo} is gated", fix) from error
        except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
            fix = "check the spelling; for a private model log in with `hf auth login`"
            raise EyasError("pull.unknown-source", f"the hub has no model {source}", fix) from error
        except (OfflineModeIsEnabled, LocalEntryNotFoundError, HTTPError) as error:
            raise EyasError("pull.no-network", f"the hub did not answer for {source}: {error}", OFFLINE_FIX) from error
    return target


def _wanted_files(source: str, siblings: list[Any]) -> dict[str, int]:
    """name -> size in bytes of the files to fetch; raises ``artifact.pickle`` or ``pull.unknown-source``."""
    names = {sibling.rfilename: int(sibling.size or 0) for sibling in siblings}
    chosen = {name: size for name, size in names.items() if _any(name, WANTED) and not _any(name, LEFT_OUT)}
    if not any(name.endswith(".safetensors") for name in chosen):
        pickles = [name for name in names if _any(name, PICKLES)]
        if pickles:
            raise EyasError(
                "artifact.pickle",
                f"{source} has its weights only as a pickle ({pickles[0]}), which can run code when read",
                "look for a copy of the model in safetensors",
            )
        raise EyasError("pull.unknown-source", f"{source} holds no safetensors weights", "check the model's page")
    return chosen


def _tidy(folder: Path, files: Mapping[str, int]) -> None:
    """Remove the hub client's bookkeeping, which makes a download resumable, and an older commit's files."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


@contextmanager
def _watch(folder: Path, what: str, total: int, progress: Progress) -> Iterator[None]:
    """Report the bytes below ``folder`` while the body runs, in place of the hub client's own bars."""
    done = Event()

    def report() -> None:
        while not done.wait(POLL_SECONDS):
            progress(what, min(sum(file_sizes(folder)), total), total)

    thread = Thread(target=report, daemon=True)
    silenced = are_progress_bars_disabled()
    disable_progress_bars()
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if not silenced:
            enable_progress_bars()
    progress(what, total, total)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
