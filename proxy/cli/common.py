"""Common options, output and error messages of the commands."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar, cast, get_type_hints

import typer
from typer.main import get_command

from proxy.errors import ConfigError, ProxyError
from proxy.errors import printable as printable

if TYPE_CHECKING:
    from proxy.config import Config

CONFIG_VARIABLE: Final = "REAUTH_PROXY_CONFIG"
"""Environment variable that names the configuration file if no option does."""
CONFIG_HELP: Final = f"The configuration file; by default the one that {CONFIG_VARIABLE} names."


def option(metavar: str, help_text: str, *names: str, **more: Any) -> Any:
    """Declare an option that takes a value."""
    return typer.Option(*names, metavar=metavar, help=help_text, **more)


ConfigFile = Annotated[
    Path, option("FILE", "The configuration file.", "--config", envvar=CONFIG_VARIABLE)
]
ConfigArgument = Annotated[
    Path | None,
    # of arguments, help would name Python's types: the commands' texts describe them
    typer.Argument(metavar="FILE", hidden=True),
]
DefaultConfigOption = Annotated[Path | None, option("FILE", CONFIG_HELP, "--config")]
BootstrapServer = Annotated[str | None, option("HOST:PORT", "Bootstrap servers.")]
CommandConfig = Annotated[Path | None, option("FILE", "Properties of a Kafka client.")]
SameConfigOption = Annotated[Path | None, option("FILE", "The same as FILE.", "--config")]
FilterFile = Annotated[
    Path | None,
    option(
        "FILE",
        "Instead: a file with a filter per line, in these same options; - is the standard input.",
        "--file",
    ),
]


DeclaredFile = Annotated[
    Path, option("FILE", "As `export` writes it, YAML or JSON; - is stdin.", "--file", "-f")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes without making them.")]
Prune = Annotated[bool, typer.Option("--prune", help="Remove everything that is not in the file.")]
Force = Annotated[bool, typer.Option("--force", help="Do not ask for confirmation.")]

MAX_BYTES: Final = 67_108_864
"""Largest file of filters, ACLs or quotas in bytes: 100,000 ACLs take a third of it."""


def group(help_text: str) -> typer.Typer:
    """Return a group of commands with plain text as help."""
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)


class Exit(IntEnum):
    """Exit statuses beside 0, success."""

    REFUSED = 1
    """Refused, not found, or not possible at the moment."""
    USAGE = 2
    """The command or the configuration is wrong."""
    PIPE_CLOSED = 141
    """The reader of the output is gone: what shells report for SIGPIPE."""


def config_by_default() -> Path | None:
    """Return the configuration file that the environment names; None if it is not set."""
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


def loaded_config(option: Path | None, give: str, *, refused: bool = False) -> "Config":
    """Return the configuration of a command with an option for it.

    `give` are the options that a usage error names; it is raised without a file, or if `refused`,
    because another option was given beside it. Raises BadParameter and Exit.
    """
    file = option or config_by_default()
    if file is None or refused:
        raise typer.BadParameter(f"give {give}, or set {CONFIG_VARIABLE}")
    return config_in(file)


def config_in(file: Path) -> "Config":
    """Return the configuration in a file. Raises Exit."""
    from proxy.config import load

    with explained(file):
        return load(file)


def operator() -> str:
    """Return the name of the user who runs the command."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def say(text: str) -> None:
    """Print a result. If it cannot be written, end as `output_failed` returns."""
    try:
        typer.echo(text)
    except OSError as error:
        raise output_failed(error) from None


def output_failed(error: OSError) -> typer.Exit:
    """Print why the output cannot be written, except to a closed pipe, and return what to raise."""
    # otherwise the exit would flush the buffer, and fail again
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return typer.Exit(Exit.PIPE_CLOSED)
    return fail(f"the output cannot be written: {error.strerror}", Exit.REFUSED)


def note(text: str) -> None:
    """Print one line on stderr, apart from the results."""
    typer.echo(f"reauth-proxy: {printable(text)}", err=True)


def fail(problem: str, status: Exit) -> typer.Exit:
    """Print one line and return what to raise."""
    note(problem)
    return typer.Exit(status)


def user_name(given: str) -> str:
    """Return the name of a user that was given with or without `User:`."""
    return given.removeprefix("User:")


def utf8(name: str) -> bytes:
    """Return a name in UTF-8. Raises BadParameter if the terminal sent other bytes."""
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("a name is not UTF-8 text") from None


def principal_name(given: str) -> str:
    """Return a principal; a bare name is a user's."""
    return given if ":" in given else f"User:{given}"


def asks_to_prune(file: Path, *, prune: bool, dry_run: bool, force: bool) -> bool:
    """Return whether `apply` must ask before it removes anything. Raises BadParameter if it cannot,
    because stdin is the file."""
    asks = prune and not dry_run and not force
    if asks and file == Path("-"):
        raise typer.BadParameter("--prune cannot ask if stdin is the file: give --force")
    return asks


def confirm_removal(lines: Sequence[str], items: str) -> None:
    """List what is to be removed, and ask. Raises Exit unless the answer is yes."""
    for line in lines:
        typer.echo(printable(line), err=True)
    if not typer.confirm(f"Remove {len(lines)} {items}?", err=True):
        raise fail("nothing was changed", Exit.REFUSED)


