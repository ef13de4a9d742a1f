"""Common options and error messages of the commands."""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated

import typer

from proxy.errors import ConfigError, ProxyError
from proxy.errors import printable as printable

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The configuration file.")
]
FilterFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Instead: a file with a filter per line, in these same options; - is the standard"
        " input.",
    ),
]


class Exit(IntEnum):
    """Exit statuses beside 0, success."""

    REFUSED = 1
    """Refused, not found, or not possible at the moment."""
    USAGE = 2
    """The command or the configuration is wrong."""


class Output(StrEnum):
    """Format of printed results."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option(help="A table for people, or JSON for programs.")]


def fail(problem: str, status: Exit) -> typer.Exit:
    """Print one line and return what to raise."""
    typer.echo(f"reauth-proxy: {printable(problem)}", err=True)
    return typer.Exit(status)


@contextmanager
def explained(file: Path | None = None) -> Iterator[None]:
    """Turn our errors into one line and an exit status. `file` is the configuration to name."""
    try:
        yield
    except ConfigError as error:
        raise fail(str(error) if file is None else f"{file}: {error}", Exit.USAGE) from None
    except ProxyError as error:
        raise fail(str(error), Exit.REFUSED) from None


def require_linux() -> None:
    """End with a usage error on other systems; docs/support.md lists what they lack."""
    if sys.platform != "linux":
        raise fail(
            "the proxy runs on Linux only: use a container or a virtual machine (docs/support.md)",
            Exit.USAGE,
        )


class Misuse(Exception):
    """The options contradict each other, or are not enough."""


@contextmanager
def misuse_explained() -> Iterator[None]:
    """Turn a misuse into a usage error."""
    try:
        yield
    except Misuse as error:
        raise typer.BadParameter(printable(str(error))) from None


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, unbroken: Collection[str] = ()
) -> None:
    """Print a table. `unbroken` are the headings of columns whose values are never wrapped."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))  # many terminals have 80 columns
    for title in head:
        table.add_column(title, overflow="fold", no_wrap=title in unbroken)
    for row in rows:
        # Text, not str: a name may look like rich's markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
