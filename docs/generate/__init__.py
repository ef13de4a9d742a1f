"""Generators of the reference pages: Markdown tables, and their places in the pages of docs/."""

from collections.abc import Sequence
from enum import StrEnum

from proxy.config.section import strings_below


def members(enumeration: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the members of an enumeration, each with the docstring below it."""
    below = meanings(enumeration)
    return [(f"`{one}`", below.get(one.name, "")) for one in enumeration]


def meanings(declared: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class."""
    return {name: " ".join(text.split()) for name, text in strings_below(declared)}


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
