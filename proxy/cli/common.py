"""Common options and error messages of the commands."""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated

import typer

from proxy.errors import ConfigError, ProxyError

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The configuration file.")
]


class Exit(IntEnum):
    """The exit statuses (design.md, "Configuration")."""

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


def printable(text: str) -> str:
    """Return text with what would steer a terminal made visible: names come from strangers."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def explained(config: Path) -> Iterator[None]:
    """Turn our errors into one line and an exit status."""
    try:
        yield
    except ConfigError as error:
        raise fail(f"{config}: {error}", Exit.USAGE) from None
    except ProxyError as error:
        raise fail(str(error), Exit.REFUSED) from None


def require_linux() -> None:
    """Refuse other systems: what is missing there is listed in docs/support.md."""
    if sys.platform != "linux":
        raise fail(
            "runs on Linux alone: use a container or a virtual machine (docs/support.md)",
            Exit.USAGE,
        )


class Misuse(Exception):
    """The options contradict each other, or say too little."""


@contextmanager
def misuse_told() -> Iterator[None]:
    """Turn a misuse into a usage error."""
    try:
        yield
    except Misuse as error:
        raise typer.BadParameter(printable(str(error))) from None


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, unbroken: Collection[str] = ()
) -> None:
    """Print a table; `unbroken` are headings of columns that a narrow terminal does not break."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))  # eighty columns are few
    for title in head:
        table.add_column(title, overflow="fold", no_wrap=title in unbroken)
    for row in rows:
        # Text, not str: a name may look like rich's markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
