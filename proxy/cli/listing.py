"""Printed lists: a table for people, and formats for programs.

A table has a line for each row, and no cell is ever wrapped or cut in a pipe. On a terminal that is
too narrow, the columns that matter least are left out; if it is still too narrow, long cells are
folded. `wide` has every column, and leaves long lines to the terminal.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar

import typer

from proxy.cli.common import note, printable, say

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
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="table, wide (all columns), json, yaml, or name: one name a line.",
    ),
]


_DOCUMENTS: Final = frozenset({Output.JSON, Output.YAML})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """Kind of items that can be listed, and how each is written."""

    items: str
    """The name of the items, in the plural."""
    headings: Sequence[str]
    lines: Callable[[T], Iterable[Sequence[str]]]
    """Function that returns the lines of the table for an item, with a cell for each heading."""
    document: Callable[[T], Any]
    """Function that returns an item for JSON and YAML."""
    name: Callable[[T], str]
    """Function that returns the name of an item."""
    wide: Sequence[str] = ()
    """Headings of the columns that only `wide` has."""
    left_out: Sequence[str] = ()
    """Headings of the columns that a narrow terminal does without, the first one first."""


def print_list(listing: Listing[T], found: Sequence[T], output: Output) -> None:
    """Print a list in its order; on stderr, that it is empty."""
    if output in _DOCUMENTS:
        print_document([listing.document(one) for one in found], output)
    elif not found:
        note(f"no {listing.items} found")
    elif output is Output.NAME:
        say("\n".join(dict.fromkeys(printable(listing.name(one)) for one in found)))
    else:
        rows = [line for one in found for line in listing.lines(one)]
        wide = output is Output.WIDE
        hidden = () if wide else listing.wide
        say(_table(listing.headings, rows, hidden, listing.left_out, _columns(wide=wide)))


def require_document(output: Output) -> None:
    """Raise BadParameter unless the format is JSON or YAML."""
    if output not in _DOCUMENTS:
        raise typer.BadParameter("--output must be yaml or json here")


def print_document(document: object, output: Output) -> bool:
    """Print a document if the format is JSON or YAML; return whether it is."""
    if output is Output.JSON:
        say(json.dumps(document, indent=2))
    elif output is Output.YAML:
        say(yaml_text(document))
    return output in _DOCUMENTS


def yaml_text(document: object) -> str:
    """Return a document as YAML."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1_000_000)
    return text.rstrip("\n")


def _columns(*, wide: bool) -> int | None:
    """Return the width of the terminal in characters; None if lines may have any length."""
    return None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    hidden: Iterable[str],
    left_out: Sequence[str],
    columns: int | None,
) -> str:
    cells = [
        [heading.upper(), *(printable(row[number]) for row in rows)]
        for number, heading in enumerate(headings)
    ]
    shown = {
        heading: column
        for heading, column in zip(headings, cells, strict=True)
        if heading not in set(hidden)
    }
    if columns is None:
        return _aligned([*shown.values()])
    for heading in left_out:
        if _width([*shown.values()]) <= columns:
            break
        del shown[heading]
    table = [*shown.values()]
    return _aligned(table) if _width(table) <= columns else _folded(table, columns)


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
