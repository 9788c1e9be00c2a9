"""The verbs as a user types them, on the tiny trained pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from eyas import cli
from eyas.cli import app
from eyas.corpus.prompts import Prompt
from eyas.speculate import round as round_module
from eyas.testing import TINY_PROMPTS, tiny_pair

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``eyas …`` in this process → (exit code, stdout, stderr)."""
    monkeypatch.setenv("EYAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["eyas", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (0 if code is None else int(code)), out, err

    return call


def assert_refused(err: str, code: str) -> None:
    assert f"[{code}]" in err, err
    assert "fix:" in err


def generate(run: Run, *flags: str, prompt: str = TINY_PROMPTS[2]) -> dict:
    target, draft = tiny_pair()
    code, out, err = run(
        "generate", prompt, "--model", str(target), "--draft", str(draft), "--max-new-tokens", "40", "--json", *flags
    )
    assert code == 0, err
    return json.loads(out)


def test_generate_gives_the_same_text_with_and_without_a_draft(run: Run) -> None:
    plain = generate(run, "--speculative-algorithm", "EAGLE3")
    target, _ = tiny_pair()
    words = ("generate", TINY_PROMPTS[2], "--model", str(target), "--draft", "none", "--max-new-tokens", "40", "--json")
    code, out, _ = run(*words)
    assert code == 0
    assert json.loads(out)["tokens"] == plain["tokens"]
    assert plain["figures"]["accept_length"] > 2
    assert plain["figures"]["ceiling"] == 4


@pytest.mark.parametrize(
    "flags",
    [
        ("--speculative-num-steps", "6"),
        ("--speculative-num-steps", "3", "--speculative-eagle-topk", "3", "--speculative-num-draft-tokens", "10"),
    ],
)
def test_sampled_text_is_that_of_plain_decoding_with_the_same_seed(run: Run, flags: tuple[str, ...]) -> None:
    sampling = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "7", "--repetition-penalty", "1.1")
    plain = generate(run, "--speculative-num-steps", "1", *sampling)
    assert generate(run, *flags, *sampling)["tokens"] == plain["tokens"]


def test_ngram_proposals_give_the_same_text(run: Run) -> None:
    target, _ = tiny_pair()
    words = ("generate", TINY_PROMPTS[3], "--model", str(target), "--max-new-tokens", "40", "--json")
    _, plain, _ = run(*words)
    code, out, err = run(*words, "--speculative-algorithm", "NGRAM")
    assert code == 0, err
    assert json.loads(out)["tokens"] == json.loads(plain)["tokens"]


def test_generate_shows_people_the_text_and_the_figures(run: Run) -> None:
    target, draft = tiny_pair()
    code, out, _ = run("generate", TINY_PROMPTS[0], "--model", str(target), "--draft", str(draft))
    assert code == 0
    assert "tok/s · EAGLE3 · " in out
    assert "kernels · accept length" in out
    assert "of 4" in out


def test_contradicting_flags_end_in_code_2_with_cause_and_fix(run: Run) -> None:
    target, draft = tiny_pair()
    words = ("generate", "x", "--model", str(target), "--draft", str(draft), "--speculative-num-steps", "1")
    code, out, err = run(*words, "--speculative-num-draft-tokens", "16")
    assert (code, out) == (2, "")
    assert_refused(err, "flags.contradiction")
    assert "fix:" in err
    code, out, _ = run(*words, "--speculative-num-draft-tokens", "16", "--json")
    assert code == 2
    assert set(json.loads(out)["error"]) == {"code", "cause", "fix"}


def test_a_prompt_longer_than_the_context_is_refused(run: Run) -> None:
    target, _ = tiny_pair()
    code, _, err = run("generate", "fox " * 3000, "--model", str(target), "--draft", "none")
    assert code == 1
    assert_refused(err, "request.too-long")


@pytest.mark.parametrize("flag", ["--logit-bias=word", "--logit-bias=9999=1", "--top-p=0", "--temperature=-1"])
def test_bad_sampling_is_refused(run: Run, flag: str) -> None:
    target, _ = tiny_pair()
    code, _, err = run("generate", "x", "--model", str(target), "--draft", "none", flag)
    assert code == 1
    assert_refused(err, "request.sampling")


def test_a_draft_of_another_target_is_refused(run: Run, tmp_path: Path) -> None:
    target, draft = tiny_pair()
    other = tmp_path / "other"
    other.mkdir()
    for file in draft.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    config["target_hidden_size"] = config["hidden_size"] = 128
    (other / "config.json").write_text(json.dumps(config))
    code, _, err = run("generate", "x", "--model", str(target), "--draft", str(other))
    assert code == 1
    assert_refused(err, "draft.target-mismatch")


def test_an_unknown_model_is_named(run: Run) -> None:
    code, _, err = run("generate", "x", "--model", "no-such-thing")
    assert code == 1
    assert_refused(err, "pull.unknown-source")
    assert "no-such-thing" in err


