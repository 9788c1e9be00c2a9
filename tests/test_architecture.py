"""The architecture, checked: who may import whom, sizes, what no source may hold, error codes. The rules are data."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import source_rules as rules
from eyas.errors import CODES
from source_rules import Module

ROOT = Path(__file__).parent.parent

LAYERS = (
    ("errors",),
    ("contract", "metrics"),
    ("config", "artifacts"),
    ("environment", "plotting"),
    ("kernels",),
    ("models",),
    ("dialects",),
    ("servers",),
    ("draft",),
    ("speculate",),
    ("engine",),
    ("corpus",),
    ("pull", "data", "capture", "train", "export", "check", "plan", "serve", "launch", "bench"),
    ("generate", "recipes"),
    ("demo", "testing"),
    ("cli",),
    ("__main__",),
)
"""A unit imports only what stands above it here. Units of one line (the stages) do not import each other."""

WITHOUT_TORCH = ("errors", "contract", "metrics", "config", "artifacts", "dialects")
LAZY_PACKAGES = ("transformers", "huggingface_hub")
"""Slow to import and not always needed: these may be imported inside a function. In the CLI, anything may."""

IMPORT_NAMES = {"huggingface-hub": "huggingface_hub", "pyyaml": "yaml", "prometheus-client": "prometheus_client"}
"""Distributions whose import name differs from their name."""
EXTRA_UNITS = {"train": ("data", "train", "plotting", "bench")}
"""Who may import the packages of an extra; all else must run without it."""

FILE_LINES, SOFT_FILE_LINES = 400, 300
FUNCTION_LINES, SOFT_FUNCTION_LINES = 60, 40
ARGUMENTS = 8

UNSAFE_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
UNSAFE_CALLS = ("torch.load", "eval", "exec", "os.system")
UNFINISHED = ("TODO", "FIXME", "XXX", "HACK")
MAY_PRINT = ("cli", "demo", "__main__")
FOREIGN_CALLS = ("eyas.models.hf_bridge",)
"""Modules that another library calls back, with keywords of its own choice."""
NEVER_IN_TESTS = ("skip", "skipif", "xfail", "importorskip")

SOURCES = rules.read_modules(ROOT / "src" / "eyas", "eyas")
OTHERS = {
    f"{folder}/{name}": module
    for folder in ("tests", "scripts", "benchmarks", "docs")
    for name, module in rules.read_modules(ROOT / folder).items()
}
KNOWN = frozenset(SOURCES)
RAISED = {text for name, module in SOURCES.items() if name != "eyas.errors" for text in rules.strings([module.tree])}
TESTED = {text for name, module in OTHERS.items() if name[:6] == "tests/" for text in rules.strings([module.tree])}


def test_imports_go_down_only():
    assert rules.order_faults(SOURCES, LAYERS) == []


def test_no_module_imports_itself_through_others():
    assert rules.find_cycle(SOURCES) == []


def test_the_top_package_imports_nothing():
    assert SOURCES["eyas"].imports(KNOWN) == [], "or every import of a part imports all"


def test_imports_stand_at_the_top_of_their_file():
    lazy = [
        f"{module.name}:{found.line} imports {found.target}"
        for module in SOURCES.values()
        for found in module.imports(KNOWN)
        if found.lazy and module.unit != "cli" and found.target.split(".")[0] not in LAZY_PACKAGES
    ]
    assert lazy == []


def distributions(lines: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=~!;]", line)[0].lower() for line in lines}


def test_every_imported_package_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras.keys() - EXTRA_UNITS.keys() == {"dev"}
    undeclared = {}
    for name, module in SOURCES.items():
        lines = [line for extra, units in EXTRA_UNITS.items() if module.unit in units for line in extras[extra]]
        names = distributions([*project["dependencies"], *lines])
        declared = {IMPORT_NAMES.get(distribution, distribution) for distribution in names}
        missing = rules.outside_roots(module, KNOWN) - set(sys.stdlib_module_names) - declared
        undeclared |= {name: missing} if missing else {}
    assert undeclared == {}


def test_dependencies_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = distributions([*project["dependencies"], *(line for lines in extras.values() for line in lines)])
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    assert names - pinned == set()


def test_the_tests_have_what_the_extras_bring():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {line for lines in extras.values() for line in lines} - set(extras["dev"]) == set()


def test_the_nouns_load_without_torch():
    imports = ", ".join(f"eyas.{unit}" for unit in WITHOUT_TORCH)
    code = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_are_short():
    lengths = {name: len(module.text.splitlines()) for name, module in {**SOURCES, **OTHERS}.items()}
    long = {name: n for name, n in lengths.items() if n > SOFT_FILE_LINES}
    print(f"files over {SOFT_FILE_LINES} lines: {long}")
    assert {name: n for name, n in long.items() if n > FILE_LINES} == {}


def test_functions_are_short():
    lengths = {
        f"{name}:{node.lineno} {node.name}": rules.num_lines(node)
        for name, module in {**SOURCES, **OTHERS}.items()
        for node in rules.functions(module)
    }
    long = {name: n for name, n in lengths.items() if n > SOFT_FUNCTION_LINES}
    print(f"functions over {SOFT_FUNCTION_LINES} lines: {long}")
    assert {name: n for name, n in long.items() if n > FUNCTION_LINES} == {}


def test_functions_take_few_arguments():
    """A command's arguments are its flags, so the CLI is exempt."""
    many = [
        f"{module.name}:{node.lineno} {node.name}"
        for module in SOURCES.values()
        for node in rules.functions(module)
        if module.unit != "cli" and rules.num_arguments(node) > ARGUMENTS
    ]
    assert many == []


