"""Markdown tables, and their places in the pages of docs/."""

import ast
import inspect
from collections.abc import Sequence
from enum import StrEnum


def members(enumeration: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the members of an enumeration, each with the docstring below it."""
    return [(f"`{enumeration[name]}`", meaning) for name, meaning in meanings(enumeration).items()]


def meanings(given: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class."""
    (definition,) = ast.parse(inspect.getsource(given)).body
    if not isinstance(definition, ast.ClassDef):
        raise AssertionError(given)
    found: dict[str, str] = {}
    name = ""
    for node in definition.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(targets[0], ast.Name):
            name = targets[0].id
            found[name] = ""
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
    return found


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(_line(cells) for cells in lines)


def _line(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def filled(page: str, name: str, content: str) -> str:
    """Return the page with `content` between the markers of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    assert found, f"{begin} is missing"
    assert closed, f"{end} is missing"
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
