"""Filters of `reauth-proxy quotas list`, from options or a file."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from proxy.cli.common import Misuse
from proxy.cli.filter_file import LineParser, filters_of_file
from proxy.quota.model import DEFAULT, BadEntity, Name, QuotaEntity

MAX_NAME: Final = 32_767
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
    if size > MAX_NAME:
        raise Misuse(f"a name is longer than {MAX_NAME} bytes")


def quota_filters_of_file(file: Path) -> tuple[QuotaEntity, ...]:
    """Return the filter of each line, such as `--user alice --client-id "my app"`.

    See `filters_of_file`. Raises Misuse.
    """
    parser = LineParser()
    for kind in _KINDS:
        parser.add_argument(f"--{kind}", action="append", default=[])
        parser.add_argument(f"--{kind}-defaults", action="store_true")
    return filters_of_file(file, parser, _filter)


def _filter(given: Namespace) -> QuotaEntity:
    filters = Named(**vars(given)).filters()
    if len(filters) != 1:
        raise Misuse("one user, one client id, both, or one address: a line is one filter")
    return filters[0]
