"""What to do now, from the verdicts: whom to enforce, what to upgrade, whom to ask.

Pure functions over rows that were collected: `dict`s with the columns of the tables.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.events import MAX_TEXT_CHARS
from metrics.spark.libraries import LIBRARIES, is_older, library_of
from metrics.spark.sessions import Standing

Row = Mapping[str, Any]


def overrides_block(principals: Sequence[Row]) -> str:
    """Write `reauth.overrides` for the principals that can be enforced, to paste in a listener.

    A name stands in quotes, in ASCII: nothing that a principal is called can change what the block
    says. One that was cut in the log would match nobody, and is left out.
    """
    names = [row["principal"] for row in principals if row["enforceable"]]
    whole = [name for name in names if len(name) < MAX_TEXT_CHARS]
    lines = [f"  - principal: {_quoted(name)}\n    reauth.enforcement: enforce\n" for name in whole]
    if len(whole) < len(names):
        lines.append(
            f"  # left out, as their names are cut in the log: {len(names) - len(whole)}\n"
        )
    return "reauth.overrides:\n" + "".join(lines) if whole else ""


def _quoted(name: str) -> str:
    """Write a YAML string; JSON's pairs of surrogates would be two characters there."""
    written = (
        json.dumps(each)[1:-1] if ord(each) <= 0xFFFF else f"\\U{ord(each):08x}" for each in name
    )
    return f'"{"".join(written)}"'


def upgrades(clients: Sequence[Row]) -> list[dict[str, Any]]:
    """Say, for each library and version that does not re-authenticate, what helps.

    One row per software and version among the clients that are failing or not capable.
    """
    groups: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for row in clients:
        if row["verdict"] not in (Standing.FAILING, Standing.NOT_CAPABLE):
            continue
        key = (row["client_software_name"], row["client_software_version"])
        group = groups.setdefault(
            key, {"software": key[0], "version": key[1], "clients": 0, "principals": set()}
        )
        group["clients"] += 1
        group["principals"].add(row["principal"])
    return [
        group | {"principals": sorted(group["principals"])} | _advice(*key)
        for key, group in sorted(groups.items(), key=lambda item: (-item[1]["clients"], str(item)))
    ]


def _advice(software: str | None, version: str | None) -> dict[str, Any]:
    library = library_of(software)
    if library is None:
        advice = "find out which library this is, by its client id and host, and look it up below"
        return {"library": None, "upgrade_to": None, "advice": advice}
    if library.since is None:
        advice = library.note
    elif is_older(version, library.since) is False:
        advice = (
            f"this version should re-authenticate (since {library.since}): look at how the "
            "client refreshes its credentials, and at its log"
        )
    else:
        advice = f"upgrade to {library.since} or later; {library.note}"
    return {"library": library.name, "upgrade_to": library.since, "advice": advice}


def library_table() -> list[dict[str, Any]]:
    """Give the table of libraries, as the report shows it."""
    return [
        {
            "library": each.name,
            "since": each.since,
            "note": each.note,
            "source": each.source,
        }
        for each in LIBRARIES
    ]


def to_probe(principals: Sequence[Row]) -> list[str]:
    """Name the principals whose worst clients are unproven: `probe` will prove them."""
    return [row["principal"] for row in principals if row["verdict"] == Standing.UNPROVEN]
