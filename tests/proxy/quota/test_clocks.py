"""A step of the clock changes nothing: no quota ever looks at the time of day."""

import ast
from pathlib import Path

import pytest

import proxy

ROOT = Path(proxy.__file__).parent
MODULES = [
    *(ROOT / "quota").rglob("*.py"),
    *(ROOT / "worker").glob("quota*.py"),
    *(ROOT / "connection").glob("*.py"),
]
TIMES_OF_DAY = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reads_the_wall_clock(path: Path) -> None:
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            used |= {f"time.{one.name}" for one in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
    assert not used & TIMES_OF_DAY