@contextmanager
def unlogged() -> Iterator[None]:
    """Disable logging in the body: the command prints the result itself."""
    log = logging.getLogger("proxy")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Error in a command line: typer exports no name for this class."""


def _problem(error: Any) -> str:
    """Return the problem that a usage error states."""
    problem: str = error.format_message().removeprefix("Invalid value: ").rstrip(".")
    return problem.replace("Value error, ", "")  # of pydantic, with which typer converts


@contextmanager
def usage_explained() -> Iterator[None]:
    """Turn a usage error into one line that points to the help; a closed pipe into an exit."""
    try:
        yield
    except BrokenPipeError as error:  # of help, which is not printed with `say`
        raise output_failed(error) from None
    except UsageError as error:
        problem = _problem(error)
        if error.ctx is None:
            raise fail(problem, Exit.USAGE) from None
        if problem == error.ctx.get_help().rstrip("."):  # no command was given
            raise
        command = error.ctx.command_path
        typer.echo(f"{command}: {printable(problem)} (see {command} --help)", err=True)
        raise typer.Exit(Exit.USAGE) from None


@contextmanager
def explained(file: Path | None = None) -> Iterator[None]:
    """Turn ProxyError into one line and an exit status. `file` is the configuration that the line
    names."""
    try:
        yield
    except ConfigError as error:
        raise fail(str(error) if file is None else f"{file}: {error}", Exit.USAGE) from None
    except ProxyError as error:
        raise fail(str(error), Exit.REFUSED) from None


def require_extra(extra: str, what: str = "this command") -> None:
    """End with a usage error if `what` needs an extra that is not installed."""
    from metrics.extras import missing

    if (problem := missing(extra)) is not None:
        raise fail(f"{what} {problem}", Exit.USAGE)


def require_linux() -> None:
    """End with a usage error on other systems; docs/support.md lists what they lack."""
    if sys.platform != "linux":
        raise fail(
            "the proxy runs on Linux only: use a container or a virtual machine (docs/support.md)",
            Exit.USAGE,
        )


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def takes_groups(command: Callable[..., T]) -> Callable[..., T]:
    """Replace each parameter of a command whose type is a group by the options of the group."""
    groups: dict[str, Any] = {}
    options: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _options(parameter.annotation)
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_options(**given: Any) -> T:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**made, **given)

    vars(with_options)["__signature__"] = signature(command).replace(parameters=options)
    with_options.__annotations__ = {one.name: one.annotation for one in options}
    return with_options


def _options(group: Any) -> Iterator[Parameter]:
    """Yield a parameter for each field; their types are `Annotated[..., typer.Option(...)]`."""
    types, defaults = get_type_hints(group, include_extras=True), group()
    for field in fields(group):
        yield Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=getattr(defaults, field.name),
            annotation=types[field.name],
        )


class Filters(Protocol[T_co]):
    """Group of options that select items to list."""

    def filters(self) -> Sequence[T_co]:
        """Return the filters that the options mean. Raises BadParameter."""


def filters_of_file(file: Path, group: Callable[..., Filters[T]], *, at_most: str) -> tuple[T, ...]:
    """Return the filters in the lines of a file, each once; `-` is the standard input.

    A line has the options of the group, quoted as in a shell, and must be one filter; `at_most`
    describes it in the error message. Empty lines, and those that begin with `#`, are skipped.
    Raises BadParameter.
    """
    line_of = _line_command(group)
    filters: dict[T, None] = {}
    # not splitlines, which also splits at characters that a name may contain
    for number, line in enumerate(_text(file, read_input(file, MAX_BYTES)).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found = line_of.main(shlex.split(line), standalone_mode=False).filters()
            if len(found) != 1:
                raise typer.BadParameter(f"a line is one filter: {at_most}")
        except UsageError as error:
            raise typer.BadParameter(f"line {number}: {_problem(error)}") from None
        except ValueError as error:
            raise typer.BadParameter(f"line {number}: {error}") from None
        filters[found[0]] = None
    if not filters:
        raise typer.BadParameter("the file has no filters")
    return tuple(filters)


def _line_command(group: Any) -> Any:
    """Return a command that parses the options of a group, and returns the group."""
    lines = typer.Typer(add_completion=False)

    def line(*, given: Any) -> Any:
        return given

    line.__annotations__["given"] = group
    lines.command(context_settings={"help_option_names": []})(takes_groups(line))
    return get_command(lines)


# Files and standard input


def read_input(file: Path, max_bytes: int) -> bytes:
    """Return the content of a file; `-` is the standard input. Raises Exit.

    `max_bytes` bounds the memory that a wrong path can cost.
    """
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            data = source.read(max_bytes + 1)
    except OSError as error:
        raise fail(f"{file}: cannot be read: {error.strerror}", Exit.USAGE) from None
    if len(data) > max_bytes:
        raise fail(f"{file}: is larger than {max_bytes} bytes", Exit.USAGE)
    return data


def _text(file: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8 text") from None


def declared(file: Path, read: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """Return the items of a list in a file (YAML or JSON), each converted by `read`.

    Raises BadParameter, which names the item by its number, and Exit.
    """
    import yaml

    text = read_input(file, MAX_BYTES)
    try:
        found = yaml.load(text.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise typer.BadParameter(f"{file} is neither YAML nor JSON") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise typer.BadParameter(f"{file} must be a list, as `export` writes it")
    if not found:
        raise typer.BadParameter(f"{file} is an empty list; `remove` removes")
    items = []
    for number, item in enumerate(found, 1):
        try:
            items.append(read(item))
        except typer.BadParameter as problem:
            raise typer.BadParameter(f"item {number}: {problem}") from None
    return items
