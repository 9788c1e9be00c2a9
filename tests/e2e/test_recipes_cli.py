"""``eyas recipes`` as a user types it."""

from __future__ import annotations

import json

import pytest

from eyas import cli
from eyas.recipes import load_recipe


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["eyas", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.mark.parametrize("words", [("recipes",), ("recipes", "list")])
def test_recipes_are_listed_with_their_figures(run, words):
    code, out, _ = run(*words)
    assert code == 0
    last = load_recipe("smollm2-135m").run.accept_lengths[-1]
    for word in ("smollm2-135m", "llama-3.1-8b", "not run", f"{last.accept_length:.2f} of {last.ceiling}"):
        assert word in out, word
    code, out, _ = run(*words, "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["recipes"]}
    assert rows["kimi-k2.5"]["run"] == "not run"
    assert rows["smollm2-135m"]["run"]["accept_lengths"]


def test_a_recipe_is_shown_to_be_changed(run, tmp_path):
    code, out, _ = run("recipes", "show", "qwen3-8b")
    assert code == 0
    assert out.startswith("# Qwen3-8B")
    mine = tmp_path / "mine.yaml"
    mine.write_text(out)
    code, out, _ = run("recipes", "show", str(mine), "--json")
    assert code == 0
    assert json.loads(out)["train"]["ttt_steps"] == 7


def test_an_unknown_recipe_is_refused(run):
    code, _, err = run("recipes", "show", "gpt-9")
    assert code == 1
    assert "[artifact.missing]" in err