def test_no_source_is_unsafe():
    everything = [*SOURCES.values(), *OTHERS.values()]
    assert [fault for module in everything for fault in rules.unsafe(module, UNSAFE_MODULES, UNSAFE_CALLS)] == []


def test_nothing_is_left_for_later():
    everything = [*SOURCES.values(), *OTHERS.values()]
    assert [fault for module in everything for fault in rules.unfinished(module, UNFINISHED)] == []


def test_no_keyword_bag_crosses_a_border():
    ours = [module for name, module in SOURCES.items() if name not in FOREIGN_CALLS]
    assert [fault for module in ours for fault in rules.open_borders(module)] == []


def test_only_the_command_line_prints():
    printing = [
        f"{module.name}:{call.lineno}"
        for module in SOURCES.values()
        for name, call in rules.calls(module)
        if name == "print" and module.unit not in MAY_PRINT
    ]
    assert printing == []


def test_no_test_is_switched_off():
    pattern = re.compile(rf"\bpytest\.(?:mark\.)?(?:{'|'.join(NEVER_IN_TESTS)})\b")
    tests = {name: module for name, module in OTHERS.items() if name.startswith("tests/")}
    assert [name for name, module in tests.items() if pattern.search(module.text)] == []


def test_tests_mirror_the_sources():
    units = {module.unit for module in SOURCES.values()}
    folders = {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/test_*.py")}
    assert folders - units == set()


def test_error_codes_are_known():
    written = set().union(*(rules.error_codes(module, "EyasError") for module in SOURCES.values()))
    assert written - set(CODES) == set()


@pytest.mark.parametrize("code", CODES)
def test_error_code_is_raised_and_tested(code):
    assert code in RAISED, "no source raises it"
    assert code in TESTED, "no test expects it"


# The rules themselves, on small planted sources.


def planted(**texts: str) -> dict[str, Module]:
    named = {name.replace("__", "."): text for name, text in texts.items()}
    return {name: Module(name, text, is_package=name.count(".") == 0) for name, text in named.items()}


LOW_HIGH = (("low",), ("left", "right"), ("high",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p__low", "from p.high import x"),
        ("p__low", "def f():\n    import p.high"),
        ("p__low", "from .high import x"),
        ("p__low", "LAZY = 'p.high:x'"),
        ("p__left", "from p import right"),
        ("p__nowhere", ""),
    ],
)
def test_a_wrong_import_is_found(name, text):
    modules = planted(**{"p": "", "p__low": "", "p__right": "", "p__high": "from p.low import x", name: text})
    assert len(rules.order_faults(modules, LOW_HIGH)) == 1


def test_right_imports_are_not_faults():
    modules = planted(p="", p__low="import torch", p__left="from p import low", p__high="from .left import x")
    assert rules.order_faults(modules, LOW_HIGH) == []
    assert rules.find_cycle(modules) == []


def test_a_cycle_is_found():
    modules = planted(p="", p__a="from p import b", p__b="def f():\n    from p.a import x")
    assert set(rules.find_cycle(modules)) == {"p.a", "p.b"}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "torch.load(path)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=flag)",
        "model.load_state_dict(x, strict=False)",
        "try:\n    f()\nexcept Exception:\n    g()",
        "try:\n    f()\nexcept (OSError, Exception) as e:\n    g()",
        "try:\n    f()\nexcept:\n    g()",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_an_unsafe_source_is_found(text):
    assert len(rules.unsafe(Module("p", text), UNSAFE_MODULES, UNSAFE_CALLS)) == 1


def test_a_safe_source_is_not_a_fault():
    text = """
f(trust_remote_code=False)
zip(a, b, strict=False)
try:
    f()
except OSError:
    g()
except BaseException:
    clean_up()
    raise
"""
    assert rules.unsafe(Module("p", text), UNSAFE_MODULES, UNSAFE_CALLS) == []


def test_sizes_are_counted():
    (node,) = rules.functions(Module("p", 'def f(self, a, *, b):\n    """One.\n\n    Two."""\n    return a\n'))
    assert (rules.num_lines(node), rules.num_arguments(node)) == (2, 2)


def test_other_faults_are_found():
    module = Module(
        "p",
        "def f(**rest):\n    raise EyasError('a.b' if x else code, 'c', 'd') from EyasError(f'e.{x}', 'f', 'g')  # TO"
        + "DO later\n",
    )
    assert rules.open_borders(module)
    assert rules.unfinished(module, UNFINISHED)
    assert rules.error_codes(module, "EyasError") == {"a.b"}
