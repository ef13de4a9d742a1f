"""The report's numbers counted again, one connection after the other, from docs/readiness.md alone.

Nothing of `metrics.readiness` is used. For logs without lost events, which a report of a log with
losses has to equal; lines that are bad, come twice or are dated by a wrong clock may be among them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
KINDS = {
    "authenticated",
    "reauthenticated",
    "failed",
    "expired-killed",
    "would-be-killed",
    "no-reauth",
    "denied",
    "would-be-denied",
    "closed",
    "checkpoint",
    "summary",
}
NAMES = ("principal", "client_id", "client_software_name", "client_software_version", "mechanism")

Event = dict[str, Any]
Client = tuple[str | None, ...]


@dataclass
class Connection:
    """Outcome of one connection."""

    client: Client
    version: int | None
    used_ms: int | None = None
    ended_ms: int = 0
    ended_by: str | None = None
    renewed_on: set[int] = field(default_factory=set)
    failed_on: set[int] = field(default_factory=set)
    seen_on: set[int] = field(default_factory=set)

    @property
    def capable(self) -> bool:
        return self.version is not None and self.version >= 1

    @property
    def standing(self) -> str:
        if self.client[0] is None:
            return "unknown"
        if not self.capable:
            return "not_capable"
        if self.failed_on:
            return "failing"
        return "ready" if self.renewed_on else "unproven"


@dataclass
class Recount:
    """All that is compared."""

    lines: Counter[str]
    connections: dict[str, Connection]
    verdicts: dict[Client, str]
    by_day: dict[int, Counter[str]]
    what_if: dict[int, Counter[str]]
    storms: Counter[tuple[int, str | None]]
    failures: Counter[tuple[str | None, str | None, bool]]
    covered_ms: int


def recount(lines: Iterable[str], *, as_of_ms: int, lifetimes_ms: Iterable[int]) -> Recount:
    """Count everything."""
    counted: Counter[str] = Counter()
    valid = list(_valid(lines, as_of_ms, counted))
    wrong = _wrong_days({each["timestamp_ms"] // DAY_MS for each in valid}, valid)
    counted["implausible"] = sum(each["timestamp_ms"] // DAY_MS in wrong for each in valid)
    valid = [each for each in valid if each["timestamp_ms"] // DAY_MS not in wrong]
    by_name = {(each["connection_id"], each["sequence"]): each for each in valid}
    counted["duplicate"] = len(valid) - len(by_name)
    of: dict[str, list[Event]] = defaultdict(list)
    for name in sorted(by_name):
        of[name[0]].append(by_name[name])
    connections = {name: _connection(events) for name, events in of.items()}
    verdicts = {}
    by_day: dict[int, Counter[str]] = defaultdict(Counter)
    for client in {each.client for each in connections.values()}:
        own = [each for each in connections.values() if each.client == client]
        if client[0] is None:
            verdicts[client] = "unknown"
            continue
        for day in sorted(set().union(*(each.seen_on for each in own))):
            verdicts[client] = _verdict(own, day)
            by_day[day][verdicts[client]] += 1
    hours = {each["timestamp_ms"] // HOUR_MS for each in by_name.values()}
    times = [each["timestamp_ms"] for each in by_name.values()]
    logins = ("authenticated", "reauthenticated")
    failed = [each for each in by_name.values() if each["kind"] == "failed"]
    return Recount(
        lines=counted,
        connections=connections,
        verdicts=verdicts,
        by_day=by_day,
        what_if={each: _killed(connections, verdicts, each) for each in lifetimes_ms},
        storms=Counter(
            (each["timestamp_ms"] // MINUTE_MS * MINUTE_MS, each.get("mechanism"))
            for each in by_name.values()
            if each["kind"] in logins
        ),
        failures=Counter(
            (each.get("mechanism"), each.get("failure_reason"), each["authentications"] > 0)
            for each in failed
        ),
        covered_ms=min(max(times) - min(times), len(hours) * HOUR_MS),
    )


def _valid(lines: Iterable[str], as_of_ms: int, counted: Counter[str]) -> Iterator[Event]:
    for line in lines:
        counted["lines"] += 1
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or "connection_id" not in event:
            counted["unreadable"] += 1
        elif event["schema_version"] != 1:
            counted["unknown_version"] += 1
        elif event["kind"] not in KINDS:
            counted["unknown_kind"] += 1
        elif event["sequence"] < 0:
            counted["impossible"] += 1
        elif event["timestamp_ms"] > as_of_ms + 15 * MINUTE_MS:
            counted["future"] += 1
        else:
            yield event


def _wrong_days(days: set[int], events: list[Event]) -> set[int]:
    """Days before the latest stretch with a tenth of all events, or after it."""
    stretches: list[set[int]] = []
    for day in sorted(days):
        if not stretches or day - max(stretches[-1]) > 180:
            stretches.append(set())
        stretches[-1].add(day)
    counts = Counter(each["timestamp_ms"] // DAY_MS for each in events)
    large = [each for each in stretches if sum(counts[day] for day in each) * 10 >= len(events)]
    return days - large[-1]


def _connection(events: list[Event]) -> Connection:
    last = events[-1]
    found = Connection(
        client=tuple(last.get(name) for name in NAMES), version=last.get("authenticate_version")
    )
    lifetime_ms, is_late = 0, False  # of the session in force
    for each in events:
        day, kind = each["timestamp_ms"] // DAY_MS, each["kind"]
        found.seen_on.add(day)
        if kind == "summary":
            continue
        found.ended_ms = each.get("since_auth_ms", 0)
        age_ms = _age_ms(each)
        if age_ms is not None:
            found.used_ms = max(age_ms, found.used_ms or 0)
        if _is_past(each, age_ms, lifetime_ms):
            is_late = True
            begin = _begin_ms(each)
            used_at = each["timestamp_ms"] if None in (age_ms, begin) else begin + age_ms
            found.failed_on.add(used_at // DAY_MS)
        if kind == "failed" and each["authentications"] > 0 and each.get("announced_lifetime_ms"):
            found.failed_on.add(day)
        if kind == "reauthenticated" and not is_late:
            found.renewed_on.add(day)
        if kind in {"authenticated", "reauthenticated"}:
            lifetime_ms, is_late = each.get("announced_lifetime_ms") or 0, False
        ends = {"expired-killed": "killed", "failed": "failed", "closed": "closed"}
        if kind in ends and found.ended_by in (None, "closed"):
            found.ended_by = ends[kind]
    return found


def _begin_ms(event: Event) -> Any:
    """When the session began that an event is about, or that it ends."""
    if event["kind"] == "reauthenticated":
        return event["timestamp_ms"] - event["since_auth_ms"]
    return event.get("authenticated_ms")


def _age_ms(event: Event) -> int | None:
    """How old its session was when it was used last."""
    begin, use = _begin_ms(event), event.get("last_request_ms")
    ages = [use - begin] if use is not None and begin is not None and use >= begin else []
    if event["kind"] in {"expired-killed", "would-be-killed"}:
        ages.append(event["since_auth_ms"])
    return max(ages, default=None)


def _is_past(event: Event, age_ms: int | None, lifetime_ms: int) -> bool:
    """Whether it shows a use past the end: a re-authentication after that is late."""
    if event["kind"] in {"expired-killed", "would-be-killed"} or event.get("expired_requests"):
        return True
    # a millisecond is lost by rounding
    return lifetime_ms > 0 and age_ms is not None and age_ms > lifetime_ms + 1


def _verdict(connections: list[Connection], day: int) -> str:
    """Judge a client by the events up to the end of a day."""
    own = [each for each in connections if min(each.seen_on) <= day]
    failed = [on for each in own for on in each.failed_on if on <= day]
    renewed = [on for each in own for on in each.renewed_on if on <= day]
    repaired = bool(renewed) and (not failed or max(renewed) > max(failed))
    if failed and not repaired and any(each.capable for each in own):
        return "failing"
    if not all(each.capable for each in own):
        return "not_capable"
    return "ready" if repaired else "unproven"


def _killed(
    connections: dict[str, Connection], verdicts: dict[Client, str], lifetime_ms: int
) -> Counter[str]:
    found: Counter[str] = Counter()
    clients = defaultdict(set)
    for each in connections.values():
        standing = "ready" if verdicts[each.client] == "ready" else each.standing
        if standing in {"ready", "unknown"}:
            continue
        what = None
        if each.used_ms is not None and each.used_ms > lifetime_ms:
            what = "unproven" if standing == "unproven" else "killed"
        elif each.ended_by in {"killed", "failed"} and each.ended_ms <= lifetime_ms:
            what = "cut_short"
        if what is not None:
            found[f"{what}_connections"] += 1
            clients[what].add(each.client)
    for what, names in clients.items():
        found[f"{what}_clients"] = len(names)
    return found
