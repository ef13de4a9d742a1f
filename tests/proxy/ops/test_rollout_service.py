"""Evidence that workers and proxies share in a store, and the decisions made with it."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metrics import registry
from metrics.history import Timeline
from metrics.snapshot import Snapshot
from proxy.config import Config
from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.ops.rollout_service import RolloutService
from proxy.rollout import ClientKind, Decision, Evidence, Promotions, Record, Rollout
from proxy.store import Store, open_store
from sasl.states import Enforcement
from tests.support.frames import authenticate, bearer, handshake, metadata
from tests.support.observer import observer_of
from tests.support.playbook import OAUTHBEARER, Playbook, log_in
from tests.support.sasl import NOW
from tests.support.settings import SCRAM, configured
from tests.support.store import Watched

KIND = ClientKind("app-*", "lib", "2")


def settings(mode: str = "auto", **auto: Any) -> Config:
    given = {"window.ms": 1, **{key.replace("_", "."): value for key, value in auto.items()}}
    return configured(Path(), {**SCRAM, "reauth.enforcement": mode}, auto=given)


OPEN: list[Store] = []
"""Stores that a test has opened."""


@pytest.fixture(autouse=True)
def closed_stores() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Worker:
    """A worker's service, and the promotions that it applied."""

    def __init__(self, path: Path, number: int = 0, **auto: Any) -> None:
        store = open_store(f"sqlite:{path}")
        OPEN.append(store)
        self.store = Watched(store)
        self.promotions: Promotions = {}
        self.first_lifetime_ms: int | None = None
        self.clock_offset = time.time() - monotonic()
        shared = cast(Store, self.store)
        self.recorded: list[tuple[str, bool]] = []
        self.service = RolloutService(settings(**auto), shared, number, self._promote, self._record)

    def _promote(self, promotions: Promotions, first_lifetime_ms: int | None) -> None:
        self.promotions, self.first_lifetime_ms = promotions, first_lifetime_ms

    def _record(self, principal: str, decision: Decision) -> None:
        self.recorded.append((principal, decision.probes))

    def note(
        self,
        principal: str = "User:a",
        *,
        ago: float = 0,
        renewed: bool = False,
        killed: bool = False,
    ) -> None:
        at = round((monotonic() - ago + self.clock_offset) * 1000)
        failed = (at, "used a session past its end") if killed else (0, "")
        evidence = Evidence(at, failed, 0, (at,) * renewed)
        self.service.pending.note(principal, KIND, evidence, *((at,) * killed))

    def renews(self, principal: str = "User:a", times: int = 3) -> None:
        """Re-authenticate in time, seconds apart."""
        for ago in range(times, 0, -1):
            self.note(principal, ago=ago, renewed=True)

    def exchange(self) -> set[str]:
        """Exchange evidence; return the enforced principals."""
        asyncio.run(self.service.exchange())
        return set(self.promotions)

    def counted(self, metric: Any) -> dict[str, float]:
        snapshot = Snapshot()
        self.service.collect(snapshot)
        found = snapshot.values.get(metric.name, {})
        return {labels[0]: value for labels, value in found.items() if value}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "state.db"
    with closing(open_store(f"sqlite:{file}")) as store:
        store.begin()
    return file


def test_evidence_of_all_workers_and_proxies_counts(path: Path) -> None:
    """The first worker of each proxy decides; all apply the decision, also after a restart."""
    first, second, other_proxy = Worker(path), Worker(path, 1), Worker(path)
    for one in (first, second, other_proxy):
        one.renews(times=1)
        one.note("User:b")
    assert second.exchange() == set()
    assert other_proxy.exchange() == set()
    second.renews(times=3)
    assert second.exchange() == set()
    assert first.exchange() == second.exchange() == other_proxy.exchange() == {"User:a"}
    assert second.promotions["User:a"].clients == frozenset({KIND})
    assert first.counted(registry.AUTO_DECISIONS) == {"promoted": 1}
    assert second.counted(registry.AUTO_DECISIONS) == {}
    assert second.counted(registry.AUTO_PRINCIPALS) == {"enforced": 1, "undecided": 1}
    assert Worker(path, 1).exchange() == {"User:a"}


def test_a_kill_at_any_worker_demotes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Worker(path), Worker(path, 1)
    first.renews()
    assert first.exchange() == second.exchange() == {"User:a"}
    second.note(killed=True)
    # before the demotion, the client is probed
    assert second.exchange() == {"User:a"}
    assert second.promotions["User:a"].clients == frozenset()
    with caplog.at_level(logging.WARNING):
        assert first.exchange() == second.exchange() == set()
    assert "'User:a' is demoted: sessions killed within 3600000 ms: 1" in caplog.text
    assert first.counted(registry.AUTO_DECISIONS) == {"promoted": 1, "demoted": 1}
    assert first.recorded == [("User:a", False), ("User:a", True)]
    assert second.recorded == []
    (condition,) = second.service.conditions()
    assert condition.state == "1 demoted"


def test_a_store_that_is_away_promotes_nothing_and_forgets_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Worker(path)
    one.renews("User:b")
    assert one.exchange() == {"User:b"}
    for broken in ("rollout_rows", "change_rollout"):
        one.store.broken = {broken}
        one.renews()
        assert one.exchange() == {"User:b"}  # the last promotions stay in force
        (condition,) = one.service.conditions()
        assert not condition.good
    one.note(renewed=True)
    one.store.broken = set()
    assert one.exchange() == {"User:a", "User:b"}
    assert caplog.text.count("auto: nothing is decided: state.db: is damaged") == 1


