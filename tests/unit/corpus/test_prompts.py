import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.corpus import prompts
from eyas.corpus.prompts import Prompt, read_prompts, write_prompts
from eyas.errors import EyasError

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rain in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": ""},
    {"role": "assistant", "content": "No.", "reasoning_content": "It is dry."},
    {"role": "user", "content": "Thanks."},
]


def written(tmp_path, *records):
    path = tmp_path / "mine.jsonl"
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def refusal(path):
    with pytest.raises(EyasError) as caught:
        list(read_prompts(path))
    assert caught.value.code == "artifact.corrupt"
    return caught.value.cause


def test_the_three_forms_say_the_same(tmp_path):
    turns = [("system", "s"), ("human", "hi"), ("gpt", "hello"), ("user", "more")]
    names = {"human": "user", "gpt": "assistant"}
    messages = tuple({"role": names.get(who, who), "content": text} for who, text in turns)
    path = written(
        tmp_path,
        {"id": "a", "conversations": [{"from": who, "value": text} for who, text in turns]},
        {"id": "b", "messages": list(messages)},
        {"id": "c", "system": "s", "conversations": list(messages[1:])},
        {"id": "d", "prompt": "hi"},
        {"id": "e", "prompt": [{"role": "developer", "content": [{"type": "text", "text": "hi"}]}, messages[1]]},
    )
    *whole, plain, mixed = read_prompts(path)
    assert [prompt.messages for prompt in whole] == [messages] * 3
    assert whole[0].user_turns == ("hi", "more")
    assert plain.messages == messages[1:2]
    assert mixed.messages == ({"role": "system", "content": "hi"}, messages[1])


def test_tool_calls_and_their_results_are_kept(tmp_path):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    (prompt,) = read_prompts(written(tmp_path, {"messages": TOOL_CHAT, "tools": tools}))
    assert prompt.tools == tuple(tools)
    assert prompt.messages[2] == {"role": "assistant", "tool_calls": [CALL]}
    assert prompt.messages[3:5] == tuple(TOOL_CHAT[3:5])


def test_where_a_prompt_comes_from_is_read_or_filled_in(tmp_path):
    given_all = {"id": 7, "prompt": "a", "source": "x", "license": "MIT", "category": "math", "raw": "r", "lang": "en"}
    first, second = read_prompts(written(tmp_path, given_all, {"prompt": "b", "licence": None}))
    assert first == Prompt(id="7", messages=first.messages, source="x", licence="MIT", domain="math", raw="r")
    assert (second.id, second.source, second.licence, second.domain) == ("mine-2", "mine.jsonl", "", "")


