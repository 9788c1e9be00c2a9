"""Prompts about code from Python's own standard library: signatures and first lines of docstrings (PSF licence).

    python scripts/code_prompts.py prompts.jsonl

The functions are read, not imported. Which ones there are depends on the Python that runs this.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LICENCE = "PSF-2.0 (Python's standard library)"
LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|lib2to3|site-packages|encodings|pydoc_data|turtledemo|ensurepip)/|/_[^/]*$"
)
SHORTEST_DOC, LONGEST_DOC = 30, 700


class Function(NamedTuple):
    """``head``: its lines from ``def`` to the end of the docstring; ``says``: the docstring's first paragraph."""

    module: str
    name: str
    head: str
    says: str


def functions(library: Path) -> Iterator[Function]:
    """Every public function and method with a docstring of a readable length, in order of path and line."""
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library).as_posix()
        if LEFT_OUT.search("/" + module):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or len(node.body) < 2:
                continue
            doc = ast.get_docstring(node)
            if doc is None or not SHORTEST_DOC <= len(doc) <= LONGEST_DOC:
                continue
            lines = text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]
            indent = len(lines[0]) - len(lines[0].lstrip())
            head = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
            says = " ".join(doc.split("\n\n")[0].split())
            yield Function(module.removesuffix(".py").replace("/", "."), node.name, head, says)


def asked(function: Function, index: int) -> str:
    """Two in four are to be completed, one is to be written from its description, one is to be explained or tested."""
    block = f"```python\n{function.head}\n```"
    return (
        f"Complete this Python function.\n\n{block}",
        f"Write a Python function `{function.name}`. {function.says}",
        f"Complete this Python function.\n\n{block}",
        f"Explain what this function is for, and give an example of its use.\n\n{block}"
        if index % 8 < 4
        else f"Write unit tests for this Python function.\n\n{block}",
    )[index % 4]


def main() -> None:
    """Write one prompt for each name, so that a name that many classes share is asked once; in a fixed random order,
    so that the first n are from everywhere.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="the file to write, JSON Lines")
    arguments = parser.parse_args()
    once: dict[str, Function] = {}
    for function in functions(Path(sysconfig.get_paths()["stdlib"])):
        once.setdefault(function.name, function)
    chosen = list(once.values())
    random.Random(0).shuffle(chosen)
    with arguments.out.open("w", encoding="utf-8") as out:
        for index, function in enumerate(chosen):
            messages = [{"role": "user", "content": asked(function, index)}]
            row = {"id": f"stdlib-{function.module}.{function.name}", "messages": messages, "domain": "code"}
            out.write(json.dumps(row | {"source": "python-stdlib", "licence": LICENCE}) + "\n")
    print(f"{len(chosen)} prompts", file=sys.stderr)


if __name__ == "__main__":
    main()
