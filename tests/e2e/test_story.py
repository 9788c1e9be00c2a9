"""``eyas demo --story`` on the tiny pair: every figure is of the run, and the check names what was planted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eyas import cli
from eyas.check.findings import Verdict
from eyas.demo import story as story_module
from eyas.demo.story import How, Story, packaged_story, run_story
from eyas.draft.checkpoint import load_draft
from eyas.engine.session import builtin_draft_folder
from eyas.testing import load_tiny_target, tiny_pair

pytestmark = pytest.mark.slow

TARGET, DRAFT = tiny_pair()
TINY = Story(TARGET, "tiny", DRAFT, (1, 3, 7))
"""The tiny draft was trained on taps (2, 4, 5)."""
HOW = How(prompts=4, max_new_tokens=32, check_prompts=6)


def tell(folder: Path, story: Story = TINY, how: How = HOW) -> tuple[dict[str, Any], str]:
    console = Console(file=io.StringIO(), width=120)
    result = run_story(story, how, folder, console, lambda _: None)
    return json.loads(json.dumps(result)), console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp("story")
    return *tell(folder), folder


def test_sixteen_are_asked_and_two_run(told: tuple[dict[str, Any], str, Path]) -> None:
    result, text, _ = told
    (finding,) = result["flags"]["findings"]
    assert (finding["kind"], finding["data"]["asked"], finding["data"]["effective"]) == ("flags.clamped", 16, 2)
    assert "--speculative-num-draft-tokens" in text
    assert result["runs"][1]["ceiling"] == result["flags"]["ceiling"] == 2


def test_the_draft_is_shown_without_contract_and_with_the_ids_believed(
    told: tuple[dict[str, Any], str, Path],
) -> None:
    result, _, folder = told
    assert {path.name for path in (folder / "draft").iterdir()} == {"config.json", "model.safetensors"}
    assert "eyas" not in json.loads((folder / "draft" / "config.json").read_text())
    assert result["config"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 6]
    assert result["config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 7]
    assert (folder / "launch.sh").read_text().strip() == result["launch"]


def test_the_check_names_the_taps_and_mends_them(told: tuple[dict[str, Any], str, Path]) -> None:
    result, text, folder = told
    assert result["named"] is True
    assert result["verdict"]["answer"] == "fault"
    assert {f["kind"] for f in result["verdict"]["findings"] if f["weight"] == "fault"} == {
        "flags.clamped",
        "taps.wrong",
    }
    assert "trained on taps (2, 4, 5)" in text
    assert result["again"]["exit_code"] == 0
    target = load_tiny_target()
    assert load_draft(folder / "mended", target).config.taps == (2, 4, 5)
    assert str(folder) not in text + json.dumps(result)


def test_served_with_its_own_taps_more_is_accepted_and_the_text_stays(
    told: tuple[dict[str, Any], str, Path],
) -> None:
    result, text, _ = told
    plain, launched, wrong, mended = result["runs"]
    assert [run["taps"] for run in result["runs"]] == [None, [1, 3, 7], [1, 3, 7], [2, 4, 5]]
    assert [run["num_steps"] for run in result["runs"]] == [None, 1, 3, 3]
    assert plain["accept_length"] is None
    assert mended["accept_length"] > wrong["accept_length"]
    assert launched["tokens"] == wrong["tokens"] == mended["tokens"] == plain["tokens"]
    assert result["identical"] is True
    assert f"{mended['accept_length']:.2f}" in text
    assert [one["serves"] for one in result["servable"]] == [True, True]


def test_a_draft_that_is_served_as_trained_has_nothing_named(tmp_path: Path) -> None:
    result, _ = tell(tmp_path, Story(TARGET, "tiny", DRAFT, (2, 4, 5)))
    assert (result["named"], result["again"]) == (False, None)
    assert [run["taps"] for run in result["runs"][1:]] == [[2, 4, 5]] * 2


def test_what_cannot_be_mended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Verdict("undecided", "either this, or that", (), ())
    monkeypatch.setattr(story_module, "run_check", lambda *_: verdict)
    result, text = tell(tmp_path)
    assert (result["named"], result["again"], len(result["runs"])) == (False, None, 3)
    assert "Nothing was mended." in text


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["eyas", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_the_verb_prints_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.pull.resolve_model", lambda *_: TARGET)
    monkeypatch.setattr("eyas.demo.story.packaged_story", lambda *_: TINY)
    code, out, err = run("demo", "--story", "--json", "--prompts", "4", "--max-new-tokens", "16")
    assert code == 0, err
    assert json.loads(out)["runs"][0]["prompts"] == 4


def test_the_story_has_its_own_draft(run: Run) -> None:
    code, _, err = run("demo", "--story", "--draft", str(DRAFT))
    assert code == 2
    assert "[flags.contradiction]" in err


def test_the_packaged_draft_of_the_story_says_what_it_was_trained_on() -> None:
    """It brings contract and card: what the story takes away from it."""
    story = packaged_story(TARGET, "builtin:smollm2-135m")
    contract = json.loads((story.trained / "contract.json").read_text())
    shipped = builtin_draft_folder("builtin:smollm2-135m")
    assert shipped is not None
    assert tuple(contract["taps"]) != story.served
    assert contract["taps"] == [0, 3, 15]
    assert contract["target"] == json.loads((shipped / "contract.json").read_text())["target"]
    assert (story.trained / "README.md").is_file()
