"""How a worker lists and kills its sessions, slice by slice."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metrics.registry import SESSION_LIFETIME_LEFT, THROTTLED_CONNECTIONS
from metrics.snapshot import Snapshot
from proxy import config
from proxy.connection.commands import CloseReason
from proxy.errors import ProxyError
from proxy.ops.sessions import KILL_SLICE, SLICE, SURVEY_SLICE, Sessions, facts_of
from proxy.ops.status.session_facts import EVERY_SESSION, SessionFacts
from proxy.ops.status.snapshot import WorkerFacts
from sasl.identity import Identity
from sasl.states import Authenticated, Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    metadata,
    response,
)
from tests.support.playbook import OAUTHBEARER, Playbook
from tests.support.sasl import NOW
from tests.support.settings import configured
from tests.support.status import recent

SETTINGS = configured(Path()).listeners[0]


class Client(Playbook):
    """A client of the playbook, as a worker has it."""


@dataclass
class FakeListener:
    """A listener's state, as far as sessions go."""

    clients: set[Client]
    settings: config.Listener = SETTINGS
    max_connections: int = 100
    terms_changed_at: float = 0.0
    reasons: list[str] = field(default_factory=list)

    def sessions(self) -> Sessions:
        return Sessions(3, lambda: [self], lambda: self.reasons, list, recent)


def crowd(count: int) -> FakeListener:
    plays = {Client() for _ in range(count)}
    for number, play in enumerate(plays):
        play.connection.connection_id = f"c-{number}"
    return FakeListener(plays)


def slices(listener: FakeListener, kind: str, **arguments: Any) -> list[list[SessionFacts]]:
    return list(listener.sessions().answer(kind, arguments))  # type: ignore[arg-type]


def nothing(_: Playbook) -> None:
    """Has just connected."""


def began(play: Playbook) -> None:
    play.client(handshake(1, OAUTHBEARER))


def logged_in(play: Playbook) -> None:
    play.client(api_versions(0, 3), handshake(1, OAUTHBEARER), authenticate(2, bearer()))


def working(play: Playbook) -> None:
    logged_in(play)
    play.client(fetch(3))
    play.broker(response(3, b"x" * 100))
    play.now += 7


def renewing(play: Playbook) -> None:
    logged_in(play)
    play.now += 60
    play.client(handshake(4, OAUTHBEARER))


def overdue(play: Playbook) -> None:
    logged_in(play)
    play.now += 400


def refused(play: Playbook) -> None:
    play.client(handshake(1, OAUTHBEARER), authenticate(2, b"n,,\1nonsense\1\1"))


def unaware(play: Playbook) -> None:
    play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer(), version=0))


def without_sasl(play: Playbook) -> None:
    play.call(lambda connection, now: connection.admit(Identity("User:CN=alice"), now))


@pytest.mark.parametrize(
    ("doing", "reported"),
    [
        (nothing, {"state": "connected", "principal": None, "lifetime_announced": None}),
        (began, {"state": "authenticating", "mechanism": "OAUTHBEARER", "principal": None}),
        (
            logged_in,
            {
                "state": "authenticated",
                "principal": "User:alice",
                "enforcement": "enforce",
                "client_software_name": "java",
                "client_software_version": "4.1.0",
                "client_id": "app",
                "lifetime_announced": True,
                "session_lifetime_ms": 300_000,
                "lifetime_left_s": 300.0,
                "requests": 0,
                "idle_s": None,
                "throttle_left_s": None,
            },
        ),
        (working, {"requests": 1, "idle_s": 7.0, "lifetime_left_s": 293.0, "connected_s": 7.0}),
        (
            renewing,
            {"state": "re-authenticating", "principal": "User:alice", "lifetime_left_s": 240.0},
        ),
        (overdue, {"state": "authenticated", "lifetime_left_s": -100.0}),
        (unaware, {"lifetime_announced": False, "reauthentications": 0}),
        (
            without_sasl,
            {
                "state": "authenticated",
                "principal": "User:CN=alice",
                "mechanism": None,
                "enforcement": "observe",
                "lifetime_announced": None,
                "session_lifetime_ms": 0,
                "lifetime_left_s": None,
            },
        ),
    ],
)
def test_facts_of_a_connection(
    doing: Callable[[Playbook], None], reported: dict[str, object]
) -> None:
    play = Playbook()
    doing(play)
    facts = facts_of(play.connection, 3, play.now)._asdict()
    assert {key: facts[key] for key in reported} == reported
    assert facts["worker"] == 3


def test_a_session_in_observe_without_a_tokens_expiry_has_no_end() -> None:
    play = Playbook(enforcement=Enforcement.OBSERVE, enforces_token_expiry=False)
    logged_in(play)
    facts = facts_of(play.connection, 0, NOW)
    assert (facts.session_lifetime_ms, facts.lifetime_left_s) == (0, None)
    assert facts.enforcement == "observe"


def test_a_refused_connection_that_is_closed_is_not_told() -> None:
    listener = crowd(1)
    (play,) = listener.clients
    refused(play)
    play.call(lambda connection, now: connection.finish(CloseReason.CLIENT_CLOSED, now))
    assert slices(listener, "sessions") == [[]]


