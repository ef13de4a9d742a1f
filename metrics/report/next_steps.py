"""Recommended next steps: principals to enforce or to probe, software to upgrade.

Pure functions over collected rows: mappings with the columns of the tables.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.events import MAX_TEXT_CHARS
from metrics.report.libraries import LIBRARIES, is_older, library_of
from metrics.report.verdicts import Verdict
from metrics.rollout import Stage

Row = Mapping[str, Any]
_WAVES = (0, 1, 11, 111, 1_111)
"""Places at which a wave of principals begins."""
_MAY_BE_ENFORCED = (Stage.READY, Stage.ENFORCED)


def overrides_block(names: Sequence[str], *, of: int) -> str:
    """Write `reauth.overrides` for principals that can be enforced, to paste in a listener, as a
    whole or wave by wave.

    Names are quoted ASCII, so no principal's name can change the meaning of the block. A name that
    was truncated in the log would match no principal, and is left out. `of`: the number of
    principals that can be enforced in total.
    """
    whole = [name for name in names if len(name) < MAX_TEXT_CHARS]
    lines = []
    for number, name in enumerate(whole):
        if number in _WAVES:
            lines.append(f"  # wave {_WAVES.index(number) + 1}\n")
        lines.append(_override(name, "enforce"))
    if len(whole) < len(names):
        lines.append(
            f"  # left out, as their names are cut in the log: {len(names) - len(whole)}\n"
        )
    if len(names) < of:
        lines.append(f"  # left out, but in the tables: {of - len(names)}\n")
    return "reauth.overrides:\n" + "".join(lines) if whole else ""


def _override(name: str, mode: str) -> str:
    return f"  - principal: {_quoted(name)}\n    reauth.enforcement: {mode}\n"


def exceptions(principals: Sequence[Row], *, of: int) -> str:
    """Write the enforcement of all principals, except those that are not ready.

    Empty if one of these cannot be named, and would be enforced: its name is cut in the log, or it
    is beyond `principals`, which should be `of` in total.
    """
    names = [row["principal"] for row in principals if row["stage"] not in _MAY_BE_ENFORCED]
    if not of or len(principals) < of or any(len(name) >= MAX_TEXT_CHARS for name in names):
        return ""
    lines = [_override(name, "probe") for name in names]
    return "".join(
        ["reauth.enforcement: enforce\n", *(["reauth.overrides:\n"] * bool(lines)), *lines]
    )


def _quoted(name: str) -> str:
    """Write a YAML string, in which JSON's surrogate pairs would be two characters each."""
    written = (
        json.dumps(each)[1:-1] if ord(each) <= 0xFFFF else f"\\U{ord(each):08x}" for each in name
    )
    return f'"{"".join(written)}"'


def upgrades(software: Sequence[Row]) -> list[dict[str, Any]]:
    """Return advice for each library and version whose clients break.

    `software` are the rows of `metrics.readiness.sessions.breaking_software`.
    """
    return [
        {
            "software": row["client_software_name"],
            "version": row["client_software_version"],
            "clients": row["clients"],
            "principals": row["principals"],
            "principal_count": row["principal_count"],
        }
        | _advice(row["client_software_name"], row["client_software_version"])
        for row in software
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
    """Return the table of libraries for the report."""
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
    """Return the principals whose worst clients are unproven; `probe` can prove them."""
    return [row["principal"] for row in principals if row["verdict"] == Verdict.UNPROVEN]