@pytest.mark.parametrize("method", ["rollout_rows", "change_rollout"])
def test_an_unexpected_error_is_logged_and_forgets_nothing(
    path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = Worker(path)
    one.renews()
    one.store.each[method] = lambda: {"": 0}["absent"]
    assert one.exchange() == set()
    assert "KeyError" in caplog.text
    one.store.each.clear()
    assert one.exchange() == {"User:a"}


def test_damaged_rows_are_no_evidence(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Worker(path)
    one.renews()
    one.renews("User:b")
    assert one.exchange() == {"User:a", "User:b"}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE rollout SET value = substr(value, 1, 9) WHERE name = 'User:b'")
        connection.commit()
    other = Worker(path)
    assert other.exchange() == {"User:a"}
    assert "the evidence about 'User:b' is damaged" in caplog.text


def test_a_clock_that_is_set_begins_the_evidence_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Worker(path)
    one.renews()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 86_400)
    assert one.exchange() == set()
    one.renews()
    assert one.exchange() == set()  # before the clock was set, by this clock
    one.clock_offset += 86_400
    for ahead in (1, 2, 3):
        assert one.exchange() == set()
        one.note(ago=-ahead, renewed=True)
    assert one.exchange() == {"User:a"}


def test_without_auto_nothing_is_read_or_recorded(path: Path) -> None:
    one = Worker(path, mode="probe")
    one.store.broken = {"rollout_rows"}
    assert one.exchange() == set()
    assert one.service.conditions() == []
    one.store.broken = set()
    one.service.apply(settings(lifetimes_ms=[5000, 1000]))
    one.renews()
    assert one.exchange() == {"User:a"}
    assert one.first_lifetime_ms == 5000


def test_only_changed_rows_are_read_again(path: Path) -> None:
    store = open_store(f"sqlite:{path}")
    version = store.change_rollout(0, lambda rows: {"a": "1", "b": "2"} if not rows else {})
    assert store.rollout_rows(0) == (version, {"a": "1", "b": "2"})
    later = store.change_rollout(version, lambda rows: {"b": None, "c": "3", **rows})
    assert store.rollout_rows(version) == (later, {"c": "3"})
    assert store.rollout_rows(later) == (later, {})
    assert store.rollout_rows(later + 1) == (later, {"a": "1", "c": "3"})  # an older copy
    store.close()


def test_decisions_of_operators_apply(path: Path) -> None:
    one = Worker(path)
    state = Rollout(one.service._rules)
    state.records["User:x"] = Record(decision=Decision(1, False, 0, 0, "root", "known"))
    one.store.change_rollout(0, lambda _rows: dict(state.rows(["User:x"])))
    assert one.exchange() == {"User:x"}
    assert one.promotions["User:x"].clients is None
    assert one.recorded == [("User:x", False)]
    one.exchange()
    assert len(one.recorded) == 1
    assert one.counted(registry.AUTO_DECISIONS) == {}


# Evidence from connections


def observed(enforcement: Enforcement = Enforcement.PROBE) -> tuple[Playbook, Rollout]:
    """Return a connection whose observer collects evidence."""
    pending = Rollout(settings().auto.rules())
    play = Playbook(enforcement=enforcement, max_reauth_ms=60_000)
    observer = observer_of(
        timeline=Timeline(wall=NOW, now=NOW),
        is_automatic=lambda identity: identity.principal == "User:alice",
        rollout=SimpleNamespace(pending=pending),
    )
    play.connection.observer = observer
    observer.opened(play.connection, NOW)
    return play, pending


def logged_in(enforcement: Enforcement = Enforcement.PROBE) -> tuple[Playbook, Rollout]:
    play, pending = observed(enforcement)
    log_in(play)
    return play, pending


def evidence_of(pending: Rollout) -> Evidence:
    ((kind, evidence),) = pending.records["User:alice"].clients.items()
    assert kind == ClientKind("app", None, None)
    return evidence


def ms(at: float) -> int:
    return int(at * 1000 + 0.5)


@pytest.mark.parametrize("used_late", [False, True])
def test_a_re_authentication_is_evidence_if_it_is_in_time(used_late: bool) -> None:
    play, pending = logged_in()
    assert not pending.records  # its software may still become known
    play.expire()
    if used_late:
        play.client(metadata(3))
        assert evidence_of(pending).failed == (ms(play.now), "used a session past its end")
    log_in(play, first_id=4)
    assert evidence_of(pending).renewed == (() if used_late else (ms(play.now),))
    assert pending.records["User:alice"].kills == ()


@pytest.mark.parametrize("enforcement", [Enforcement.PROBE, Enforcement.ENFORCE])
def test_a_session_that_is_used_past_its_end_is_a_failure_and_may_be_a_kill(
    enforcement: Enforcement,
) -> None:
    play, pending = logged_in(enforcement)
    play.expire()
    play.client(metadata(3))
    killed = enforcement is Enforcement.ENFORCE
    assert pending.records["User:alice"].kills == ((ms(play.now),) if killed else ())
    assert evidence_of(pending).failed[0] == ms(play.now)


def test_other_failures_and_the_longest_use_are_evidence() -> None:
    play, pending = observed()
    log_in(play, version=0)
    assert "cannot re-authenticate" in evidence_of(pending).failed[1]
    play, pending = logged_in()
    play.now += 30
    play.client(handshake(3, OAUTHBEARER), authenticate(4, bearer(sub="bob")))
    assert evidence_of(pending).failed == (
        ms(play.now),
        "re-authentication failed: principal_changed",
    )
    play, pending = logged_in()
    play.now += 30
    play.client(metadata(3))
    play.call(finishing(CloseReason.CLIENT_CLOSED))
    assert evidence_of(pending) == Evidence(seen_ms=ms(play.now), longest_ms=30_000)
    play, pending = observed()
    log_in(play, sub="bob")  # has an override
    assert not pending.records
