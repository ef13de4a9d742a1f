"""Import contracts, and rules beyond import-linter."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("proxy", "sasl", "metrics")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAX_FLAT_FILES = 6
"""Modules directly in `proxy/`."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[str]:
    """Names of all modules that a module imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from (module, *(f"{module}.{name.name}" for name in names))


def neighbours(path: Path) -> set[str]:
    """Data path modules that a module imports, including type imports."""
    return {
        node.module.rpartition(".")[2]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("proxy.connection.")
        if node.module is not None
    }


def test_the_data_path_has_no_circle() -> None:
    """No stage imports the connection, which executes their verdicts."""
    modules = {path.stem: neighbours(path) for path in (ROOT / "proxy/connection").glob("[!_]*.py")}
    assert [one for one, others in modules.items() if "connection" in others] == []
    while free := {one for one, others in modules.items() if not others & set(modules)}:
        for one in free:
            del modules[one]
    assert modules == {}, "these import each other"


def test_import_contracts() -> None:
    """The contracts are in pyproject.toml."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout


def test_addresses_are_written_with_their_brackets() -> None:
    """`proxy.errors.host_port` writes `[::1]:9092`."""
    by_hand = re.compile(r"host\}:\{|%s:%d")
    found = [relative(path) for path in MODULES if by_hand.search(path.read_text())]
    assert found == [
        "proxy/demo/broker.py",  # 127.0.0.1
        "proxy/errors.py",
        "proxy/worker/endpoints.py",  # a key in stores
    ]


def test_few_files_lie_flat() -> None:
    assert len([*(ROOT / "proxy").glob("*.py")]) <= MAX_FLAT_FILES


def test_nobody_imports_tests_or_benchmarks() -> None:
    guilty = [
        relative(path)
        for path in MODULES
        if {"tests", "benchmarks"} & {name.partition(".")[0] for name in imported(path)}
    ]
    assert guilty == []


def test_tests_share_nothing_but_what_lies_in_support() -> None:
    """Test modules share code only through `tests/support`, which imports no test module."""
    guilty = [
        f"{relative(path)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in imported(path)
        if is_test_module(name)
        or (relative(path).startswith("tests/support/") and not is_support(name))
    ]
    assert guilty == []


def is_test_module(name: str) -> bool:
    return name.startswith("tests.") and any(
        part.startswith(("test_", "fuzz_", "conftest")) for part in name.split(".")
    )


def is_support(name: str) -> bool:
    """Whether a module is in `tests/support` or outside the tests."""
    return name.partition(".")[0] != "tests" or f"{name}.".startswith("tests.support.")