def test_names_are_cut() -> None:
    """A worker does not send half a megabyte per session."""
    play = Playbook()
    play.connection.authentication.client_id = "x" * 30_000
    client_id = facts_of(play.connection, 0, NOW).client_id
    assert client_id is not None
    assert len(client_id) == 256


def test_no_turn_of_the_loop_tells_of_many() -> None:
    reported = slices(crowd(2 * SLICE + 7), "sessions")
    assert [len(some) for some in reported] == [SLICE, SLICE, 7]


def test_clients_may_come_and_go_between_slices() -> None:
    listener = crowd(SLICE + 5)
    with_throttle_time = listener.sessions().facts(EVERY_SESSION)
    assert len(next(with_throttle_time)) == SLICE
    gone = next(iter(listener.clients))
    gone.call(lambda connection, now: connection.finish(CloseReason.CLIENT_CLOSED, now))
    listener.clients.clear()
    listener.clients.add(Client())
    assert len(next(with_throttle_time)) in (4, 5)
    assert next(with_throttle_time, None) is None


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("kill", "name the sessions to kill"),
        ("drain", "name the sessions to drain"),
        ("dance", "unknown request: dance"),
    ],
)
def test_ending_everybody_needs_to_be_meant(kind: str, problem: str) -> None:
    with pytest.raises(ProxyError, match=problem):
        slices(crowd(1), kind)


def test_those_that_are_meant_are_killed_and_told() -> None:
    """Also one that renews its session."""
    listener = crowd(2 * KILL_SLICE + 1)
    alices = list(listener.clients)[:3]
    for play in alices:
        logged_in(play)
    renewed = alices[0]
    renewed.now += 60
    renewed.client(handshake(4, OAUTHBEARER))
    for play in alices:
        play.take()
    killed = slices(listener, "kill", principal="User:alice")
    assert len(killed) == 3, "in slices"
    ids = {one.connection_id for some in killed for one in some}
    assert ids == {play.connection.connection_id for play in alices}
    for play in listener.clients:
        assert play.connection.closed is (play in alices)
    assert [play.take() for play in alices] == [["closed killed", "close"]] * 3
    assert slices(listener, "kill", principal="User:alice") == [[], [], []]


def test_a_drained_session_ends_when_its_request_is_answered() -> None:
    listener = crowd(2)
    busy, idle = listener.clients
    for play in (busy, idle):
        logged_in(play)
    busy.client(metadata(9))
    assert [len(some) for some in slices(listener, "drain", principal="User:alice")] == [2]
    assert (busy.connection.closed, idle.connection.closed) == (False, True)
    busy.broker(response(9, b"\0"))
    assert busy.connection.closed
    assert busy.take()[-2:] == ["closed drained", "close"]


def test_the_rest_of_the_facts() -> None:
    listener = crowd(2)
    listener.reasons.append("draining")
    status = WorkerFacts.from_json(listener.sessions().status())
    assert status.reasons == ["draining"]
    (facts,) = status.listeners
    assert (facts["name"], facts["enforcement"], facts["connections"]) == ("clients", "enforce", 2)


def test_a_scrape_counts_slice_by_slice() -> None:
    """Connections that have closed, or have no lifetime, are not counted."""
    listener = crowd(SURVEY_SLICE + 3)
    for play in list(listener.clients)[:5]:
        logged_in(play)
    gone = next(
        play
        for play in listener.clients
        if isinstance(play.connection.session.state, Authenticated)
    )
    gone.call(lambda connection, now: connection.finish(CloseReason.CLIENT_CLOSED, now))
    snapshot = Snapshot()
    assert len(list(listener.sessions().survey(snapshot))) == 2
    name = SETTINGS.name
    assert snapshot.values[THROTTLED_CONNECTIONS.name] == {(name,): 0}
    (((labelled, _), lifetimes),) = snapshot.histograms[SESSION_LIFETIME_LEFT.name].items()
    assert (labelled, sum(lifetimes.counts)) == (name, 4)


def test_a_scrape_of_nobody() -> None:
    """The gauge is there, at 0: what is missing cannot be alerted on."""
    snapshot = Snapshot()
    assert list(FakeListener(set()).sessions().survey(snapshot)) == []
    assert snapshot.values == {THROTTLED_CONNECTIONS.name: {(SETTINGS.name,): 0}}
    assert snapshot.histograms == {}


def test_a_dry_run_lists_the_sessions_that_an_entry_would_end() -> None:
    listener = crowd(3)
    for number, play in enumerate(listener.clients):
        if number:
            logged_in(play)

    def listed(**entry: Any) -> int:
        line = json.dumps({"id": "new"} | entry)
        return sum(map(len, slices(listener, "sessions", block=line)))

    assert listed(principal="User:alice") == listed(subject="alice", issued_before=2**33) == 2
    assert listed(principal="User:bob") == listed(subject="alice", issued_before=1) == 0
    with pytest.raises(ValueError, match="needs at least one criterion"):
        listed()
