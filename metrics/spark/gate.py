"""What a pipeline may require of the report: `--require`.

    95%             at least so many are ready of the clients that ever logged in
    User:alice      every client of this principal is ready
    no-kills@60m    nothing would be killed by a lifetime of 60 minutes

Empty evidence meets no requirement.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_DURATION = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHARE = re.compile(r"(100|[0-9]{1,2})(\.[0-9]+)?%")
_NO_KILLS = "no-kills@"

_MAY_BE_KILLED = ("killed_connections", "unproven_connections", "cut_short_connections")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement: as it was written, and the test of the report's facts."""

    text: str
    is_met: Callable[[Facts], bool]
    lifetime_ms: int | None = None
    """A lifetime that the report has to look at for it."""


def duration_ms(text: str) -> int:
    """Read a duration such as `90s`, `15m`, `4h`; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 90s, 15m or 4h")
    return int(match[1]) * _UNIT_MS[match[2]]


def requirement(text: str) -> Requirement:
    """Read a requirement; raises ValueError."""
    share = _SHARE.fullmatch(text)
    if share is not None:
        percent = float(text[:-1])
        if percent > 100:
            raise ValueError(f"{text!r} is more than 100%")
        return Requirement(text, lambda facts: _ready_percent(facts) >= percent)
    if text.startswith(_NO_KILLS):
        lifetime_ms = duration_ms(text.removeprefix(_NO_KILLS))
        return Requirement(text, lambda facts: _nothing_killed(facts, lifetime_ms), lifetime_ms)
    if ":" in text:
        return Requirement(text, lambda facts: text in facts["enforceable_principals"])
    raise ValueError(
        f"{text!r} is no requirement: 95%, a principal such as User:alice, or no-kills@60m"
    )


def _ready_percent(facts: Facts) -> float:
    verdicts = facts["clients_by_verdict"]
    clients = sum(verdicts.values()) - verdicts["unknown"]
    return 100 * verdicts["ready"] / clients if clients else -1.0


def _nothing_killed(facts: Facts, lifetime_ms: int) -> bool:
    """Is it known that nothing is killed?

    What is unproven may be, and what was cut short, or observed too briefly.
    """
    row = next((row for row in facts["what_if"] if row["lifetime_ms"] == lifetime_ms), None)
    if row is None or row["observed_ms"] < lifetime_ms:
        return False
    return not any(row[name] for name in _MAY_BE_KILLED)
