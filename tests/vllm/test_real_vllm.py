"""``eyas check --endpoint`` on a real vLLM: the packaged draft as it should be served, and with planted faults.

The served folder is changed; the check is given the draft as it was trained. Every case starts a server of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eyas.check.endpoint_read import Observation, observe
from eyas.check.evidence import answered, packaged_prompts
from eyas.check.findings import Finding, Link
from eyas.check.hypotheses import DECLARED
from eyas.check.measure import Rig
from eyas.check.outside import Asked, judge_server
from eyas.cli import app
from eyas.dialects.checkpoint import EAGLE_KEY, IDS_KEY, Runner, read_by
from eyas.dialects.engines import Engine
from eyas.draft.checkpoint import read_draft
from eyas.engine.session import builtin_draft_folder, open_session
from eyas.export import Asked as AskedExport
from eyas.export import Goal, export_draft
from support.vllm_server import serving

VERSION = "0.32.0"
K = 3
PROMPTS, TOKENS = 12, 64
Config = dict[str, Any]
Plant = Callable[[Config, dict[str, torch.Tensor]], None]


@dataclass(frozen=True)
class Bench:
    """The target, its answers to the prompts, and a draft with the walks over them."""

    target: Path
    rig: Rig
    conversations: list[tuple[list[int], list[int]]]


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged draft as ``eyas export --to vllm`` writes it."""
    packaged, folder = builtin_draft_folder("builtin:smollm2-135m"), tmp_path_factory.mktemp("export") / "draft"
    assert packaged is not None
    export_draft(packaged, Goal.parse("vllm", VERSION), folder, AskedExport())
    return folder


@pytest.fixture(scope="session")
def bench(builtin_target_folder: Path, draft: Path) -> Bench:
    session = open_session(builtin_target_folder, None, "fp32")
    ids = [session.encode_chat([("user", text)]) for text in packaged_prompts(PROMPTS)]
    texts = answered(session.target, ids, session.eos_ids, TOKENS)
    conversations = [text.conversation for text in texts]
    assert len(conversations) == PROMPTS
    return Bench(builtin_target_folder, Rig(read_draft(draft, session.target), session.target, texts), conversations)


