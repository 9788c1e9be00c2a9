"""Calls of tools and reasoning out of an answer's text: every form, every way to cut it, and nothing lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eyas.errors import EyasError
from eyas.serve.parsers import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    Content,
    Event,
    Reasoning,
    StreamParser,
    ToolArguments,
    ToolStart,
    call_id,
    needs_special_tokens,
    opens_reasoning,
    stream_parser,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "dry": {"type": "boolean"},
                    "tags": {"type": "array"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]

PARIS, TWO = {"city": 'Paris {"x"} \\'}, {"city": "São Paulo", "days": 3}
P, T = json.dumps(PARIS), json.dumps(TWO, ensure_ascii=False)
K0, K1, K2, K3, K4 = (
    f"<|tool_call{part}|>" for part in ("s_section_begin", "_begin", "_argument_begin", "_end", "s_section_end")
)
D0, D1, D2, D3, D4 = (f"<｜tool▁{part}｜>" for part in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"))

Call = tuple[str, dict[str, object]]
WHOLE: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {P}}}\n</tool_call>', "", [("get_weather", PARIS)]),
    (
        "qwen25",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {P}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>\n',
        "Let me see.",
        [("get_weather", PARIS), ("now", {})],
    ),
    ("hermes", f'<tool_call>{{"arguments": {T}, "name": "get_weather"}}</tool_call>', "", [("get_weather", TWO)]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call> Wait.', " Wait.", [("now", {})]),
    ("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {T}</tool_call>', "", [("get_weather", TWO)]),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "", [("now", {})]),
    (
        "smollm",
        f'<tool_call>[{{"name": "get_weather", "arguments": {P}}},\n{{"name": "now", "arguments": {{}}}}]</tool_call>',
        "",
        [("get_weather", PARIS), ("now", {})],
    ),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {P}}}', "", [("get_weather", PARIS)]),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {P}}}; {{"name": "now", "parameters": {{}}}}',
        "",
        [("get_weather", PARIS), ("now", {})],
    ),
    ("llama3_json", '{"type": "function", "name": "now", "parameters": {}}', "", [("now", {})]),
    (
        "kimi_k2",
        f"So.{K0}{K1}functions.get_weather:0{K2}{P}{K3}{K1} functions.now:1 {K2} {{}} {K3}{K4}",
        "So.",
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        "deepseekv3",
        f"{D0}{D1}function{D2}get_weather\n```json\n{P}\n```{D3}\n{D1}function{D2}now\n```json\n{{}}\n```{D3}{D4}",
        "",
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        "deepseekv31",
        f"So.\n\n{D0}{D1}get_weather{D2}{P}{D3}{D1}now{D2}{{}}{D3}{D4}",
        "So.",
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        "qwen3_coder",
        'Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\n"York"\n</parameter>\n<parameter=days>\n2\n'
        "</parameter>\n<parameter=dry>\nTrue\n</parameter>\n<parameter=tags>\n[1]\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Sure.",
        [("get_weather", {"city": 'New\n"York"', "days": 2, "dry": True, "tags": [1]}), ("now", {})],
    ),
    (
        "qwen3_coder",
        "<function=get_weather>\n<parameter=city>x</parameter></function>",
        "",
        [("get_weather", {"city": "x"})],
    ),
    (
        "pythonic",
        """[get_weather(city='it\\'s "]" (here)', tags=[1, {"a": None}], dry=True), now()]""",
        "",
        [("get_weather", {"city": 'it\'s "]" (here)', "tags": [1, {"a": None}], "dry": True}), ("now", {})],
    ),
]

