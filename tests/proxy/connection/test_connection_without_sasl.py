"""Connections whose client is known without SASL, as transcripts: nothing ends, nothing is renewed.

That Kafka answers the same is `tests/kafka/test_without_sasl.py`'s to say.
"""

import pytest

from proxy.connection.connection import Connection
from proxy.connection.interfaces import AuthorizedConnection, NoAuthorizer
from sasl.identity import Identity
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    handshake,
    metadata,
    produce,
    request,
    response,
)
from tests.support.playbook import OAUTHBEARER, Playbook

ALICE = "User:CN=alice,O=Acme"
YEAR = 365 * 24 * 3600.0


def admitted(play: Playbook | None = None) -> Playbook:
    play = play or Playbook()
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    assert play.take() == [f"authenticated {ALICE}"]
    return play


def test_the_first_request_that_is_forwarded_opens_the_way_to_the_broker() -> None:
    """A client that sends nothing, or only what the proxy answers, costs the broker nothing."""
    play = admitted()
    play.client(api_versions(1, 3), api_versions(2))
    assert play.take() == ["to client: #1 versions error 0", "to client: #2 versions error 0"]
    play.client(metadata(3), produce(4))
    assert play.take() == ["connect", "to broker: Metadata v12 #3", "to broker: Produce v9 #4"]
    play.broker(response(3, b"m"), response(4, b"p"))
    assert play.take() == ["to client: #3 m<rewritten>", "to client: #4 p"]


def test_there_is_nothing_to_log_in_to() -> None:
    """KIP-368: without a session that ends, a SaslHandshake begins nothing."""
    play = admitted()
    play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer()), handshake(3, "GSSAPI", 0))
    assert play.take() == [
        "to client: #1 handshake error 34",
        "to client: #2 token error 34 lifetime 0",
        "to client: #3 handshake error 34",
    ]
    assert play.session.principal == ALICE
    play.client(metadata(4))
    assert play.take() == ["connect", "to broker: Metadata v12 #4"]


@pytest.mark.parametrize(
    "cut_short",
    [
        request(SASL_HANDSHAKE, 1, 1, b"\0\x20SCRAM"),
        request(SASL_AUTHENTICATE, 1, 1, b"\0\0\0\x20n,,"),
    ],
)
def test_what_does_not_parse_is_closed_not_refused(cut_short: bytes) -> None:
    """As in Kafka; it is not counted as a failed authentication: this listener has no SASL."""
    play = admitted()
    play.client(cut_short)
    assert play.take() == ["closed malformed_frame", "close"]


def test_a_connection_that_is_used_never_ends() -> None:
    play = admitted()
    for _ in range(3):
        play.now += YEAR
        play.client(metadata(1))
        play.broker(response(1))
        play.call(Connection.timer)
    assert [line for line in play.take() if "clos" in line or "expired" in line] == []
    assert play.session.deadline is None
    assert play.session.session_lifetime_ms == 0
    assert not play.connection.session.may_begin_reauthentication(play.now)


def test_silence_ends_it_as_any_other() -> None:
    """And not what bounds the time to authenticate."""
    play = admitted()
    deadline = play.connection.next_deadline()
    assert deadline == play.now + play.rules.max_idle
    play.wait_for(deadline)
    assert play.take() == ["closed idle", "close"]


def test_until_it_is_admitted_nothing_passes() -> None:
    """A TLS handshake under way: what an attacker sends meanwhile is not answered by the broker."""
    play = Playbook()
    play.client(metadata(1))
    assert play.take() == ["closed illegal_state", "close"]


@pytest.mark.parametrize("super_users", [(), (ALICE,)])
def test_rights_are_asked_for_by_the_principal(super_users: tuple[str, ...]) -> None:
    asked: list[str] = []

    class Rights(NoAuthorizer):
        def admit(self, _connection: AuthorizedConnection, identity: Identity) -> None:
            asked.append(identity.principal)

    play = admitted(Playbook(rights=Rights(super_users)))
    assert asked == [ALICE]
    play.call(Connection.rights_changed)
    assert asked == [ALICE, ALICE]
    assert play.connection.principal == ALICE


def test_a_session_ends_with_its_certificate_after_the_requests_under_way() -> None:
    play = Playbook()
    ends_at = play.now + 100
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now, ends_at))
    assert play.wakes_at == ends_at
    play.client(metadata(1))
    assert play.connection.next_deadline() == ends_at
    play.take()
    play.wait_for(ends_at)
    play.client(metadata(2))
    play.broker(response(1, b"m"))
    assert play.take() == ["to client: #1 m<rewritten>", "closed certificate_expired", "close"]


def test_a_connection_ends_at_its_maximum_age_or_up_to_a_tenth_before() -> None:
    play = Playbook()
    object.__setattr__(play.rules, "max_age", 100.0)
    play.open(play.rules)
    admitted(play)
    began, deadline = play.now, play.connection.next_deadline()
    assert deadline is not None
    assert began + 90 <= deadline <= began + 100
    play.wait_for(deadline)
    assert play.take() == ["closed max_age", "close"]
