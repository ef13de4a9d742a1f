"""Generator of the tables in the pages of docs/.

    python -m docs.generate.reference            write them
    python -m docs.generate.reference --check    write nothing; status 1 if a page is out of date

The markers `<!-- NAME: begin -->` and `<!-- NAME: end -->` enclose a table; the rest is written by
hand.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.markdown import filled, members, table
from docs.generate.metrics import EVENT_TABLES, METRIC_TABLES, READINESS_TABLES
from proxy.connection.commands import CloseReason
from proxy.wire.apis import APIS, Api, Kind
from proxy.wire.schema import NEVER
from sasl import session
from sasl.mechanism import FailureReason

DOCS = Path(__file__).resolve().parent.parent


def apis() -> str:
    """Return the table of APIs: versions, and who answers them."""
    rows = ["| Key | API | Versions | Who answers | Addresses rewritten |", "|---|---|---|---|---|"]
    return "\n".join(rows + [_api_row(api) for api in APIS.values()])


def _api_row(api: Api) -> str:
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
    return f"| {api.key} | {api.name} | {offered} | {who} | {rewritten} |"


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
    "events.md": EVENT_TABLES,
    "metrics.md": METRIC_TABLES,
    "operations.md": {"failure reasons": failure_reasons, "close reasons": close_reasons},
    "report-tables.md": READINESS_TABLES,
    "support.md": {"apis": apis},
}
"""Tables of each page, by the names of their markers."""


def main(arguments: list[str]) -> int:
    """Write the tables, or with `--check` compare them; return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m docs.generate.reference [--check]\n")
        return 2
    status = 0
    for name, tables in TABLES.items():
        path = DOCS / name
        page = written = path.read_text()
        for marker, content in tables.items():
            page = filled(page, marker, content())
        if page == written:
            continue
        if arguments:
            sys.stderr.write(f"{name} is stale: run python -m docs.generate.reference\n")
            status = 1
        else:
            path.write_text(page)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
