"""Pieces of llguidance's grammar language out of others: literals, regular expressions, GBNF."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import ASTNode, GbnfToLarkError, GrammarParser, RuleRefNode, gbnf_to_lark

from eyas.errors import EyasError

_OWN_HEAD = re.compile(r"(?m)^\s*(%llguidance\b|\??start\b[^:\n]*:(?!:=))")
_GBNF_HEAD = re.compile(r"(?m)^\s*root\s*::=")


def literal(text: str, special: Mapping[str, int]) -> str:
    """A fixed text; what is written like a special token (text → id) is that token."""
    if not special:
        return json.dumps(text, ensure_ascii=False)
    names = sorted(special, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    written = [f"<[{special[p]}]>" if p in special else json.dumps(p, ensure_ascii=False) for p in pieces if p]
    return " ".join(written) or '""'


def regex_as_lark(pattern: str) -> str:
    """A regular expression that the whole text must match; anchors at its borders say nothing more.

    ``\\d`` and ``\\w`` are of ASCII, as in ECMAScript: where one asks for a date, no other script's digits are meant.
    """
    return f"/{regex_to_lark(pattern, 'dw')}/" if pattern else '""'


def is_gbnf(text: str) -> bool:
    """Whether a grammar is written in GBNF (llama.cpp; the EBNF of SGLang and vLLM), not in llguidance's Lark."""
    return _GBNF_HEAD.search(text) is not None and _OWN_HEAD.search(text) is None


def gbnf_as_lark(text: str) -> str:
    """The same grammar in Lark. Raises ``request.grammar``."""
    try:
        rules = GrammarParser().parse(text)
    except (GbnfToLarkError, IndexError, ValueError) as error:
        raise _unreadable(str(error)) from error
    except RecursionError as error:
        raise _unreadable("it is nested too deeply") from error
    # The converter renames rules; names that differ only in what it drops would fall together.
    same = [name for name, n in Counter(map(_plain_name, rules)).items() if n > 1]
    if same or "start" in rules:
        raise _unreadable(f"rule names too much alike, or reserved: {', '.join([*same, 'start'])}")
    nodes = [node for rule in rules.values() for node in _below(rule)]
    unknown = {node.name for node in nodes if isinstance(node, RuleRefNode)} - rules.keys()
    if unknown:
        raise _unreadable(f"it has no rule {', '.join(sorted(unknown))}")
    return gbnf_to_lark(text)


def _plain_name(name: str) -> str:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name.replace("-", "_")).lower()


def _below(node: ASTNode) -> list[ASTNode]:
    """A node and all under it."""
    found = [node]
    for one in found:
        found += one.children()
    return found


def _unreadable(why: str) -> EyasError:
    return EyasError("request.grammar", f"the grammar cannot be read as GBNF: {why}", "see llama.cpp's page on GBNF")
