"""Common options, output and error messages of the commands."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from proxy.errors import ConfigError, ProxyError
from proxy.errors import printable as printable

CONFIG_VARIABLE: Final = "REAUTH_PROXY_CONFIG"
"""Environment variable that names the configuration file if no option says what to use."""
CONFIG_HELP: Final = f"The configuration file; by default the one that {CONFIG_VARIABLE} names."

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", metavar="FILE", envvar=CONFIG_VARIABLE, help="The configuration file."
    ),
]
ConfigArgument = Annotated[
    Path | None,
    # of arguments, help would name Python's types: the commands' texts describe them
    typer.Argument(metavar="FILE", hidden=True),
]
SameConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The same as FILE.")
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


def config_by_default() -> Path | None:
    """Return the configuration file that the environment names; None if it names none."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def config_file(file: Path | None, option: Path | None) -> Path:
    """Return the configuration file of a command with an argument and an option for it."""
    if file is not None and option is not None:
        raise typer.BadParameter("give either FILE or --config FILE")
    found = file or option or config_by_default()
    if found is None:
        raise typer.BadParameter(f"give FILE, or set {CONFIG_VARIABLE}")
    return found


def say(text: str) -> None:
    """Print a result. If it cannot be written, end with one line that says why."""
    try:
        typer.echo(text)
    except OSError as error:
        raise output_failed(error) from None


def output_failed(error: OSError) -> typer.Exit:
    """Print why the output cannot be written, and return what to raise."""
    # what is still buffered would be written, and fail, once more at the end
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return fail(f"the output cannot be written: {error.strerror}", Exit.REFUSED)


def note(text: str) -> None:
    """Print one line for the person beside the results, on stderr."""
    typer.echo(f"reauth-proxy: {printable(text)}", err=True)


def fail(problem: str, status: Exit) -> typer.Exit:
    """Print one line and return what to raise."""
    note(problem)
    return typer.Exit(status)


def user_name(given: str) -> str:
    """Return the name of a user that was given with or without `User:`."""
    return given.removeprefix("User:")


def principal_name(given: str) -> str:
    """Return a principal; a bare name is a user's."""
    return given if ":" in given else f"User:{given}"


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing meanwhile: the command itself says what would be logged."""
    log = logging.getLogger("proxy")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Error in a command line: typer exports no name for this class."""


@contextmanager
def usage_explained() -> Iterator[None]:
    """Turn a mistake in the command line into one line, and where to read on."""
    try:
        yield
    except UsageError as error:
        problem = error.format_message().removeprefix("Invalid value: ").rstrip(".")
        problem = problem.replace("Value error, ", "")  # of pydantic, by which typer converts
        if error.ctx is None:
            raise fail(problem, Exit.USAGE) from None
        if problem == error.ctx.get_help().rstrip("."):  # no command was given
            raise
        command = error.ctx.command_path
        typer.echo(f"{command}: {printable(problem)} (see {command} --help)", err=True)
        raise typer.Exit(Exit.USAGE) from None


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
