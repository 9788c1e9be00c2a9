"""What is asked is run, or refused with both sides named; what is not asked says where it came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eyas.draft.checkpoint import load_draft
from eyas.errors import EyasError
from eyas.serve.resolve import Serving, resolve
from eyas.serve.settings import merge
from eyas.serve.sizes import check_ranks
from eyas.serve.wording import open_tokenizer, template_kwargs
from eyas.testing import load_tiny_target, tiny_pair
from support.promises import contract_of

TARGET, DRAFT = tiny_pair()
FREE = 100 << 20
SLOT = 2304
TEMPLATE = "<tool_call> <think>"


def serving(free: int = FREE, **flags: object) -> Serving:
    given = {"model_path": str(TARGET), "speculative_draft_model_path": str(DRAFT)} | flags
    return resolve(*merge(given, None), TARGET, TEMPLATE, free)


def refused(**flags: object) -> EyasError:
    with pytest.raises(EyasError) as caught:
        serving(**flags)  # type: ignore[arg-type]
    assert caught.value.fix
    return caught.value


def origin(found: Serving, name: str) -> tuple[object, str]:
    entry = found.to_json()[name]
    return entry["value"], entry["origin"]


def test_what_is_asked_is_what_runs_and_is_called_a_flag() -> None:
    found = serving(
        speculative_num_steps=4, max_total_tokens=2000, context_length=500, chunked_prefill_size=64, threads=1,
        random_seed=7, dtype="bf16", disable_radix_cache=True, speculative_adaptive=False, schedule_policy="fcfs",
    )  # fmt: skip
    engine = found.engine
    assert engine.speculation is not None
    assert (engine.algorithm, engine.speculation.num_steps, engine.adaptive) == ("EAGLE3", 4, False)
    assert (engine.num_slots, engine.context, engine.prefill_tokens, engine.threads) == (2000, 500, 64, 1)
    assert (engine.prefix_cache, engine.by_priority, engine.dtype) == (False, False, "bf16")
    for name in ("speculative_num_steps", "max_total_tokens", "context_length", "random_seed", "dtype"):
        assert origin(found, name)[1] == "flag"


def test_what_is_not_asked_says_where_it_came_from() -> None:
    found = serving()
    assert origin(found, "speculative_algorithm") == ("EAGLE3", "default")
    assert origin(found, "context_length") == (1024, "model config")
    assert origin(found, "max_total_tokens")[1] == "measured memory"
    assert origin(serving(1 << 30), "max_total_tokens") == (64 * 1024, "default")
    assert origin(serving(1 << 30, max_running_requests=1), "max_total_tokens")[0] > found.engine.context
    assert origin(found, "random_seed") == (None, "default")
    assert origin(found, "tool_call_parser") == ("hermes", "chat template")
    assert origin(found, "reasoning_parser") == ("qwen3", "chat template")
    assert origin(found, "speculative_adaptive") == (True, "default")
    assert origin(found, "limit_top_logprobs") == (20, "default")
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


def test_parsers_are_as_asked_or_off() -> None:
    found = serving(tool_call_parser="kimi_k2", reasoning_parser="none")
    assert (found.tool_format, found.reasoning_format) == ("kimi_k2", None)
    assert origin(found, "reasoning_parser") == ("none", "flag")


def test_the_models_own_sampling_stands_where_requests_are_silent(tmp_path: Path) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": 2}')
    flags, origins = merge({"model_path": str(folder), "speculative_draft_model_path": str(DRAFT)}, None)
    found = resolve(flags, origins, folder, TEMPLATE, FREE)
    assert found.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert origin(found, "default temperature") == (0.6, "model config")
    (folder / "generation_config.json").write_text('{"temperature": -1.0}')
    with pytest.raises(EyasError, match=r"model\.config"):
        resolve(flags, origins, folder, TEMPLATE, FREE)


def test_thinking_is_as_the_draft_learnt_it() -> None:
    target = load_tiny_target()
    contract = contract_of(target, load_draft(DRAFT, target))
    learnt = contract.rendering.model_copy(update={"thinking": "off"})
    assert template_kwargs(contract) == {}
    assert template_kwargs(contract.model_copy(update={"rendering": learnt}))["enable_thinking"] is False


def test_a_tokenizer_and_a_template_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    settings, _ = merge({"model_path": "x", "tokenizer_path": str(TARGET), "chat_template": file}, None)
    assert open_tokenizer(settings, tmp_path).chat_template == "{{ messages }}"
    assert serving(chat_template=file).engine.chat_template == "{{ messages }}"
    for flags in ({"tokenizer_path": str(tmp_path)}, {"chat_template": tmp_path / "nowhere"}):
        with pytest.raises(EyasError, match=r"artifact\.missing"):
            open_tokenizer(merge(flags, None)[0], TARGET)


def test_slots_are_counted_as_the_caches_take_them() -> None:
    target = load_tiny_target()
    draft = load_draft(DRAFT, target)
    layers = [*target.new_cache(1).layers, *draft.new_cache(1).layers]
    assert sum(layer.nbytes for layer in layers) == SLOT
    found = serving(mem_fraction_static=0.5)
    assert origin(found, "max_total_tokens")[1] == "measured memory"
    assert found.engine.num_slots == (FREE // 2 - 1818624) // SLOT


def test_replicas_share_the_memory_and_the_threads() -> None:
    one, two = serving(mem_fraction_static=0.5), serving(mem_fraction_static=0.5, dp_size=2)
    assert two.engine.num_slots < one.engine.num_slots / 2 + 1
    assert two.engine.threads >= 1


def test_ranks_share_the_targets_slots_and_each_has_the_drafts() -> None:
    """Of 8 layers with 2 key heads each rank holds one; of the draft's layer, whole on both, each holds all."""
    one, two = serving(mem_fraction_static=0.5), serving(mem_fraction_static=0.5, tp_size=2)
    target = load_tiny_target()
    drafts = sum(layer.nbytes for layer in load_draft(DRAFT, target).new_cache(1).layers)
    most = FREE // 2 - 1818624
    assert two.engine.tp_size == 2
    assert one.engine.num_slots == most // SLOT
    assert two.engine.num_slots < most // (SLOT + drafts)


