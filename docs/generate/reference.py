"""Tables in the pages of docs/.

The markers `<!-- NAME: begin -->` and `<!-- NAME: end -->` enclose a table; the rest is written by
hand.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import filled, members, table
from docs.generate.configuration import settings
from docs.generate.metrics import EVENT_TABLES, METRIC_TABLES, READINESS_TABLES
from proxy.connection.commands import CloseReason
from proxy.wire.apis import APIS, Api, Kind
from proxy.wire.schema import NEVER
from sasl import session
from sasl.mechanism import FailureReason

DOCS = Path(__file__).resolve().parent.parent


def apis() -> str:
    """Return the table of APIs: versions, and who answers them."""
    head = ("Key", "API", "Versions", "Who answers", "Addresses rewritten")
    return table(head, [_api_row(api) for api in APIS.values()])


def _api_row(api: Api) -> tuple[str, ...]:
    who = {
        Kind.FORWARDED: "the broker",
        Kind.ANSWERED: "the proxy",
        Kind.NOT_OFFERED: "not offered",
    }[api.kind]
    versions = f"{api.min_version} to {api.max_version}"
    if api.min_version == api.max_version:
        versions = str(api.min_version)
    rewritten = "" if api.addresses_since == NEVER else f"from v{api.addresses_since}"
    offered = "" if api.kind is Kind.NOT_OFFERED else versions
    return str(api.key), api.name, offered, who, rewritten


def session_states() -> str:
    """Return the security barrier of `sasl/session.py`, as its docstring draws it."""
    assert session.__doc__ is not None
    table = re.search(r"^    state .*?(?=^\S)", session.__doc__, re.MULTILINE | re.DOTALL)
    assert table is not None
    lines = [line.removeprefix("    ") for line in table[0].rstrip().splitlines()]
    return "\n".join(["```text", *lines, "```"])


def failure_reasons() -> str:
    """Return the table of reasons why an authentication fails."""
    return table(("reason", "meaning"), members(FailureReason))


def close_reasons() -> str:
    """Return the table of reasons why a connection ends."""
    return table(("reason", "meaning"), members(CloseReason))


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "architecture.md": {"session states": session_states},
    "configuration.md": {"settings": settings},
    "events.md": EVENT_TABLES,
    "metrics.md": METRIC_TABLES,
    "operations.md": {"failure reasons": failure_reasons, "close reasons": close_reasons},
    "report-tables.md": READINESS_TABLES,
    "support.md": {"apis": apis},
}
"""Tables of each page, by the names of their markers."""


def pages() -> dict[Path, str]:
    """Return each page with its tables filled in."""
    filled_in = {}
    for name, tables in TABLES.items():
        page = (DOCS / name).read_text()
        for marker, content in tables.items():
            page = filled(page, marker, content())
        filled_in[DOCS / name] = page
    return filled_in
