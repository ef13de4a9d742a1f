"""Metrics and events of clients that brokers authenticate."""

import pytest

from metrics import registry
from metrics.tally import Tally
from sasl.states import Failed
from tests.support.frames import authenticate, handshake, response
from tests.support.metrics import read
from tests.support.observer import observer_of
from tests.support.playbook import HOUR_MS, Playbook
from tests.support.relayed_logins import Login, answered, relaying, settings, shaken, shaken_hands
from tests.support.sasl import NOW


def unknown_mechanism(rules: str | None = None) -> Playbook:
    """A client of a mechanism whose messages do not show who it is."""
    play = shaken_hands("X-OWN", relays=settings(rules=rules))
    play.client(authenticate(2, b"token"))
    play.broker(answered(2, lifetime_ms=60_000))
    return play


def known() -> Playbook:
    play = relaying()
    Login(play, play.broker).run()
    return play


@pytest.mark.parametrize(
    ("play", "mechanism", "principal", "opaque"),
    [
        (known(), "SCRAM-SHA-256", "User:alice", 0),
        (unknown_mechanism(), "X-OWN", "Opaque:X-OWN@192.0.2.1", 1),
        (unknown_mechanism("RULE:X-OWN@.*/etl/"), "X-OWN", "User:etl", 0),
    ],
)
def test_logins_that_do_not_show_who_it_is_are_counted(
    play: Playbook, mechanism: str, principal: str, opaque: int
) -> None:
    recorded: list[str] = []
    tally = Tally(run="r")
    observer = observer_of(emit=recorded.append, tally=tally)
    observer.opened(play.connection, NOW)
    observer.authenticated(play.connection, play.session)
    labels = "clients", mechanism
    counted = tally.snapshot().values
    assert counted[registry.SUCCESSFUL_AUTHENTICATION.name] == {labels: 1}
    assert counted[registry.OPAQUE_AUTHENTICATION.name] == {labels: opaque}
    (event,) = map(read, recorded)
    assert (event.principal, event.authenticator) == (principal, "broker")


def test_who_the_broker_refused_is_marked_as_a_claim() -> None:
    recorded: list[str] = []
    play = relaying()
    observer = observer_of(emit=recorded.append)
    observer.opened(play.connection, NOW)
    play.client(handshake(1, "PLAIN"))
    play.broker(shaken(1))
    play.client(authenticate(2, b"\0alice\0wrong"))
    play.broker(answered(2, error_code=58))
    failed = play.connection.session.state
    assert isinstance(failed, Failed)
    observer.authentication_failed(play.connection, failed, NOW)
    (event,) = map(read, recorded)
    assert (event.principal, event.claimed_principal) == (None, "User:alice")
    assert event.failure_reason == "refused_by_broker"


def test_a_session_begins_with_the_answer_that_told_its_lifetime() -> None:
    """However long the broker takes to confirm that the login is complete."""
    recorded: list[str] = []
    play = relaying()
    observer = observer_of(emit=recorded.append)
    observer.opened(play.connection, NOW)
    play.client(handshake(1, "GSSAPI"))
    play.broker(shaken(1))
    play.client(authenticate(2, b"\x60token"))
    play.broker(answered(2))
    play.now += 1
    play.broker(response(0, b"\0\0" + bytes(4)))
    session = play.session
    assert session.deadline == NOW + HOUR_MS / 1000
    observer.authenticated(play.connection, session)
    (event,) = map(read, recorded)
    assert event.authenticated_ms == round(NOW * 1000)
