"""The readiness report on clients that brokers authenticate, from their events."""

from typing import Any

import pytest

from metrics.events import EventKind
from metrics.history import Timeline
from metrics.readiness.job import run
from metrics.readiness.settings import EngineName, Settings
from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.wire.apis import PRODUCE
from sasl.states import Enforcement
from tests.support.frames import authenticate, fetch, handshake, request, response
from tests.support.metrics import EPOCH, EPOCH_MS, read
from tests.support.observer import observer_of
from tests.support.playbook import HOUR_MS, Playbook, everything
from tests.support.relayed_logins import Login, answered, relaying, shaken
from tests.support.sasl import NOW

HOUR = HOUR_MS / 1_000
ACKS_ALL = b"\xff\xff"

Facts = dict[str, Any]


def connected(connection_id: str, lines: list[str]) -> Playbook:
    """A connection in `probe`, before a broker that has every version; its events are `lines`."""
    offer = everything(rewritten=frozenset(), enforces_acls=False)
    play = relaying(enforcement=Enforcement.PROBE, offer=offer)
    connection = play.connection
    connection.connection_id = connection_id
    connection.observer = observer_of(
        enforcement=lambda: Enforcement.PROBE,
        timeline=Timeline(wall=EPOCH, now=NOW),
        emit=lines.append,
    )
    connection.observer.opened(connection, play.now)
    return play


def renewed(play: Playbook) -> None:
    """A client that re-authenticates in time, over a side connection."""
    Login(play, play.broker).run()
    play.now += 0.9 * HOUR
    Login(play, play.side, first_id=10).run()
    play.client(fetch(20))


def opaque(play: Playbook) -> None:
    """A client whose messages do not show who it is; it uses its connection for too long."""
    play.client(handshake(1, "X-OWN"))
    play.broker(shaken(1))
    play.client(authenticate(2, b"token"))
    play.broker(answered(2, lifetime_ms=60_000))
    play.now += 62  # more than a second late, which the proxy might be itself
    play.client(fetch(3))


def old(play: Playbook) -> None:
    """A client to which no lifetime can be announced, and that speaks what Kafka 4.0 dropped."""
    play.client(handshake(1, "PLAIN"))
    play.broker(shaken(1))
    play.client(authenticate(2, b"\0legacy\0secret", 0))
    play.broker(answered(2, version=0))
    play.now += HOUR + 1
    play.client(request(PRODUCE, 2, 3, ACKS_ALL + b"rest"))
    play.broker(response(3))


def refused(play: Playbook) -> None:
    play.client(handshake(1, "PLAIN"))
    play.broker(shaken(1))
    play.client(authenticate(2, b"\0alice\0wrong"))
    play.broker(answered(2, error_code=58))


CONNECTIONS = {
    "c-alice": renewed,
    "c-own": opaque,
    "c-own-2": opaque,
    "c-old": old,
    "c-no": refused,
}


@pytest.fixture(scope="module")
def lines() -> list[str]:
    recorded: list[str] = []
    for name, behave in CONNECTIONS.items():
        play = connected(name, recorded)
        behave(play)
        play.call(finishing(CloseReason.CLIENT_CLOSED))
    return recorded


@pytest.fixture(scope="module")
def facts(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Facts:
    events, out = tmp_path_factory.mktemp("events"), tmp_path_factory.mktemp("report") / "out"
    (events / "events-p-0-1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    later = EPOCH_MS + 2 * HOUR_MS
    settings = Settings(events=str(events), out=str(out), as_of_ms=later, engine=EngineName.DUCKDB)
    found, _ = run(settings, lambda _: None)
    return found | {"page": (out / "index.html").read_text()}


def client(facts: Facts, principal: str) -> Facts:
    (found,) = (each for each in facts["clients"] if each["principal"] == principal)
    return dict(found)


def test_the_broker_was_the_authenticator_of_every_session(lines: list[str]) -> None:
    events = [read(line) for line in lines]
    assert {each.connection_id for each in events} == set(CONNECTIONS)
    assert {each.authenticator for each in events if each.authenticated_ms is not None} == {
        "broker"
    }
    assert {each.authenticator for each in events if each.kind is EventKind.FAILED} == {None}


def test_no_line_is_set_aside(facts: Facts, lines: list[str]) -> None:
    counts = dict(facts["lines"])
    assert counts.pop("lines") == len(lines)
    assert set(counts.values()) == {0}


def test_a_renewal_over_a_side_connection_shows_that_a_client_is_ready(facts: Facts) -> None:
    alice = client(facts, "User:alice")
    assert (alice["verdict"], alice["mechanism"]) == ("ready", "SCRAM-SHA-256")
    assert facts["enforceable_principals"] == ["User:alice"]


def test_opaque_clients_are_counted_by_mechanism_and_address(facts: Facts) -> None:
    """No client is mistaken for another user, and the page has the name."""
    found = client(facts, "Opaque:X-OWN@192.0.2.1")
    assert (found["verdict"], found["connections"]) == ("failing", 2)
    assert "Opaque:X-OWN@192.0.2.1" in facts["page"]


def test_who_breaks_at_kafka_4_stands_beside_who_breaks_at_re_authentication(facts: Facts) -> None:
    assert client(facts, "User:legacy")["verdict"] == "not_capable"
    (breaks,) = facts["breaks_at_kafka_4"]["clients"]
    assert (breaks["principal"], breaks["versions"]) == ("User:legacy", ["Produce v2"])
    assert facts["breaks_at_kafka_4"]["client_count"] == 1
    assert '<section id="kafka-4">' in facts["page"]


def test_what_the_broker_refused_is_a_failure_of_nobody(facts: Facts) -> None:
    (failure,) = facts["failures"]
    assert (failure["mechanism"], failure["failure_reason"]) == ("PLAIN", "refused_by_broker")
    assert {each["principal"] for each in facts["principals"]} == {
        "User:alice",
        "User:legacy",
        "Opaque:X-OWN@192.0.2.1",
    }