def test_list_says_where_the_cache_is_and_how_to_fill_it(run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert "eyas pull builtin:smollm2-135m" in out
    code, out, _ = run("list", "--json")
    assert json.loads(out)["entries"] == []


def test_pull_of_a_folder_checks_it_and_gives_it_back(run: Run) -> None:
    target, _ = tiny_pair()
    code, out, _ = run("pull", str(target), "--json")
    assert code == 0
    assert json.loads(out)["path"] == str(target)


def test_explain_knows_every_code_and_refuses_others(run: Run) -> None:
    code, out, _ = run("explain", "draft.vocab-map")
    assert code == 0
    assert "vocabulary map" in out
    code, _, err = run("explain", "no.such-code")
    assert code == 2
    assert_refused(err, "flags.unknown")


def test_ctrl_c_ends_with_130_and_says_what_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eyas.pull.pull", interrupted)
    code, _, err = run("pull", "builtin:smollm2-135m")
    assert code == 130
    assert "interrupted" in err


def test_a_package_that_is_not_installed_is_named_with_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'datasketch'", name="datasketch")

    monkeypatch.setattr("eyas.pull.pull", missing)
    code, _, err = run("pull", "builtin:smollm2-135m")
    assert code == 1
    assert_refused(err, "package.missing")
    assert "eyas[train]" in err


def test_demo_answers_twice_and_finds_the_texts_identical(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [
        Prompt(id=str(i), messages=({"role": "user", "content": text},), source=f"prompts:{'ab'[i % 2]}")
        for i, text in enumerate(TINY_PROMPTS[:4])
    ]
    monkeypatch.setattr("eyas.demo.demo.demo_prompts", lambda *_: prompts)
    target, draft = tiny_pair()
    words = ("demo", "--model", str(target), "--draft", str(draft), "--max-new-tokens", "24")
    code, out, err = run(*words)
    assert code == 0, err
    assert "identical: yes, all 4 answers token for token" in out
    assert "accept length" in out
    code, out, _ = run(*words, "--json")
    result = json.loads(out)
    assert result["identical"] is True
    assert set(result["sets"]) == {"a", "b", "all"}
    assert result["sets"]["all"]["speculative"]["ceiling"] == 3
    _, out, _ = run(*words, "--json", "--speculative-num-steps", "4")
    assert json.loads(out)["sets"]["all"]["speculative"]["ceiling"] == 5


def test_demo_names_an_answer_that_is_not_the_targets_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt(id="0", messages=({"role": "user", "content": TINY_PROMPTS[0]},), source="prompts:a")]
    monkeypatch.setattr("eyas.demo.demo.demo_prompts", lambda *_: prompts)
    honest = round_module.accept

    def biased(logits_RV: torch.Tensor, *rest: Any) -> list[tuple[list[int], int]]:
        """Takes the least likely token wherever a proposal is rejected, as a broken verification might."""
        choices = honest(logits_RV, *rest)
        drafting = len(logits_RV) > 1
        return [(path, int(logits_RV[0].argmin()) if drafting else last) for path, last in choices]

    monkeypatch.setattr(round_module, "accept", biased)
    target, draft = tiny_pair()
    code, _, err = run("demo", "--model", str(target), "--draft", str(draft), "--max-new-tokens", "24")
    assert code == 1
    assert_refused(err, "engine.not-lossless")
    assert "NOT a tie" in err


def test_chat_without_a_template_is_refused_and_raw_text_is_not(run: Run, tmp_path: Path) -> None:
    source, _ = tiny_pair()
    target = tmp_path / "bare"
    target.mkdir()
    for file in source.iterdir():
        if file.name != "chat_template.jinja":
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    code, _, err = run("generate", "The fox", "--model", str(target))
    assert code == 1
    assert_refused(err, "tokenizer.chat-template")
    code, out, _ = run("generate", "The fox", "--model", str(target), "--raw", "--max-new-tokens", "8", "--json")
    assert code == 0
    assert json.loads(out)["figures"]["tokens"] <= 8


def test_demo_without_a_draft_is_refused(run: Run) -> None:
    target, _ = tiny_pair()
    code, _, err = run("demo", "--model", str(target), "--draft", "none")
    assert code == 2
    assert_refused(err, "flags.contradiction")


def test_every_verb_that_takes_a_dtype_takes_int8_as_a_quantization_too() -> None:
    verbs, options = [get_command(app)], []
    while verbs:
        verb = verbs.pop()
        verbs += getattr(verb, "commands", {}).values()
        options.append({name for p in verb.params for name in p.opts})
    with_dtype = [names for names in options if "--dtype" in names]
    assert len(with_dtype) >= 7
    assert all("--quantization" in names for names in with_dtype)
