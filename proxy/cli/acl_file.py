"""Filter file of `reauth-proxy acls list --file`: one filter per line."""

from argparse import Namespace
from pathlib import Path
from typing import Final

from proxy.acl.model import AclFilter
from proxy.cli.acl_options import PatternKind, Resources, filters_to_list
from proxy.cli.common import Misuse
from proxy.cli.filter_file import LineParser, filters_of_file

_NAMED: Final = (
    "topic",
    "group",
    "transactional-id",
    "delegation-token",
    "user-principal",
    "principal",
)


def acl_filters_of_file(file: Path) -> tuple[AclFilter, ...]:
    """Return the filter of each line, such as `--principal User:alice --topic "my topic"`.

    See `filters_of_file`. Raises Misuse.
    """
    parser = LineParser()
    for name in _NAMED:
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--resource-pattern-type", type=str.lower, default="literal")
    return filters_of_file(file, parser, _filter)


def _filter(given: Namespace) -> AclFilter:
    try:
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
