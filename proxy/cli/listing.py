"""Printed lists: a table for people, and formats for programs.

A table has a line for each row, and no cell is ever wrapped or cut in a pipe. On a terminal that is
too narrow, the columns that matter least are left out; if it is still too narrow, long cells are
folded. `wide` has every column, and leaves long lines to the terminal.
"""

import json
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

import typer

from proxy.cli.common import note, option, printable, say

T = TypeVar("T")


class Output(StrEnum):
    """Format of a printed list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputOption = Annotated[
    Output,
    option(
        "FORMAT",
        "table, wide (all columns), json, yaml, or name: one name a line.",
        "--output",
        "-o",
    ),
]


_DOCUMENTS: Final = frozenset({Output.JSON, Output.YAML})


def print_list(
    found: Collection[T],
    output: Output,
    *,
    items: str,
    columns: Mapping[str, Callable[[T], str]],
    document: Callable[[T], Any],
    name: Callable[[T], str],
    wide: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> None:
    """Print a list in its order; on stderr, that it is empty.

    `items` is their name in the plural. `columns` gives the table's cells by heading; only `wide`
    output has the columns `wide`, and a narrow terminal does without those of `left_out`, the first
    one first. `document` gives an item for JSON and YAML, `name` its name.
    """
    if print_document([document(one) for one in found], output):
        return
    if not found:
        note(f"no {items} found")
    elif output is Output.NAME:
        say("\n".join(dict.fromkeys(printable(name(one)) for one in found)))
    else:
        hidden = () if output is Output.WIDE else wide
        table = {
            heading: [heading.upper(), *(printable(cell(one)) for one in found)]
            for heading, cell in columns.items()
            if heading not in hidden
        }
        say(_fitted(table, left_out, _columns(wide=output is Output.WIDE)))


def require_document(output: Output) -> None:
    """Raise BadParameter unless the format is JSON or YAML."""
    if output not in _DOCUMENTS:
        raise typer.BadParameter("--output must be yaml or json here")


def print_document(document: object, output: Output) -> bool:
    """Print a document if the format is JSON or YAML; return whether it is."""
    if output is Output.JSON:
        say(json.dumps(document, indent=2))
    elif output is Output.YAML:
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1_000_000)
        say(text.rstrip("\n"))
    return output in _DOCUMENTS


def _columns(*, wide: bool) -> int | None:
    """Return the width of the terminal in characters; None if lines may have any length."""
    return None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def _fitted(table: dict[str, list[str]], left_out: Sequence[str], columns: int | None) -> str:
    """Return the lines of a table without the columns that do not fit, by heading."""
    if columns is None:
        return _aligned([*table.values()])
    for heading in left_out:
        if _width([*table.values()]) <= columns:
            break
        del table[heading]
    cells = [*table.values()]
    return _aligned(cells) if _width(cells) <= columns else _folded(cells, columns)


_GAP = "  "


def _width(table: Sequence[Sequence[str]]) -> int:
    from rich.cells import cell_len

    return sum(max(map(cell_len, column)) for column in table) + len(_GAP) * (len(table) - 1)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    from rich.cells import cell_len

    padded = []
    for column in table:
        lengths = [cell_len(cell) for cell in column]
        width = max(lengths)
        padded.append(
            [cell + " " * (width - length) for cell, length in zip(column, lengths, strict=True)]
        )
    return "\n".join(_GAP.join(line).rstrip() for line in zip(*padded, strict=True))


_SHORT = 16
"""Length in characters up to which the cells of a column are never folded."""


def _folded(table: Sequence[Sequence[str]], columns: int) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    folded = Table(box=None, padding=(0, len(_GAP), 0, 0), pad_edge=False, show_header=False)
    for column in table:
        folded.add_column(overflow="fold", no_wrap=max(map(len, column)) <= _SHORT)
    for row in zip(*table, strict=True):
        # Text, not str: a name may look like rich's markup
        folded.add_row(*map(Text, row))
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(folded)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
