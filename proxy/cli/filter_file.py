"""Reader of `list --file`: one filter per line, in the options of the command."""

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, TypeVar

import typer

from proxy.cli.common import Misuse

T = TypeVar("T")


class LineParser(ArgumentParser):
    """Knows the options of a line."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Tell of a line that cannot be read."""
        raise Misuse(message)


def filters_of_file(
    file: Path, parser: LineParser, filter_of: Callable[[Namespace], T]
) -> tuple[T, ...]:
    """Return the filter of each line of a file, each once; `-` is the standard input.

    Quotes are a shell's. Empty lines, and those that begin with `#`, are passed over. Raises
    Misuse.
    """
    # not splitlines: a name may have in it what that takes for an end of line
    return _filters(_text(file).split("\n"), parser, filter_of)


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            return typer.get_text_stream("stdin").read()
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise Misuse(f"{file}: {problem}") from None


def _filters(
    lines: Iterable[str], parser: LineParser, filter_of: Callable[[Namespace], T]
) -> tuple[T, ...]:
    filters: dict[T, None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            filters[filter_of(parser.parse_args(_words(line)))] = None
        except Misuse as problem:
            raise Misuse(f"line {number}: {problem}") from None
    if not filters:
        raise Misuse("the file has no filters")
    return tuple(filters)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise Misuse(str(problem)) from None