def changed(source: Path, folder: Path, plant: Plant) -> Path:
    """A copy of a draft with a fault in it."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    plant(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def without_ids(config: Config, _: dict[str, torch.Tensor]) -> None:
    del config[IDS_KEY]
    config.pop(EAGLE_KEY, None)


def ids_of_the_other_engine(config: Config, _: dict[str, torch.Tensor]) -> None:
    config[IDS_KEY] = config[EAGLE_KEY][IDS_KEY]


def ids_nested_only(config: Config, _: dict[str, torch.Tensor]) -> None:
    del config[IDS_KEY]


def norm_output_on(config: Config, _: dict[str, torch.Tensor]) -> None:
    config["norm_output"] = True


def without_map(_: Config, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["d2t"]


def ask(bench: Bench, url: str) -> Observation:
    return observe(url, [prompt for prompt, _ in bench.conversations], TOKENS, timeout=600)


def judged(bench: Bench, seen: Observation) -> tuple[list[Finding], Link]:
    findings, link, _ = judge_server(seen, bench.rig, [a for _, a in bench.conversations], Asked(K))
    return findings, link


def row(planted: str, seen: Observation, findings: list[Finding], link: Link) -> dict[str, Any]:
    assert seen.total is not None
    return {
        "planted": planted,
        "engine": f"{seen.engine} {seen.version}",
        "counters": asdict(seen.total) | {"accept_length": seen.total.accept_length},
        "state": link.state,
        "link": link.said,
        "findings": [finding.to_json() for finding in findings],
    }


def faults(findings: list[Finding]) -> list[str]:
    return [finding.said for finding in findings if finding.weight == "fault"]


@pytest.mark.parametrize("level", ["detailed", "none"])
def test_a_healthy_draft_is_accepted_as_predicted(
    level: str, bench: Bench, draft: Path, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    """By per-request figures, and by the counters of /metrics alone: every request exact to the round."""
    extra = ["--per-request-spec-decode-metrics", level]
    with serving(vllm_python, bench.target, draft, K, tmp_path / "log", extra) as url:
        seen = ask(bench, url)
    findings, link = judged(bench, seen)
    table.append(row(f"nothing (per-request figures: {level})", seen, findings, link))
    assert (seen.engine, seen.version, seen.speculates) == ("vllm", VERSION, True)
    assert link.state == "proven", (link, findings)
    assert faults(findings) == []
    assert f"{PROMPTS} of {PROMPTS} requests exact" in link.said


PLANTED: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "layer ids of the other engine": (ids_of_the_other_engine, ("fed taps (1, 14, 26)",)),
    "layer ids in SGLang's place alone": (ids_nested_only, ("fed taps (1, 14, 26)",)),
    "norm_output on, trained off": (norm_output_on, ("norm_output on",)),
    "vocabulary map absent": (without_map, ("no map: draft ids taken for target ids",)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(
    name: str, bench: Bench, draft: Path, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    plant, named = PLANTED[name]
    served = changed(draft, tmp_path / "served", plant)
    with serving(vllm_python, bench.target, served, K, tmp_path / "log") as url:
        seen = ask(bench, url)
    findings, link = judged(bench, seen)
    table.append(row(name, seen, findings, link))
    said = " ".join(faults(findings))
    assert link.state == "broken", (link, findings)
    assert all(part in said for part in named), said


def test_ids_that_equal_the_default_may_be_absent(
    bench: Bench, draft: Path, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    """The packaged draft's taps are what vLLM takes where it reads no ids: that is no fault."""
    served = changed(draft, tmp_path / "served", without_ids)
    with serving(vllm_python, bench.target, served, K, tmp_path / "log") as url:
        seen = ask(bench, url)
    findings, link = judged(bench, seen)
    table.append(row("layer ids removed, taps the default", seen, findings, link))
    assert (link.state, faults(findings)) == ("proven", []), (link, findings)


def story_for_vllm(folder: Path) -> Path:
    """The story's draft, which was trained on taps (0, 3, 15), as vLLM reads it."""
    packaged = Path(str(files("eyas") / "assets" / "stories" / "smollm2-135m-embedding-3-15"))
    export_draft(packaged, Goal.parse("vllm", VERSION), folder, AskedExport())
    return folder


def checked(draft: Path, target: Path, url: str, folder: Path, count: int) -> tuple[dict[str, Any], int]:
    """(verdict, exit status) of the verb itself."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in packaged_prompts(count)))
    command = ["check", str(draft), "--target", str(target), "--prompts", str(prompts), "--json", "--endpoint", url]
    result = CliRunner().invoke(app, command)
    return json.loads(result.stdout), result.exit_code


def server_of(verdict: dict[str, Any]) -> dict[str, Any]:
    return next(link for link in verdict["links"] if link["name"] == "server")


def row_of(planted: str, verdict: dict[str, Any], status: int) -> dict[str, Any]:
    said = [finding for finding in verdict["findings"] if finding["level"] == "endpoint"]
    link = server_of(verdict)
    about = {"planted": planted, "answer": verdict["answer"], "exit": status, "headline": verdict["headline"]}
    return about | {"state": link["state"], "link": link["said"], "findings": said}


def test_a_draft_that_reads_the_embedding_is_proven(
    bench: Bench, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    """The verb, with a draft that has contract and witness and reads tap 0, which vLLM can capture."""
    trained = story_for_vllm(tmp_path / "story")
    with serving(vllm_python, bench.target, trained, K, tmp_path / "log") as url:
        verdict, status = checked(trained, bench.target, url, tmp_path, PROMPTS)
    table.append(row_of("nothing; taps (0, 3, 15)", verdict, status))
    assert server_of(verdict)["state"] == "proven", verdict["links"]
    assert (verdict["answer"], status) == ("proven", 0)
    assert verdict["ranking"][0]["name"] == DECLARED


def test_removed_ids_of_other_taps_are_a_fault(
    bench: Bench, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    """The verb: the same draft, served from a config without ids, is fed the default."""
    trained = story_for_vllm(tmp_path / "story")
    served = changed(trained, tmp_path / "served", without_ids)
    with serving(vllm_python, bench.target, served, K, tmp_path / "log") as url:
        verdict, status = checked(trained, bench.target, url, tmp_path, PROMPTS)
    table.append(row_of("layer ids removed, taps (0, 3, 15)", verdict, status))
    assert (verdict["answer"], status, server_of(verdict)["state"]) == ("fault", 1, "broken"), verdict["links"]
    assert "fed taps (2, 15, 27), which engines take where they read no layer ids" in verdict["headline"]


RUNNERS: tuple[Runner, ...] = ("v1", "v2")
READERS = """
import json, sys
from types import SimpleNamespace as N
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config as v2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
for config in json.load(sys.stdin):
    spec = N(draft_model_config=N(hf_config=N(**config)))
    v1 = GPUModelRunner._get_eagle3_aux_layers_from_config(N(speculative_config=spec))
    print(json.dumps({"v1": v1, "v2": v2(spec)}))
