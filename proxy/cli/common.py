"""What the commands share: their options, and how errors are told."""

from collections.abc import Iterator
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
    """How results are printed."""

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
