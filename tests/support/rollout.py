"""A log of clients over weeks, and the stages that the proxy's own rules give them."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from metrics.event_schema import SessionEvent
from metrics.events import EventKind
from metrics.rollout import AUTO
from proxy.rollout import Decision, Evidence, Record, Rollout, Rules, kind_of
from tests.support.metrics import EPOCH_MS, event
from tests.support.readiness import login

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LIFETIME_MS = 6 * HOUR_MS
FIRST_MS = EPOCH_MS - 40 * DAY_MS
DAYS = 60

Stages = dict[tuple[str, int], str]
"""Stages by principal and day."""


def rollout_log(seed: int, principals: int = 12) -> list[SessionEvent]:
    """Return events in the order of time: clients that can, cannot, become good or bad, batch jobs
    that run weekly, and decisions about some principals."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    found: list[SessionEvent] = []
    for number in range(principals):
        name = f"User:auto-{number}"
        for client in range(rng.choice([1, 1, 2, 3])):
            found += _client(rng, name, f"{name}-{client}")
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                found.append(_decision(rng, name, len(found)))
    return sorted(found, key=lambda each: (each.timestamp_ms, each.sequence))


def _client(rng: random.Random, principal: str, client: str) -> Iterator[SessionEvent]:
    """Connections of a client one after the other, whose id has changing parts."""
    how = rng.choice(["good", "good", "good", "late", "old", "short", "weekly"])
    turns = FIRST_MS + rng.choice([0, 10, 40, 60]) * DAY_MS
    now = FIRST_MS + rng.randint(0, 20 * DAY_MS)
    for number in range(1_000):
        bad = now < turns if how == "late" else turns <= now < turns + 5 * DAY_MS
        bad &= how in {"late", "good"}
        identity = {
            "principal": principal,
            "client_id": f"app{number}-{client[-1]}-7d9f8b6c5d-x2x4z",
            "client_software_name": rng.choice([None, "librdkafka"]) if number % 9 else "lib",
            "connection_id": f"{client}-{number}",
            "authenticate_version": 0 if how == "old" else 2,
            "announced_lifetime_ms": 0 if how == "old" else LIFETIME_MS,
            "session_lifetime_ms": LIFETIME_MS,
        }
        begin, sequence, authentications = now, 0, 1
        yield login(timestamp_ms=now, authenticated_ms=now, connected_ms=now, **identity)
        for _ in range(0 if how == "short" else rng.randint(1, 9)):
            now += round(LIFETIME_MS * rng.uniform(0.8, 0.95))
            is_late = how == "old" or (bad and rng.random() < 0.5)
            more = {**identity, "authenticated_ms": begin, "last_request_ms": now}
            if is_late:
                now = begin + LIFETIME_MS + rng.randint(1_000, HOUR_MS)
                sequence += 1
                yield event(kind=EventKind.WOULD_BE_KILLED, timestamp_ms=now, sequence=sequence,
                            authentications=authentications, since_auth_ms=now - begin,
                            **more | {"last_request_ms": now - 7})  # fmt: skip
                now += rng.randint(1_000, HOUR_MS)
            if how == "old":
                break
            sequence, authentications = sequence + 1, authentications + 1
            yield event(kind=EventKind.REAUTHENTICATED, timestamp_ms=now, sequence=sequence,
                        authentications=authentications, since_auth_ms=now - begin,
                        expired_requests=int(is_late), auth_latency_us=1_000,
                        **more | {"authenticated_ms": now, "last_request_ms": now - 9})  # fmt: skip
            begin = now
        now += rng.randint(1_000, HOUR_MS)
        yield event(kind=EventKind.CLOSED, timestamp_ms=now, sequence=sequence + 1,
                    authentications=authentications, authenticated_ms=begin,
                    since_auth_ms=now - begin, close_reason="client_closed",
                    **identity)  # fmt: skip
        now += 7 * DAY_MS if how == "weekly" else rng.randint(1_000, 3 * HOUR_MS)
        if rng.random() < 0.02:
            now += 31 * DAY_MS
        if now > FIRST_MS + DAYS * DAY_MS:
            return


def _decision(rng: random.Random, principal: str, number: int) -> SessionEvent:
    kind = rng.choice([EventKind.PROMOTED, EventKind.DEMOTED])
    return replace(
        event(
            kind=kind,
            timestamp_ms=FIRST_MS + rng.randint(20 * DAY_MS, DAYS * DAY_MS),
            connection_id=f"decision-{principal}-{number}",
            principal=principal,
            decided_by=rng.choice([AUTO, AUTO, "root"]),
            decision_reason="because",
        ),
        authentications=0,
    )


def replayed(events: Iterable[SessionEvent]) -> Stages:
    """Return the stage of each principal at the end of each day, by the rules of the proxy."""
    state, stages, late = Rollout(Rules()), Stages(), set[str]()
    day = FIRST_MS // DAY_MS
    for each in events:
        while each.timestamp_ms // DAY_MS > day:
            _judge(state, day, stages)
            day += 1
        if each.kind is EventKind.REAUTHENTICATED and each.connection_id in late:
            late.remove(each.connection_id)
            _note(state, each, renewed=False)
        else:
            _note(state, each, renewed=each.kind is EventKind.REAUTHENTICATED)
        if each.kind is EventKind.WOULD_BE_KILLED:
            late.add(each.connection_id)
    _judge(state, day, stages)
    return stages


def _judge(state: Rollout, day: int, stages: Stages) -> None:
    now_ms = (day + 1) * DAY_MS - 1
    state.forget(now_ms)
    for name, record in state.records.items():
        if record.clients:
            stages[name, day] = str(state.standing(name, now_ms).stage)


def _note(state: Rollout, each: SessionEvent, *, renewed: bool) -> None:
    """Add an event as `SessionObserver` does."""
    now_ms, principal = each.timestamp_ms, str(each.principal)
    if each.decided_by is not None:
        demoted = each.kind is EventKind.DEMOTED
        since_ms = state.records.get(principal, Record()).decision.since_ms
        decision = Decision(
            now_ms, demoted, 0, now_ms if demoted else since_ms, each.decided_by, "because"
        )
        state.add(principal, Record(decision=decision))
        return
    failed = each.kind is EventKind.WOULD_BE_KILLED or (
        each.kind is EventKind.AUTHENTICATED and not each.authenticate_version
    )
    if not (failed or renewed or each.client_software_name or each.last_request_ms):
        return
    kind = kind_of((each.client_id, each.client_software_name, each.client_software_version))
    evidence = Evidence(now_ms, (now_ms, "x") if failed else (0, ""), 0, (now_ms,) * renewed)
    state.note(principal, kind, evidence)
