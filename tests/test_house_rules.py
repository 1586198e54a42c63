"""The layout that docs/design.md promises, read from the source: imports, sizes, names."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What each package may import of the others, and from outside the standard library.
LOWER = {
    "traces": (),
    "sim": ("traces",),
    "gpu": ("traces", "sim"),
    "analysis": ("traces", "sim", "gpu"),
}
OUTSIDE = {
    "traces": {"numpy", "pyarrow"},
    "sim": {"numpy"},
    "gpu": {"numpy", "torch", "triton"},
    "analysis": {
        "jinja2",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "rich",
        "typer",
    },
}
# One file knows the simulated clock, one writes the files, one turns text into tokens if it can.
MORE = {
    "sim/drive.py": {"simpy"},
    "sim/run_directory.py": {"pyarrow"},
    "traces/formats/tokenizer.py": {"tokenizers"},
}

SOURCES = sorted(path for package in LOWER for path in (ROOT / package).rglob("*.py"))
FILES = SOURCES + sorted(
    path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
TEXTS = FILES + [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "Makefile",
        "pyproject.toml",
        "*/*.toml",
        "*/templates/*",
    )
    for path in sorted(ROOT.glob(pattern))
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """(line, level of a relative import or 0, module) of every import, in functions, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or ""


def broken_imports(path: Path) -> list[str]:
    """What is wrong with the imports of a source file, a line each."""
    name, broken = name_of(path), []
    package, depth = name.split("/")[0], name.count("/")
    allowed = OUTSIDE[package] | MORE.get(name, set())
    for line, level, module in imports(path):
        where, top = f"{name}:{line}", module.partition(".")[0]
        if level > depth:
            broken.append(f"{where} leaves {package} by a relative import")
        elif level == 0 and top == "kvtwin":
            other = module.split(".")[1] if "." in module else ""
            if other == package:
                broken.append(f"{where} imports its own package absolutely: {module}")
            elif other not in LOWER[package]:
                broken.append(f"{where} imports upwards: {module}")
        elif level == 0 and top not in sys.stdlib_module_names and top not in allowed:
            broken.append(f"{where} imports {module}")
    return broken


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    assert broken_imports(path) == []


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("sim/new.py", "import kvtwin.analysis.report", "sim/new.py:1 imports upwards"),
        ("sim/new.py", "from kvtwin.sim import Sequence", "imports its own package absolutely"),
        ("sim/new.py", "def f():\n    import pandas", "sim/new.py:2 imports pandas"),
        ("sim/new.py", "import simpy", "imports simpy"),
        ("sim/new.py", "from ..traces import Trace", "leaves sim"),
        ("sim/policies/new.py", "from ...traces import Trace", "leaves sim"),
        ("analysis/new.py", "import torch", "imports torch"),
        ("traces/new.py", "from kvtwin.sim import RunConfig", "imports upwards: kvtwin.sim"),
        ("traces/new.py", "import matplotlib.pyplot", "imports matplotlib.pyplot"),
    ],
)
def test_a_broken_import_is_seen(
    place: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(code)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (found,) = broken_imports(path)
    assert message in found


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py"], ids=name_of)
def test_packages_only_re_export(path: Path) -> None:
    """Imports and `__all__`; `__getattr__` where what is re-exported is loaded at first use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.name == "__getattr__", f"{name_of(path)}:{node.lineno} defines {node.name}"
        assert not isinstance(node, ast.ClassDef | ast.For | ast.While | ast.With), node.lineno
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert all(name == "__all__" or name.startswith("_") for name in assigned), assigned


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short_and_named_after_what_they_hold(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= 300, f"{name_of(path)} has {num_lines} lines"
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_hold_no_changing_state(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{name_of(path)}:{node.lineno} writes a global"
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Dict | ast.Set):
            (target,) = node.targets
            constant = isinstance(target, ast.Name) and target.id.lstrip("_").isupper()
            assert constant or target.id == "__all__", f"{name_of(path)}:{node.lineno}"


def test_every_folder_with_code_is_installed() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in SOURCES}
    assert set(declared) == {"kvtwin." + folder.replace("/", ".") for folder in folders}


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_no_paths_of_one_machine(path: Path) -> None:
    machine_path = re.compile(r"(?<![\w.])/(?:work|root|home|Users|tmp)/\w")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert not machine_path.search(line), f"{name_of(path)}:{number}: {line.strip()}"