def test_ranks_are_for_llamas_and_gpus_of_their_own(tmp_path: Path) -> None:
    config = json.loads((TARGET / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["GPTNeoXForCausalLM"]}))
    with pytest.raises(EyasError, match="not shared between processes") as caught:
        check_ranks(tmp_path, 2, "cpu")
    assert caught.value.code == "flags.unsupported"
    with pytest.raises(EyasError, match="a GPU of its own") as caught:
        check_ranks(TARGET, 2, "cuda:1")
    assert caught.value.code == "flags.contradiction"
    check_ranks(TARGET, 2, "cpu")


def test_steps_come_from_the_drafts_contract(tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "draft")
    target = load_tiny_target()
    contract = json.loads(contract_of(target, load_draft(DRAFT, target)).to_json())
    promised = {
        "prompt_set": "tiny", "num_steps": 5, "temperature": 0.0, "draft_sampling": "one-hot", "accept_length": 2.5,
        "low": 2.0, "high": 3.0, "ceiling": 6, "survival": [0.8, 0.4, 0.2, 0.05, 0.05],
    }  # fmt: skip
    (tmp_path / "draft" / "contract.json").write_text(json.dumps(contract | {"expected": [promised]}))
    flags = {"speculative_draft_model_path": str(tmp_path / "draft")}
    found = serving(**flags)  # type: ignore[arg-type]
    assert origin(found, "speculative_num_steps") == (5, "draft's contract")
    assert origin(found, "accept_length_ceiling") == (6, "draft's contract")
    assert origin(found, "accept_length_expected (tiny)") == (2.5, "draft's contract")
    asked = serving(**flags, speculative_num_steps=2)  # type: ignore[arg-type]
    assert origin(asked, "speculative_num_steps") == (2, "flag")
    assert origin(asked, "speculative_num_draft_tokens") == (3, "default")


def test_prefill_by_either_name() -> None:
    assert serving(max_prefill_tokens=100).engine.prefill_tokens == 100
    assert serving(max_prefill_tokens=9000, chunked_prefill_size=64).engine.prefill_tokens == 64


def test_a_small_cache_shortens_the_context_and_says_so() -> None:
    found = serving(max_total_tokens=200)
    assert found.engine.context < 200
    assert origin(found, "context_length")[1] == "flag"


def test_neither_paths_nor_keys_are_given_away() -> None:
    found = serving(api_key=("secret",))
    assert found.engine.model == TARGET.name
    assert origin(found, "api_key") == (1, "flag")
    assert "secret" not in str(found.to_json()) + found.engine.model_dump_json()
    assert found.to_json()["model_path"]["value"] == str(TARGET)
    assert str(TARGET.parent) not in str(found.public())


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (
            {"speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 16},
            "flags.contradiction",
            ["--speculative-num-draft-tokens 16", "--speculative-num-steps 1"],
        ),
        (
            {"speculative_algorithm": "NONE", "speculative_draft_model_path": "none", "speculative_num_steps": 3},
            "flags.contradiction",
            ["--speculative-num-steps 3", "NONE"],
        ),
        ({"speculative_algorithm": "NGRAM"}, "flags.contradiction", ["--speculative-draft-model-path", "NGRAM"]),
        ({"speculative_algorithm": "EAGLE"}, "flags.range", ["EAGLE"]),
        (
            {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "none"},
            "flags.contradiction",
            ["EAGLE3", "--speculative-draft-model-path is none"],
        ),
        (
            {"speculative_draft_model_path": "none", "speculative_adaptive": True},
            "flags.contradiction",
            ["--speculative-adaptive", "NONE"],
        ),
        ({"context_length": 5000}, "flags.contradiction", ["--context-length 5000", "1024"]),
        (
            {"context_length": 1000, "max_total_tokens": 900},
            "flags.contradiction",
            ["--context-length 1000", "--max-total-tokens 900"],
        ),
        (
            {"max_total_tokens": 40000, "mem_fraction_static": 0.1},
            "flags.contradiction",
            ["--max-total-tokens 40000", "--mem-fraction-static 0.1"],
        ),
        ({"max_total_tokens": 10**6}, "flags.range", ["--max-total-tokens 1000000", "free"]),
        ({"max_total_tokens": 8}, "flags.range", ["--max-total-tokens 8"]),
        ({"tp_size": 3}, "flags.range", ["3 ranks", "2 key heads"]),
        ({"device": "tpu:0:1"}, "flags.range", ["--device"]),
        ({"device": "meta"}, "flags.range", ["--device meta"]),
        ({"tool_call_parser": "qwen9"}, "flags.range", ["--tool-call-parser qwen9"]),
        ({"chat_template": Path("nowhere.jinja")}, "artifact.missing", ["nowhere.jinja"]),
    ],
)
def test_a_contradiction_names_both_sides(flags: dict, code: str, words: list[str]) -> None:
    error = refused(**flags)
    assert error.code == code
    assert all(word in error.cause for word in words), error.cause


def test_no_memory_is_said_and_not_papered_over() -> None:
    with pytest.raises(EyasError, match="leave no room"):
        serving(free=1 << 20)
