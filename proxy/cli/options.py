"""Groups of options: dataclasses whose fields are options of commands and of filter files."""

import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, get_args, get_type_hints

import typer

from proxy.cli.common import Misuse

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
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
    def with_options(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **given)

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
    """Group of options that say what to list."""

    def filters(self) -> Sequence[T_co]:
        """Return the filters that the options mean. Raises Misuse."""
        ...


def filters_of_file(file: Path, group: Callable[..., Filters[T]], *, at_most: str) -> tuple[T, ...]:
    """Return the filter of each line of a file, each once; `-` is the standard input.

    A line has the options of the group, quoted as in a shell, and must be one filter: `at_most`
    says for the error message what it may name. Empty lines, and those that begin with `#`, are
    skipped. Raises Misuse.
    """
    parser = _LineParser(group)
    filters: dict[T, None] = {}
    # not splitlines, which also splits at characters that a name may contain
    for number, line in enumerate(_text(file).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found = group(**vars(parser.parse_args(_words(line)))).filters()
            if len(found) != 1:
                raise Misuse(f"a line is one filter: {at_most}")
        except Misuse as problem:
            raise Misuse(f"line {number}: {problem}") from None
        filters[found[0]] = None
    if not filters:
        raise Misuse("the file has no filters")
    return tuple(filters)


class _LineParser(ArgumentParser):
    """Parser of a line with the options of a group: flags, lists of texts, and choices."""

    def __init__(self, group: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        for option in _options(group):
            name = f"--{option.name.replace('_', '-')}"
            kind = get_args(option.annotation)[0]
            if kind is bool:
                self.add_argument(name, action="store_true")
            elif kind == list[str]:
                self.add_argument(name, action="append", default=[])
            else:
                self.add_argument(name, type=partial(_choice, kind), default=option.default)

    def error(self, message: str) -> NoReturn:
        """Raise Misuse instead of ending the process."""
        raise Misuse(message)


def _choice(kind: Callable[[str], T], given: str) -> T:
    try:
        return kind(given.lower())
    except ValueError as problem:
        raise Misuse(str(problem)) from None


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            return typer.get_text_stream("stdin").read()
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Misuse(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{file} is not UTF-8 text") from None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise Misuse(str(problem)) from None
