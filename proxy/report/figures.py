"""Figures of a report: what report.json says, checked, and as metrics."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metrics import registry
from metrics.readiness.output import RUN_ID
from metrics.report.facts import SCHEMA_VERSION
from metrics.report.verdicts import Verdict
from metrics.report.write import JSON_NAME
from metrics.snapshot import Snapshot
from proxy.report.place import UnusableReportError

MAX_LIFETIMES: Final = 50
"""Largest number of lifetimes that metrics are about: the shortest ones."""

_MAX_MS: Final = 253_402_300_800_000
"""The end of the year 9999, in epoch ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """What a session lifetime would have done."""

    seconds: float
    killed_clients: int
    kills_per_day: Mapping[str, float]
    """Kills a day by bound, `least` and `most`; empty: too little is covered to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a report."""

    run_id: str
    as_of_ms: int
    newest_ms: int | None
    """Time of the newest event, epoch ms; None: there is no event."""
    clients: Mapping[str, int]
    """Number of clients by verdict."""
    principals: Mapping[str, int]
    """Number of principals by verdict."""
    regressed: int | None
    """Number of clients that were ready and are not any more; None: the report does not say."""
    kafka_4: int
    """Number of clients that break at Kafka 4.0."""
    lifetimes: tuple[Lifetime, ...]
    failures: Mapping[str, int]
    """Number of failed authentications by phase."""

    def report(self, snapshot: Snapshot) -> None:
        """Add the metrics."""
        for metric, counts in (
            (registry.READINESS_CLIENTS, self.clients),
            (registry.READINESS_PRINCIPALS, self.principals),
            (registry.READINESS_FAILED_AUTHENTICATIONS, self.failures),
        ):
            for label, count in counts.items():
                snapshot.gauge(metric, count, label)
        for lifetime in self.lifetimes:
            label = f"{lifetime.seconds:.3f}".rstrip("0").rstrip(".")
            snapshot.gauge(registry.READINESS_KILLED_CLIENTS, lifetime.killed_clients, label)
            for bound, kills in lifetime.kills_per_day.items():
                snapshot.gauge(registry.READINESS_KILLS_PER_DAY, kills, label, bound)
        snapshot.gauge(registry.READINESS_KAFKA_4_CLIENTS, self.kafka_4)
        snapshot.gauge(registry.READINESS_REPORT_TIME, self.as_of_ms / 1000)
        if self.regressed is not None:
            snapshot.gauge(registry.READINESS_REGRESSED_CLIENTS, self.regressed)
        if self.newest_ms is not None:
            snapshot.gauge(registry.READINESS_NEWEST_EVENT, self.newest_ms / 1000)


def figures_of(content: bytes) -> Figures:
    """Return the figures of a report.json. Raises UnusableReportError."""
    try:
        given = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UnusableReportError(f"{JSON_NAME} is no JSON, or cut off") from None
    facts = _Facts(given)
    version = facts.of.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        shown = version if isinstance(version, int) and abs(version) < _MAX_MS else "none"
        raise UnusableReportError(
            f"{JSON_NAME} is of schema version {shown}, and this program knows {SCHEMA_VERSION}:"
            " let the version that made the report serve it"
        )
    run_id = facts.of.get("run_id")
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise _Facts.lacks("run_id")
    lifetimes = [_lifetime(row) for row in facts.rows("what_if")]
    counts = {"login": 0, "reauthentication": 0}
    for row in facts.rows("failures"):
        again = row.of.get("reauthentication") is True
        counts["reauthentication" if again else "login"] += row.count("count")
    regressed = facts.of.get("regressed")
    return Figures(
        run_id=run_id,
        as_of_ms=facts.time("as_of_ms"),
        newest_ms=facts.section("observed").time_or_none("to_ms"),
        clients=_by_verdict(facts.section("clients_by_verdict")),
        principals=_by_verdict(facts.section("principals_by_verdict")),
        regressed=None if regressed is None else facts.section("regressed").count("client_count"),
        kafka_4=facts.section("breaks_at_kafka_4").count("client_count"),
        lifetimes=tuple(sorted(lifetimes, key=lambda one: one.seconds)[:MAX_LIFETIMES]),
        failures=counts,
    )


def _lifetime(row: "_Facts") -> Lifetime:
    bounds = {bound: row.number(f"kills_per_day_{bound}") for bound in ("least", "most")}
    return Lifetime(
        seconds=row.count("lifetime_ms") / 1000,
        killed_clients=row.count("killed_clients"),
        kills_per_day={bound: kills for bound, kills in bounds.items() if kills is not None},
    )


def _by_verdict(counts: "_Facts") -> dict[str, int]:
    return {verdict.value: counts.count(verdict) for verdict in Verdict}


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN, which is no JSON


class _Facts:
    """Object in report.json, whose values may be anything."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict):
            raise UnusableReportError(f"{JSON_NAME} is not that of a readiness report")
        self.of: dict[str, Any] = given

    @staticmethod
    def lacks(key: str) -> UnusableReportError:
        """Return the error of a key that is missing, or of another kind."""
        return UnusableReportError(f"{JSON_NAME} has no {key} as a readiness report has it")

    def section(self, key: str) -> "_Facts":
        return _Facts(self.of.get(key))

    def rows(self, key: str) -> list["_Facts"]:
        given = self.of.get(key)
        if not isinstance(given, list):
            raise self.lacks(key)
        return [_Facts(one) for one in given]

    def count(self, key: str) -> int:
        given = self.of.get(key)
        if type(given) is not int or not 0 <= given < 2**63:
            raise self.lacks(key)
        return given

    def time(self, key: str) -> int:
        given = self.of.get(key)
        if type(given) is not int or not 0 <= given < _MAX_MS:
            raise self.lacks(key)
        return given

    def time_or_none(self, key: str) -> int | None:
        return None if self.of.get(key) is None else self.time(key)

    def number(self, key: str) -> float | None:
        given = self.of.get(key)
        if given is None:
            return None
        if type(given) not in (int, float) or not 0 <= given < 2**63 or not math.isfinite(given):
            raise self.lacks(key)
        return float(given)