BROKEN: list[tuple[str, str]] = [
    ("hermes", "<tool_call>nothing</tool_call>"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}, "name": "now"'),
    ("hermes", "a < b and <tool_cal"),
    ("smollm", "<tool_call>[]</tool_call>"),
    ("llama3_json", '{"answer": {"name": 1}}'),
    ("llama3_json", 'Here: {"name": "now", "parameters": {}}'),
    ("kimi_k2", f"{K0}{K1}functions.unknown:0{K2}{{}}{K3}{K4}"),
    ("kimi_k2", f"{K0}{K4}"),
    ("deepseekv3", f"{D0}{D1}function{D2}now\n{{}}{D3}{D4}"),
    ("deepseekv31", f"{D0} now {D4}"),
    ("qwen3_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("qwen3_coder", "if (a <function"),
    ("pythonic", "[now(1)]"),
    ("pythonic", "[now(), unknown()]"),
    ("pythonic", "[now(a=open('x'))]"),
    ("pythonic", "[now(a=b'x')]"),
    ("pythonic", "[1, 2, 3] is a list"),
    ("pythonic", "[now("),
]


def parser(tool_format: str | None, reasoning: str | None = None, opened: bool | None = None) -> StreamParser:
    number = count()
    return stream_parser(tool_format, reasoning, TOOLS, opened, lambda: f"call_{next(number)}")


def merged(events: Sequence[Event]) -> list[Event]:
    """Neighbours of one kind as one."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        match last, event:
            case (Content(a), Content(b)):
                out[-1] = Content(a + b)
            case (Reasoning(a), Reasoning(b)):
                out[-1] = Reasoning(a + b)
            case (ToolArguments(i, a), ToolArguments(j, b)) if i == j:
                out[-1] = ToolArguments(i, a + b)
            case _:
                out.append(event)
    return out


def run(made: StreamParser, text: str, cuts: Sequence[int] = ()) -> list[Event]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    events: list[Event] = []
    for begin, end in pairwise(borders):
        events += made.feed(text[begin:end])
    return merged([*events, *made.end()])


def contents(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def calls(events: Sequence[Event]) -> list[Call]:
    names = {event.index: event.name for event in events if isinstance(event, ToolStart)}
    given_text = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, ToolArguments):
            given_text[event.index] += event.text
    return [(names[i], json.loads(given_text[i])) for i in names]


@pytest.mark.parametrize(("form", "text", "content", "called"), WHOLE)
def test_calls_are_found_however_the_text_is_cut(form, text, content, called):
    events = run(parser(form), text)
    assert (contents(events), calls(events)) == (content, called)
    for cut in range(len(text) + 1):
        assert run(parser(form), text, [cut]) == events
    assert run(parser(form), text, range(len(text))) == events


@pytest.mark.parametrize(("form", "text"), BROKEN)
def test_what_is_no_call_is_content(form, text):
    assert run(parser(form), text) == [Content(text)]
    assert run(parser(form), text, range(len(text))) == [Content(text)]


def test_arguments_do_not_wait_for_their_end():
    made = parser("hermes")
    made.feed('<tool_call>\n{"name": "get_weather", "arguments": ')
    assert made.feed('{"city": "Par') == [ToolStart(0, "call_0", "get_weather"), ToolArguments(0, '{"city": "Par')]
    assert made.feed("is") == [ToolArguments(0, "is")]
    assert made.end() == [], "the answer was cut there, and so are the arguments"


@pytest.mark.parametrize("rest", ["", "}", "}\n</tool_c", "}]", "}, "])
def test_a_cut_form_is_no_content(rest):
    events = run(parser("hermes"), '<tool_call>[{"name": "now", "arguments": {}' + rest)
    assert events == [ToolStart(0, "call_0", "now"), ToolArguments(0, "{}")]


def test_content_does_not_wait_longer_than_it_must():
    made = parser("hermes")
    assert made.feed("a <") == [Content("a")]
    assert made.feed("b") == [Content(" <b")]


def test_ids():
    assert call_id() != call_id()
    assert call_id().startswith("call_")
    kimi = run(parser("kimi_k2"), f"{K0}{K1}functions.now:7{K2}{{}}{K3}{K4}")
    assert kimi[0] == ToolStart(0, "functions.now:7", "now"), "Kimi names its calls itself"


FORM = regex.compile(
    r"(?:\s|[\[\]{},;]|```|</?tool_call>|</?think>|◁/?think▷|<\|tool_calls?_(?:section_)?(?:begin|end)\|>|"
    r"<｜tool▁calls?▁(?:begin|end)｜>|<\|python_(?:tag|end)\|>)*+"
)
"""What may be dropped: marks and space, the last perhaps cut."""

PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            '{"name": "now", "arguments": ',
            '"get_weather"',
            "{}",
            "{",
            "}",
            "[",
            "]",
            ", ",
        ),
        *("; ", "\n", " ", "a", '"', "\\", "<think>", "</think>", "<function=now>", "<parameter=city>", "</parameter>"),
        *("</function>", "<|python_tag|>", '{"name": "now", "parameters": {}}', "[now()", "(", ")", "'", "```json"),
        *(K0, K1, K2, K3, K4, "functions.now:0", D0, D1, D2, D3, D4, "function", "now", "◁think▷", "◁/think▷"),
        *(text for _, text, _, _ in WHOLE),
        *(text for _, text in BROKEN),
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([None, *TOOL_FORMATS]),
    st.sampled_from([None, *REASONING_FORMATS]),
    st.sampled_from([None, True, False]),
    TEXTS,
    st.lists(st.integers(0, 400), max_size=8),
)
@example("hermes", "qwen3", None, "<think>\n\n</think>\n\n<tool_call>", [3])
def test_nothing_is_lost_and_cuts_change_nothing(form, reasoning, opened, text, cuts):
    made = parser(form, reasoning, opened)
    pieces = [*made.pieces(text), *made.last_pieces()]
    assert "".join(source for source, _ in pieces) == text, "every letter is somewhere, in order"
    for source, event in pieces:
        if isinstance(event, (Content, Reasoning)):
            assert event.text == source
    once = merged([event for _, event in pieces if event is not None])
    assert run(parser(form, reasoning, opened), text, cuts) == once
    assert run(parser(form, reasoning, opened), text, range(len(text))) == once
    dropped = [source for source, event in pieces if event is None]
    assert all(FORM.fullmatch(source, partial=True) for source in dropped), dropped
    heads = [source for source, event in pieces if isinstance(event, ToolStart)]
    assert not dropped + heads or form is not None or reasoning is not None


@pytest.mark.parametrize(
    ("reasoning", "opened", "text", "thought", "content"),
    [
        ("qwen3", None, "<think>\nHm < 3.\n</think>\n\nYes.\n", "Hm < 3.", "Yes.\n"),
        ("qwen3", None, "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("qwen3", True, "Hm.\n\nSo.</think>Yes.", "Hm.\n\nSo.", "Yes."),
        ("qwen3", None, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("deepseek-r1", None, "Hm.</think>\nYes.", "Hm.", "Yes."),
        ("deepseek-r1", None, "<think>\nHm.</think>\nYes.", "Hm.", "Yes."),
        ("deepseek-r1", None, "Hm.\n", "Hm.\n", ""),
        ("deepseek-r1", False, "Yes.", "", "Yes."),
        ("kimi", None, "◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),
        ("smollm3", None, "<think>\nHm.\n</think>\nYes.", "Hm.", "Yes."),
        ("kimi_k2", True, f"Hm.{K0}", "Hm.", K0),
        (None, None, "<think>Hm.</think>", "", "<think>Hm.</think>"),
    ],
)
def test_reasoning(reasoning, opened, text, thought, content):
    for cuts in ((), range(len(text))):
        events = run(parser(None, reasoning, opened), text, cuts)
        assert "".join(event.text for event in events if isinstance(event, Reasoning)) == thought
        assert contents(events) == content


def test_reasoning_and_then_a_call():
    text = '<think>\nI may call <tool_call>.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    events = run(parser("qwen25", "qwen3"), text, range(len(text)))
    assert events == [
        Reasoning("I may call <tool_call>."),
        ToolStart(0, "call_0", "now"),
        ToolArguments(0, "{}"),
    ]
    kimi = run(parser("kimi_k2", "kimi_k2", opened=True), f"Hm.{K0}{K1}functions.now:0{K2}{{}}{K3}{K4}")
    assert [type(event) for event in kimi] == [Reasoning, ToolStart, ToolArguments]


def test_what_the_prompt_says_of_reasoning():
    assert opens_reasoning("qwen3", "<|im_start|>assistant\n<think>\n") is True
    assert opens_reasoning("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n") is False
    assert opens_reasoning("qwen3", "<|im_start|>assistant\n") is None
    assert opens_reasoning(None, "<think>") is None


def test_which_marks_are_special_tokens():
    assert needs_special_tokens("kimi_k2", None)
    assert needs_special_tokens(None, "qwen3")
    assert not needs_special_tokens("hermes", None)
    assert not needs_special_tokens(None, None)


@pytest.mark.parametrize(("form", "reasoning"), [("nonsense", None), (None, "nonsense")])
def test_an_unknown_format_is_an_error(form, reasoning):
    with pytest.raises(EyasError) as caught:
        stream_parser(form, reasoning, TOOLS)
    assert caught.value.code == "flags.unknown"