"""
CONFIGS: tuple[Config, ...] = (
    {},
    {IDS_KEY: [2, 15, 27]},
    {EAGLE_KEY: {IDS_KEY: [1, 14, 26]}},
    {EAGLE_KEY: {"layer_ids": [3, 4, 5]}},
    {IDS_KEY: [2, 15, 27], EAGLE_KEY: {IDS_KEY: [1, 14, 26]}},
    {IDS_KEY: [], EAGLE_KEY: {IDS_KEY: [1, 14, 26]}},
    {IDS_KEY: [], EAGLE_KEY: {"layer_ids": []}},
)


def test_layer_ids_as_vllms_own_code_reads_them(vllm_python: Path, table: list[Any]) -> None:
    """Its two model runners, asked themselves. Here only V1 can serve: V2, elsewhere the default, wants Triton, and it
    does not read the ids where SGLang's drafts have them.
    """
    command = [str(vllm_python), "-c", READERS]
    asked = subprocess.run(command, input=json.dumps(CONFIGS), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in asked.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(CONFIGS)
    for config, answer in zip(CONFIGS, answers, strict=True):
        ours = {runner: read_by(config, Engine.parse(f"vllm=={VERSION}"), runner) for runner in RUNNERS}
        assert {runner: found and list(found.ids) for runner, found in ours.items()} == answer, config
    table.append({"layer ids": [{"config": c} | a for c, a in zip(CONFIGS, answers, strict=True)]})


def test_a_template_of_another_kind_is_named(bench: Bench, vllm_python: Path, table: list[Any], tmp_path: Path) -> None:
    """Tokens as prompts are accepted as predicted, and chats are not what the draft was trained on."""
    trained, template = story_for_vllm(tmp_path / "story"), tmp_path / "plain.jinja"
    template.write_text("{{ messages | map(attribute='content') | join('\\n') }}")
    with serving(vllm_python, bench.target, trained, K, tmp_path / "log", ["--chat-template", str(template)]) as url:
        verdict, status = checked(trained, bench.target, url, tmp_path, 4)
    table.append(row_of("chat template without turns", verdict, status))
    named = [finding for finding in verdict["findings"] if finding["weight"] == "fault"]
    assert ([finding["kind"] for finding in named], status) == (["endpoint.template"], 1)
    assert named[0]["data"]["as"] == ["as their text alone, without a template"]


def test_a_server_without_speculation_is_told(
    bench: Bench, vllm_python: Path, table: list[Any], tmp_path: Path
) -> None:
    trained = story_for_vllm(tmp_path / "story")
    with serving(vllm_python, bench.target, None, K, tmp_path / "log") as url:
        verdict, status = checked(trained, bench.target, url, tmp_path, 4)
    table.append(row_of("speculation switched off", verdict, status))
    assert (verdict["answer"], status) == ("fault", 1)
    assert [finding["kind"] for finding in verdict["findings"] if finding["weight"] == "fault"] == ["endpoint.plain"]
