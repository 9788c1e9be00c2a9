"""Reading Python sources as trees, for the tests of the architecture."""

from __future__ import annotations

import ast
import graphlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """One import: the module or, for a name of a module, that module; ``lazy`` inside a function."""

    target: str
    line: int
    lazy: bool = False
    named: bool = False
    """Not an import statement, but a string that names a module (a registry's entry)."""


@dataclass(frozen=True)
class Module:
    """One source file under its dotted name."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def unit(self) -> str:
        """The part below the top package: ``eyas.kernels.rows`` → ``kernels``; empty for the top itself."""
        return [*self.name.split("."), ""][1]

    def imports(self, known: frozenset[str]) -> list[Import]:
        """All imports; a name that is itself one of the ``known`` modules counts as that module."""
        return list(_imports(self, self.tree, known, lazy=False))


def read_modules(folder: Path, package: str = "") -> dict[str, Module]:
    """Every Python file below ``folder`` by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [*([package] if package else []), *path.relative_to(folder).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path.read_text(encoding="utf-8"), is_package)
    return found


def _imports(module: Module, node: ast.AST, known: frozenset[str], lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(module, child)
            for alias in child.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, child.lineno, lazy)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            name = child.value.partition(":")[0]
            if name in known and "." in name:
                yield Import(name, child.lineno, named=True)
        yield from _imports(module, child, known, lazy or isinstance(child, FUNCTIONS))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def order_faults(modules: Mapping[str, Module], layers: Sequence[Sequence[str]]) -> list[str]:
    """Imports of a unit in the same or a higher layer; units that stand in no layer."""
    rank = {unit: i for i, layer in enumerate(layers) for unit in layer}
    known = frozenset(modules)
    top = next(iter(modules)).split(".")[0]
    faults = []
    for module in modules.values():
        if module.unit and module.unit not in rank:
            faults.append(f"{module.name}: {module.unit} stands in no layer")
            continue
        for found in module.imports(known):
            target = [*found.target.split("."), ""]
            if target[0] != top or target[1] in (module.unit, ""):
                continue
            if rank.get(target[1], len(layers)) >= rank.get(module.unit, -1):
                faults.append(f"{module.name}:{found.line} imports {found.target}")
    return faults


def find_cycle(modules: Mapping[str, Module]) -> list[str]:
    """Modules that import each other in a circle, inside functions or not; empty if there are none."""
    known = frozenset(modules)
    graph = {
        name: {found.target for found in module.imports(known) if found.target in known and not found.named}
        for name, module in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def outside_roots(module: Module, known: frozenset[str]) -> set[str]:
    """Top-level names of all packages that a module imports, its own package left out."""
    own = module.name.split(".")[0]
    return {found.target.split(".")[0] for found in module.imports(known) if not found.named} - {own, "__future__"}


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the dotted name of what is called, as it is written."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones included."""
    return (node for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS))


def num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, its docstring left out."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def num_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Arguments, ``self`` and ``cls`` left out."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def unfinished(module: Module, words: Iterable[str]) -> list[str]:
    """Comments that hold one of the words: notes of work not done."""
    pattern = re.compile(r"\b(?:" + "|".join(words) + r")\b")
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return [
        f"{module.name}:{token.start[0]} {token.string}"
        for token in tokens
        if token.type == tokenize.COMMENT and pattern.search(token.string)
    ]


def unsafe(module: Module, modules: Iterable[str], names: Iterable[str]) -> list[str]:
    """Imports, calls and keywords that can run code from a file, or hide a difference or an error."""
    faults = []
    for roots in outside_roots(module, frozenset()) & set(modules):
        faults.append(f"{module.name} imports {roots}")
    for name, call in calls(module):
        keywords = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
        if name in names:
            faults.append(f"{module.name}:{call.lineno} calls {name}")
        if any(k.arg == "trust_remote_code" for k in call.keywords) and keywords.get("trust_remote_code") is not False:
            faults.append(f"{module.name}:{call.lineno} trusts remote code")
        if name.endswith("load_state_dict") and keywords.get("strict") is False:
            faults.append(f"{module.name}:{call.lineno} loads with strict=False")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and not _raises_again(node):
            faults.append(f"{module.name}:{node.lineno} catches every exception")
        if isinstance(node, ast.Global):
            faults.append(f"{module.name}:{node.lineno} changes a module global")
    return faults


def _catches_all(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_catches_all(element) for element in kind.elts)
    return kind is None or ast.unparse(kind).split(".")[-1] in ("Exception", "BaseException")


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def open_borders(module: Module) -> list[str]:
    """Public functions that take ``**kwargs``: nobody can see or check what crosses."""
    return [
        f"{module.name}:{node.lineno} {node.name} takes **{node.args.kwarg.arg}"
        for node in functions(module)
        if node.args.kwarg and not node.name.startswith("_")
    ]


def error_codes(module: Module, error: str) -> set[str]:
    """Codes that are written out where ``error`` is made; one put together from parts is checked when it is raised."""
    found = set()
    for name, call in calls(module):
        if name.split(".")[-1] == error:
            first = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "code")]
            found |= strings(node for node in first if not isinstance(node, ast.JoinedStr))
    return found


def strings(nodes: Iterable[ast.AST]) -> set[str]:
    """Every string constant in the trees."""
    inside = (node for root in nodes for node in ast.walk(root))
    return {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}
