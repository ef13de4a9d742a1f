"""Requirements that a pipeline may make of the report: `--require`.

    95%             at least 95% of the clients that ever logged in are ready
    User:alice      every client of this principal is ready
    no-kills@60m    a lifetime of 60 minutes would kill no connection
    kafka4-ready    no client uses versions of APIs that Kafka 4.0 dropped (KIP-896)

Without evidence, no requirement is met.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.report.formats import count, duration, logged_in, number

_DURATION = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHARE = re.compile(r"(100|[0-9]{1,2})(\.[0-9]+)?%")
_NO_KILLS = "no-kills@"
_KAFKA_4_READY = "kafka4-ready"

_MAY_BE_KILLED = ("killed", "unproven", "cut_short")

Facts = Mapping[str, Any]
Principals = Mapping[str, Mapping[str, Any]]


Found = tuple[bool, str]
"""Whether a requirement is met, and the figures, as `1140 of 1905 clients are ready, 59.8%`."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement: its text, and its test (`judge`).

    The test gets the report's facts, and the rows of the required principals by name, because the
    facts do not include all principals.
    """

    text: str
    judge: Callable[[Facts, Principals], Found]
    lifetime_ms: int | None = None
    """The lifetime in milliseconds that the report must include; None for no further one."""
    principal: str | None = None
    """The principal that the report must look up; None if the test needs no principal."""


def duration_ms(text: str) -> int:
    """Parse a duration such as `90s`, `15m` or `4h`. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m or 4h")
    return int(match[1]) * _UNIT_MS[match[2]]


def requirement(text: str) -> Requirement:
    """Parse a requirement. Raises ValueError."""
    share = _SHARE.fullmatch(text)
    if share is not None:
        percent = float(text[:-1])
        if percent > 100:
            raise ValueError(f"{text!r} is more than 100%")
        return Requirement(text, lambda facts, _: _share(facts, percent))
    if text == _KAFKA_4_READY:
        return Requirement(text, lambda facts, _: _kafka_4_ready(facts))
    if text.startswith(_NO_KILLS):
        lifetime_ms = duration_ms(text.removeprefix(_NO_KILLS))
        return Requirement(text, lambda facts, _: _no_kills(facts, lifetime_ms), lifetime_ms)
    if ":" in text:
        return Requirement(text, lambda _, asked: _ready(asked.get(text)), principal=text)
    raise ValueError(
        f"{text!r} is not a requirement: use 95%, a principal such as User:alice, no-kills@60m"
        " or kafka4-ready"
    )


def judged(
    requirements: Sequence[Requirement], facts: Facts, principals: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row per requirement; `principals` are the rows of the required principals."""
    by_name = {row["principal"]: row for row in principals}
    found = [(each.text, *each.judge(facts, by_name)) for each in requirements]
    return [{"require": text, "met": met, "found": figures} for text, met, figures in found]


def _share(facts: Facts, percent: float) -> Found:
    ready, clients = facts["clients_by_verdict"]["ready"], sum(logged_in(facts).values())
    if not clients:
        return False, "no client logged in"
    share = 100 * ready / clients
    # rounded down: an unmet share must not look met
    shown = math.floor(share * 10) / 10
    return share >= percent, f"{number(ready)} of {_clients_are(clients)} ready, {shown}%"


def _kafka_4_ready(facts: Facts) -> Found:
    breaking = facts["breaks_at_kafka_4"]["client_count"]
    if breaking:
        uses = count(breaking, "client uses", "clients use")
        return False, f"{uses} versions that it dropped"
    if not any(logged_in(facts).values()):
        return False, "no client logged in"
    return True, "no client uses versions that it dropped"


def _ready(row: Mapping[str, Any] | None) -> Found:
    if row is None:
        return False, "was not seen"
    text = f"{number(row['ready'])} of {_clients_are(row['clients'])} ready"
    return row["enforceable"], text


def _no_kills(facts: Facts, lifetime_ms: int) -> Found:
    """Judge whether a lifetime certainly kills no connection.

    Unproven connections might be killed, and so might those that were cut short or observed too
    briefly.
    """
    row = next((row for row in facts["what_if"] if row["lifetime_ms"] == lifetime_ms), None)
    if row is None:
        return False, "no client logged in"
    killed, unproven, cut_short = (row[f"{each}_connections"] or 0 for each in _MAY_BE_KILLED)
    doubts = []
    if unproven:
        doubts.append(f"{count(unproven, 'is', 'are')} unproven")
    if cut_short:
        doubts.append(f"{count(cut_short, 'was', 'were')} cut short")
    if row["observed_ms"] < lifetime_ms:
        doubts.append(f"only {duration(row['observed_ms'])} were observed")
    connections = count(killed, "connection") if killed else "no connections"
    text = ", ".join([f"{connections} would be killed", *doubts])
    return not (killed or doubts), text


def _clients_are(clients: int) -> str:
    return count(clients, "client is", "clients are")
