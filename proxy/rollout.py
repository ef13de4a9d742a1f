"""Automatic migration (`reauth.enforcement: auto`): which principals can be enforced; pure.

Rules:

- Missing data is never success. A client is ready only after it re-authenticated in time, often
  enough and for long enough; a session that ended earlier proves nothing.
- Evidence is a set of facts with the times at which they happened. Merging is a union with maxima,
  so the order of merges does not matter, and neither do facts that come twice.
- A client of an enforced principal that is not ready itself is probed.
- Everything is bounded: what has no place makes its principal undecided.

Time is epoch milliseconds, and always an argument.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple, Self

from metrics.rollout import (
    AUTO,
    EVIDENCE_MAX_AGE_MS,
    MAX_CHARACTERS,
    MAX_CLIENTS,
    REAUTHENTICATIONS,
    WINDOW_MS,
    Stage,
    stable_id,
)

MAX_PRINCIPALS: Final = 10_000
"""Maximum number of principals with evidence; others are never promoted."""
BUCKETS: Final = 32
"""Number of parts of `auto.window.ms`; the last re-authentication in each is kept."""
TOLERANCE_MS: Final = 60_000
"""Maximum difference between the clocks of proxies, in milliseconds."""
HOUR_MS: Final = 3_600_000
Claimed = tuple[str | None, str | None, str | None]
"""Client id, and the name and version of its software (KIP-511); None if unknown."""
ANY_CLIENT: Final[Claimed] = (None, None, None)


class ClientKind(NamedTuple):
    """Clients of a principal that differ only in the changing parts of their client ids."""

    client_id: str | None
    software: str | None
    version: str | None

    def __str__(self) -> str:
        software = " ".join(part for part in (self.software, self.version) if part)
        return f"{self.client_id or 'no client id'!a} ({software or 'unknown software'})"


@lru_cache(maxsize=4096)
def kind_of(claimed: Claimed) -> ClientKind:
    """Return the kind of a client. Numbers, UUIDs and pods' suffixes in its id become `*`."""
    client_id, software, version = (one and one[:MAX_CHARACTERS] for one in claimed)
    return ClientKind(client_id and stable_id(client_id), software, version)


class Rules(NamedTuple):
    """Settings of `auto`; times and durations in milliseconds."""

    reauthentications: int = REAUTHENTICATIONS
    window_ms: int = WINDOW_MS
    evidence_max_age_ms: int = EVIDENCE_MAX_AGE_MS
    max_kills: int = 0
    kill_window_ms: int = 3_600_000
    on_kills: str = "demote"
    """`freeze` if kills stop all promotions, and demote no principal."""
    promotions_per_hour: int = 10
    pause: bool = False
    lifetimes_ms: tuple[int, ...] = ()
    """Lifetimes of sessions, step by step, each shorter than the one before it; empty if the
    lifetime does not change."""

    def lifetime_ms(self, step: int) -> int | None:
        """Return the lifetime of a step; None if `auto` does not set it."""
        return (
            self.lifetimes_ms[min(step, len(self.lifetimes_ms) - 1)] if self.lifetimes_ms else None
        )


class Evidence(NamedTuple):
    """Facts about the clients of one kind."""

    seen_ms: int = 0
    """Time of the last login or re-authentication."""
    failed: tuple[int, str] = (0, "")
    """Time and reason of the last failure to re-authenticate in time."""
    longest_ms: int = 0
    """Longest use of a session on a connection that had never re-authenticated."""
    renewed: tuple[int, ...] = ()
    """Times of re-authentications in time since the last failure, ascending; see `_thinned`."""

    def merged(self, other: Self, rules: Rules) -> "Evidence":
        """Return the facts of both."""
        failed = max(self.failed, other.failed)
        return Evidence(
            max(self.seen_ms, other.seen_ms),
            failed,
            max(self.longest_ms, other.longest_ms),
            _thinned({*self.renewed, *other.renewed}, failed[0], rules),
        )

    def since(self, from_ms: int) -> list[int]:
        """Return the re-authentications after a time and after the last failure."""
        return [at for at in self.renewed if at > max(from_ms, self.failed[0])]