def test_blank_lines_windows_ends_and_a_byte_order_mark_mean_nothing(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b\xe2\x80\xa8c"}')
    assert [(p.id, p.user_turns) for p in read_prompts(path)] == [("mine-1", ("a",)), ("mine-4", ("b\u2028c",))]


turn = st.tuples(st.sampled_from(["user", "assistant"]), st.text(min_size=1).filter(str.strip))


@settings(deadline=None)
@given(st.lists(turn, min_size=1, max_size=6), st.text(min_size=1), st.text())
def test_what_is_written_is_read_again(tmp_path_factory, turns, name, domain):
    messages = tuple({"role": role, "content": text} for role, text in turns)
    roles = ["first", *(role for role, _ in turns)]
    possible = all(b != "assistant" or a == "user" for a, b in pairwise(roles))
    try:
        prompt = Prompt(id=name, messages=messages, domain=domain, source="s")
    except ValueError:
        assert not possible
        return
    assert possible
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_text(write_prompts([prompt]), encoding="utf-8", newline="")
    assert list(read_prompts(path)) == [prompt]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("text", "a JSON object is expected, not str"),
        ([{"prompt": "a"}], "begins a JSON array"),
        ({"question": "a"}, "none of messages, conversations, prompt"),
        ({"prompt": "a", "messages": TOOL_CHAT}, "say different things"),
        ({"conversations": [{"from": "human", "value": "a"}], "messages": TOOL_CHAT}, "say different things"),
        ({"prompt": " "}, "message 1: its content is empty"),
        ({"prompt": 3}, "no list of messages"),
        ({"messages": []}, "nobody asks"),
        ({"messages": ["a"]}, "no list of messages"),
        ({"messages": TOOL_CHAT[:1]}, "nobody asks"),
        ({"messages": TOOL_CHAT[1::-1]}, "message 2: a system message stands only"),
        ({"messages": TOOL_CHAT[4:]}, "message 1: an assistant speaks first"),
        ({"messages": [*TOOL_CHAT[:3], TOOL_CHAT[5]]}, "message 4: the tool call c1 before it has no answer"),
        ({"messages": [*TOOL_CHAT[:4], TOOL_CHAT[3]]}, "message 5: it answers the tool call c1, which is not open"),
        ({"messages": [*TOOL_CHAT[:3], {"role": "tool", "content": "x"}]}, "must both have an id"),
        ({"messages": [TOOL_CHAT[1], TOOL_CHAT[3]]}, "message 2: a tool answers, and no assistant called it"),
        ({"messages": [*TOOL_CHAT[:2], TOOL_CHAT[4], TOOL_CHAT[4]]}, "an assistant speaks after assistant"),
        ({"messages": [{**TOOL_CHAT[1], "tool_calls": [CALL]}]}, "a user cannot call tools"),
        ({"messages": [{**TOOL_CHAT[1], "tool_call_id": "c1"}]}, "a user has no tool_call_id"),
        ({"messages": [{**TOOL_CHAT[1], "name": 3}]}, "its name is no text"),
        ({"messages": [{**TOOL_CHAT[1], "audio": "x"}]}, "a message has 'audio'"),
        ({"messages": [TOOL_CHAT[1], {"role": "assistant", "tool_calls": [{}]}]}, "no list of functions"),
        ({"messages": [*TOOL_CHAT[:3], {"role": "tool", "tool_call_id": "c1"}]}, "it has no content"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "its role is 'robot'"),
        ({"messages": [{"role": "user", "content": 3}]}, "its content is no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "is no text"),
        ({"conversations": [{"from": "martian", "value": "a"}]}, "'martian' speaks"),
        ({"conversations": [{"from": ["x"], "value": "a"}]}, "speaks, who is none of"),
        ({"conversations": [{"from": "human", "value": ""}]}, "message 1: its content is empty"),
        ({"prompt": "a", "images": ["x"]}, "images cannot be held"),
        ({"prompt": "a", "tools": {}}, "tools is no list"),
        ({"prompt": "a", "system": 1}, "system is no text"),
        ({"prompt": "a", "id": True}, "id is neither a text nor a number"),
        ({"prompt": "a", "raw": 1}, "raw: "),
        ({"prompt": "a\ud800"}, "half of a surrogate pair"),
    ],
)
def test_a_record_that_is_no_prompt_is_named_by_its_line(tmp_path, record, said):
    cause = refusal(written(tmp_path, {"prompt": "fine"}, b"", record))
    assert "mine.jsonl, line 3," in cause
    assert said in cause


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "caf\xe9"}', "byte 16 is not UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16"), "byte 1 is not UTF-8"),
        (b'{"prompt": NaN}', "NaN is not a number"),
        (b'{"prompt": "a"} {"prompt": "b"}', "no whole JSON object"),
        (b"[", "begins a JSON array"),
        (b"[" * 100_000 + b"]" * 100_000, "recursion"),
    ],
)
def test_bytes_that_are_no_json_line_are_named(tmp_path, line, said):
    cause = refusal(written(tmp_path, line))
    assert "line 1," in cause
    assert said in cause


def test_a_last_line_that_is_cut_off_says_so(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b')
    assert "line 2" in refusal(path)
    assert "may be cut off" in refusal(path)
    path.write_text('{"prompt": "a"}\n{"prompt": "b\n')
    assert "cut off" not in refusal(path)


def test_an_id_that_is_there_twice_names_both_lines(tmp_path):
    cause = refusal(written(tmp_path, {"id": 1, "prompt": "a"}, {"prompt": "b"}, {"id": "1", "prompt": "c"}))
    assert "line 3" in cause
    assert "'1' is there already, in line 1" in cause


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "MAX_LINE_BYTES", 1000)
    fits = b'{"prompt": "' + b"a" * (1000 - 15) + b'"}'
    assert len(fits) + 1 == 1000
    assert len(list(read_prompts(written(tmp_path, fits)))) == 1
    assert "longer than 1000 bytes" in refusal(written(tmp_path, {"prompt": "x"}, fits[:-3] + b'aaa"}'))
    assert "JSON array" in refusal(written(tmp_path, b"[" + b" " * 1000))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_prompt_is_refused(tmp_path, content):
    (tmp_path / "mine.jsonl").write_bytes(content)
    assert "holds no prompt" in refusal(tmp_path / "mine.jsonl")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EyasError, match=r"artifact.missing"):
        list(read_prompts(tmp_path))
