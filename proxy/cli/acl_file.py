"""`reauth-proxy acls list --file`: a filter per line, in the options of the command itself."""

import argparse
import shlex
from collections.abc import Iterable
from typing import Final, NoReturn

from proxy.acl.model import AclFilter
from proxy.cli.acl_options import Misuse, PatternKind, Resources, filters_to_list

_NAMED: Final = (
    "topic",
    "group",
    "transactional-id",
    "delegation-token",
    "user-principal",
    "principal",
)


def filters_of_lines(lines: Iterable[str]) -> tuple[AclFilter, ...]:
    """Return the filter of each line, such as `--principal User:alice --topic "my topic"`.

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
    return tuple(filters)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(message)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in _NAMED:
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--resource-pattern-type", type=str.lower, default="literal")
    return parser


def _filter(parser: _Parser, line: str) -> AclFilter:
    try:
        given = parser.parse_args(shlex.split(line))
        pattern = PatternKind(given.resource_pattern_type)
    except ValueError as problem:
        raise Misuse(str(problem)) from None
    resources = Resources(
        topic=given.topic,
        group=given.group,
        cluster=given.cluster,
        transactional_id=given.transactional_id,
        delegation_token=given.delegation_token,
        user_principal=given.user_principal,
        pattern=pattern,
    )
    filters = filters_to_list(resources, given.principal)
    if len(filters) > 1:
        raise Misuse("one resource and one principal at most: a line is one filter")
    return filters[0]
