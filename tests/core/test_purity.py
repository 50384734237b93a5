"""The core does no IO and has no clock: by what it imports and calls, in every one of its files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import extproc.core

FILES = sorted(Path(extproc.core.__file__).parent.glob("**/*.py"))
FORBIDDEN = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
CALLS = {"open", "print", "input", "exec", "eval", "__import__", "hash", "id"}  # hash and id differ between runs


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""


def test_there_is_something_to_look_at() -> None:
    assert {"scheduler.py", "fair_queue.py", "adaptive.py"} <= {path.name for path in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_are_the_standard_library_s_pure_part_or_the_core(path: Path) -> None:
    for module in imported(ast.parse(path.read_text())):
        top = module.split(".")[0]
        if top == "extproc":
            assert module.startswith("extproc.core"), f"{path.name} imports {module}"
        else:
            assert top in sys.stdlib_module_names, f"{path.name} imports {module}"
            assert top not in FORBIDDEN, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_waits_writes_or_differs_between_runs(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global), f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS, f"{path.name}:{node.lineno} calls {node.func.id}"
