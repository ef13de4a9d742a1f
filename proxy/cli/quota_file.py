"""What `reauth-proxy quotas list` asks for: by its options, or by a file with a filter per line."""

import argparse
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, NoReturn

import typer

from proxy.cli.acl_options import Misuse
from proxy.quota.model import DEFAULT, BadEntity, Name, QuotaEntity

LONGEST_NAME: Final = 32_767
"""Bytes: what a STRING of the wire holds."""

_KINDS: Final = ("user", "client-id", "ip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The options that name entities."""

    user: Sequence[str] = ()
    """Without `User:`."""
    user_defaults: bool = False
    client_id: Sequence[str] = ()
    client_id_defaults: bool = False
    ip: Sequence[str] = ()
    ip_defaults: bool = False

    def filters(self) -> tuple[QuotaEntity, ...]:
        """Return every combination of what is named, each once; nothing named, none.

        An entity, as a filter, finds the quotas set for what it is made of, alone or with others.
        Raises Misuse.
        """
        names = (
            _names(self.user, self.user_defaults),
            _names(self.client_id, self.client_id_defaults),
            _names(self.ip, self.ip_defaults),
        )
        if not any(names):
            return ()
        try:
            return tuple(
                QuotaEntity(user=user, client_id=client_id, ip=ip)
                for user, client_id, ip in product(*(some or (None,) for some in names))
            )
        except BadEntity as bad:
            raise Misuse(str(bad)) from None


def _names(given: Sequence[str], default: bool) -> tuple[Name, ...]:
    for name in given:
        _check(name)
    return (*dict.fromkeys(given), *([DEFAULT] if default else []))


def _check(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Misuse("a name is not UTF-8 text") from None
    if size > LONGEST_NAME:
        raise Misuse(f"a name is longer than {LONGEST_NAME} bytes")


def filters_of_file(file: Path) -> tuple[QuotaEntity, ...]:
    """Return the filter of each line of a file; `-` is the standard input. Raises Misuse."""
    try:
        if str(file) == "-":
            text = typer.get_text_stream("stdin").read()
        else:
            text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise Misuse(f"{file}: {problem}") from None
    # not splitlines: a name may have in it what that takes for an end of line
    return filters_of_lines(text.split("\n"))


def filters_of_lines(lines: Iterable[str]) -> tuple[QuotaEntity, ...]:
    """Return the filter of each line, such as `--user alice --client-id "my app"`.

    Quotes are a shell's. Empty lines, and those that begin with `#`, are passed over. Raises
    Misuse.
    """
    parser = _parser()
    filters = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            filters.append(_filter(parser, line))
        except Misuse as problem:
            raise Misuse(f"line {number}: {problem}") from None
    if not filters:
        raise Misuse("the file has no filters")
    return tuple(dict.fromkeys(filters))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(message)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for kind in _KINDS:
        parser.add_argument(f"--{kind}", action="append", default=[])
        parser.add_argument(f"--{kind}-defaults", action="store_true")
    return parser


def _filter(parser: _Parser, line: str) -> QuotaEntity:
    try:
        given = parser.parse_args(shlex.split(line))
    except ValueError as problem:
        raise Misuse(str(problem)) from None
    filters = Named(**vars(given)).filters()
    if len(filters) != 1:
        raise Misuse("one user, one client id, both, or one address: a line is one filter")
    return filters[0]