def _thinned(times: Iterable[int], after_ms: int, rules: Rules) -> tuple[int, ...]:
    """Return the latest of these times, and the latest in each part of the window.

    Older facts cannot change whether the latest `reauthentications` span the window.
    """
    later = sorted(at for at in times if at > after_ms)
    width = -(-rules.window_ms // BUCKETS)
    by_bucket = {at // width: at for at in later}
    kept = {*later[-rules.reauthentications :], *sorted(by_bucket.values())[-BUCKETS - 2 :]}
    return tuple(sorted(kept))


class Decision(NamedTuple):
    """Decision about a principal. The latest one counts; of two at the same time, the one that
    probes."""

    at_ms: int = 0
    """Time of the decision; 0 if none was made."""
    probes: bool = True
    """False if the principal is enforced."""
    step: int = 0
    """Index of its lifetime in `auto.lifetimes.ms`."""
    since_ms: int = 0
    """Time from which evidence counts."""
    author: str = AUTO
    """`auto`, or the operator."""
    reason: str = ""

    @property
    def is_automatic(self) -> bool:
        """True if no operator made it."""
        return self.author == AUTO


UNDECIDED: Final = Decision()
"""No decision was made."""


class Pause(NamedTuple):
    """Pause of all promotions, or its end. The latest one counts."""

    at_ms: int = 0
    paused: bool = False
    author: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Evidence and decision about one principal."""

    clients: Mapping[ClientKind, Evidence] = field(default_factory=dict)
    kills: tuple[int, ...] = ()
    """Times of the latest kills, ascending."""
    crowded_ms: int = 0
    """Time of the last login of a client that had no place in `clients`."""
    decision: Decision = UNDECIDED

    def merged(self, other: Self, rules: Rules) -> "Record":
        """Return the facts of both."""
        clients = dict(self.clients)
        for kind, evidence in other.clients.items():
            clients[kind] = clients.get(kind, Evidence()).merged(evidence, rules)
        crowded = [self.crowded_ms, other.crowded_ms]
        for kind in sorted(clients, key=repr)[MAX_CLIENTS:]:
            crowded.append(clients.pop(kind).seen_ms)
        return Record(
            clients=clients,
            kills=tuple(sorted({*self.kills, *other.kills}))[-rules.max_kills - 1 :],
            crowded_ms=max(crowded),
            decision=max(self.decision, other.decision),
        )

    def current(self, from_ms: int) -> dict[ClientKind, Evidence]:
        """Return the clients that were seen since a time."""
        return {kind: one for kind, one in self.clients.items() if one.seen_ms >= from_ms}

    def text(self) -> str:
        """Return the row of the store."""
        clients = [
            [*kind, one.seen_ms, *one.failed, one.longest_ms, one.renewed]
            for kind, one in self.clients.items()
        ]
        return json.dumps([clients, self.kills, self.crowded_ms, self.decision])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the record of a row. Raises ValueError, TypeError or IndexError."""
        clients, kills, crowded_ms, decision = json.loads(text)
        return cls(
            clients={
                ClientKind(*row[:3]): Evidence(row[3], (row[4], row[5]), row[6], tuple(row[7]))
                for row in clients
            },
            kills=tuple(kills),
            crowded_ms=crowded_ms,
            decision=Decision(*decision),
        )


class Standing(NamedTuple):
    """Stage of a principal or a kind of client, and what is missing for the next one."""

    stage: Stage
    reason: str


class Promotion(NamedTuple):
    """How an enforced principal is treated."""

    max_reauth_ms: int | None
    """Lifetime of its sessions; None if `auto` does not set it."""
    clients: frozenset[ClientKind] | None
    """Clients that are ready; others are probed. None if all are enforced."""


Promotions = Mapping[str, Promotion]
"""Enforced principals."""


class Rollout:
    """Evidence and decisions about all principals."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.records: dict[str, Record] = {}
        self.pause = Pause()
        self.floor_ms = 0
        """Time of the last jump of a clock: earlier evidence does not count."""

    @property
    def is_empty(self) -> bool:
        """True if there are no facts and no decisions."""
        return not (self.records or self.pause.at_ms or self.floor_ms)

    def merge(self, other: "Rollout") -> None:
        """Add the facts of another."""
        self.pause = max(self.pause, other.pause)
        self.floor_ms = max(self.floor_ms, other.floor_ms)
        for principal, record in other.records.items():
            self.add(principal, record)

    def add(self, principal: str, record: Record) -> None:
        """Add facts about a principal, if it has a place."""
        before = self.records.get(principal)
        if before is not None:
            self.records[principal] = before.merged(record, self.rules)
        elif len(self.records) < MAX_PRINCIPALS:
            self.records[principal] = Record().merged(record, self.rules)

    def note(self, principal: str, kind: ClientKind, evidence: Evidence, *killed_ms: int) -> None:
        """Add a fact about a client, and the times of its kills."""
        self.add(principal, Record(clients={kind: evidence}, kills=killed_ms))

    # Rows of the store: one for each principal, and one without a name for all of them

    def rows(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return the rows of principals, None for a removed one, and the row without a name."""
        found = {name: r.text() if (r := self.records.get(name)) else None for name in names}
        return {**found, "": json.dumps([self.pause, self.floor_ms])}

    def read(self, rows: Mapping[str, str]) -> list[str]:
        """Add rows of the store; return the names of those that are not valid."""
        invalid = []
        for name, text in rows.items():
            try:
                if name:
                    self.add(name, Record.parse(text))
                else:
                    pause, floor_ms = json.loads(text)
                    self.pause = max(self.pause, Pause(*pause))
                    self.floor_ms = max(self.floor_ms, floor_ms)
            except (ValueError, TypeError, IndexError):
                invalid.append(name)
        return invalid

    # Judgement

    def standing(self, principal: str, now_ms: int) -> Standing:
        """Return the stage of a principal, with the reason."""
        record = self.records[principal]
        decision = record.decision
        if not decision.probes:
            return Standing(Stage.ENFORCED, decision.reason)
        if not decision.is_automatic:
            return Standing(Stage.DEMOTED, decision.reason)
        found = self._evidence_for(record, decision.since_ms, now_ms)
        if decision.at_ms and found.stage is not Stage.READY:
            return Standing(Stage.DEMOTED, f"{decision.reason}; {found.reason}")
        return found

    def _evidence_for(self, record: Record, since_ms: int, now_ms: int) -> Standing:
        """Return the standing of the client that is farthest from being ready."""
        oldest = now_ms - self.rules.evidence_max_age_ms
        clients = record.current(oldest)
        if record.crowded_ms >= oldest and record.crowded_ms:
            return Standing(Stage.UNDECIDED, f"it has more than {MAX_CLIENTS} kinds of clients")
        if not clients:
            return Standing(Stage.UNDECIDED, "no client was seen recently")
        found = [
            (self.client_standing(one, since_ms, now_ms), str(kind))
            for kind, one in clients.items()
        ]
        worst, kind = min(found, key=lambda each: (list(Stage).index(each[0].stage), each[1]))
        return Standing(worst.stage, f"client {kind}: {worst.reason}" if worst.reason else "")

    def client_standing(self, one: Evidence, since_ms: int, now_ms: int) -> Standing:
        """Return the standing of a kind of client by its evidence since a time."""
        rules = self.rules
        if max(one.seen_ms, one.failed[0], *one.renewed, 0) > now_ms + TOLERANCE_MS:
            return Standing(Stage.UNDECIDED, "its evidence is from the future: check the clocks")
        floor = max(since_ms, self.floor_ms, now_ms - rules.evidence_max_age_ms)
        times = one.since(floor)
        if not times:
            if one.failed[0] > floor:
                return Standing(Stage.SEEN, one.failed[1])
            return Standing(Stage.UNDECIDED, "it has not re-authenticated yet")
        if len(times) < rules.reauthentications:
            return Standing(
                Stage.CAPABLE, f"{len(times)} of {rules.reauthentications} re-authentications"
            )
        if (span := times[-1] - times[0]) < rules.window_ms:
            return Standing(Stage.CAPABLE, f"re-authenticates for {span} of {rules.window_ms} ms")
        return Standing(Stage.READY, "")

    def would_be_killed(self, principal: str) -> dict[int, int]:
        """Return how many kinds of clients each of `lifetimes_ms` would disconnect: they used a
        session for longer, and have not re-authenticated since their last failure."""
        clients = self.records[principal].clients.values()
        longest = [one.longest_ms for one in clients if not one.since(0)]
        return {ms: sum(one > ms for one in longest) for ms in self.rules.lifetimes_ms}

    def promotions(self, now_ms: int) -> dict[str, Promotion]:
        """Return the enforced principals."""
        found = {}
        for principal, record in self.records.items():
            decision, ready = record.decision, None
            if decision.probes:
                continue
            if decision.is_automatic:
                clients = record.current(now_ms - self.rules.evidence_max_age_ms)
                ready = frozenset(
                    kind
                    for kind, one in clients.items()
                    if self.client_standing(one, decision.since_ms, now_ms).stage is Stage.READY
                )
            found[principal] = Promotion(self.rules.lifetime_ms(decision.step), ready)
        return found

    # Decisions

    def decide(self, now_ms: int) -> "Rollout":
        """Return the decisions that are due, which are in force when they are merged."""
        due, freezes = Rollout(self.rules), self.rules.on_kills == "freeze"
        for principal, record in self.records.items():
            kills = self._kills(record, now_ms)
            if record.decision.probes or kills <= self.rules.max_kills:
                continue
            reason = f"sessions killed within {self.rules.kill_window_ms} ms: {kills}"
            if freezes and not self.pause.paused:
                due.pause = Pause(now_ms, True, AUTO, f"{principal}: {reason}")
            elif not freezes:
                decision = Decision(now_ms, True, 0, now_ms, AUTO, reason)
                due.records[principal] = Record(decision=decision)
        if not (self.rules.pause or self.pause.paused or due.pause.paused):
            for principal, decision in self._promotions_due(now_ms):
                due.records.setdefault(principal, Record(decision=decision))
        return due

    def _kills(self, record: Record, now_ms: int) -> int:
        """Return the number of kills in the window, since the decision and the last resumption."""
        resumed_ms = 0 if self.pause.paused else self.pause.at_ms
        from_ms = max(record.decision.at_ms, resumed_ms, now_ms - self.rules.kill_window_ms)
        return sum(at >= from_ms for at in record.kills)

    def _promotions_due(self, now_ms: int) -> Iterator[tuple[str, Decision]]:
        """Yield promotions and next steps, principals with few kinds of clients first."""
        lately = sum(
            one.decision.is_automatic
            and not one.decision.probes
            and one.decision.at_ms > now_ms - HOUR_MS
            for one in self.records.values()
        )
        places = self.rules.promotions_per_hour - lately
        for principal, record in sorted(
            self.records.items(), key=lambda item: (len(item[1].clients), item[0])
        ):
            if places <= 0:
                return
            before = record.decision
            step = 0 if before.probes else before.step + 1
            if before.probes:
                found = self.standing(principal, now_ms)
            elif before.is_automatic and step < len(self.rules.lifetimes_ms):
                found = self._evidence_for(record, before.at_ms, now_ms)
            else:
                continue
            if found.stage is Stage.READY:
                places -= 1
                lifetime_ms = self.rules.lifetime_ms(step)
                reason = "all clients re-authenticate in time"
                if lifetime_ms is not None:
                    reason += f"; sessions of {lifetime_ms} ms"
                yield principal, Decision(now_ms, False, step, before.since_ms, AUTO, reason)

    def forget(self, now_ms: int) -> list[str]:
        """Remove the clients that were not seen lately, and principals without any; return the
        names of the changed principals. Decisions of operators stay."""
        oldest, changed = now_ms - self.rules.evidence_max_age_ms, []
        for principal, record in list(self.records.items()):
            clients = record.current(oldest)
            if not clients and record.decision.is_automatic:
                del self.records[principal]
            elif len(clients) < len(record.clients):
                self.records[principal] = replace(record, clients=clients)
            else:
                continue
            changed.append(principal)
        return changed

    def funnel(self, now_ms: int) -> dict[Stage, int]:
        """Return the number of principals in each stage."""
        counts = Counter(self.standing(principal, now_ms).stage for principal in self.records)
        return {stage: counts[stage] for stage in Stage}
