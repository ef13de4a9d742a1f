"""Clients of a broker that is down are held for a while, so that it looks dead to them."""

from collections.abc import Callable

import pytest

from proxy.acl.model import Operation, ResourceType
from proxy.connection.commands import CloseReason
from proxy.connection.connection import HELD_BYTES, HELD_SECONDS, Connection, finishing
from proxy.connection.stages import MAX_DELAY
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.wire.apis import DESCRIBE_ACLS
from sasl.identity import Identity
from tests.support.authorization import Guarded, produce, topic
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    metadata,
    request,
)
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, Recorder, logged_in
from tests.support.relayed_logins import relaying
from tests.support.upstream import identify, lets_in, offers, waiting_play


def proxied(**options: object) -> Playbook:
    """A client that has logged in to the proxy."""
    return logged_in(Playbook(connects=False, **options))  # type: ignore[arg-type]


def held(play: Playbook, *frames: bytes) -> Playbook:
    """The same client, which has sent requests to a broker that is down."""
    play.client(*frames)
    play.call(Connection.broker_is_down)
    assert play.take()[-2:] == ["connect", "await broker"]
    return play


def taken(memory: MemoryBudget) -> int:
    return sum(memory._taken.values())


def held_login(**options: object) -> Playbook:
    """A client of a broker that authenticates clients, and is down."""
    play = relaying(connects=False, **options)  # type: ignore[arg-type]
    play.client(api_versions(1))
    return held(play, handshake(2, SCRAM))


@pytest.mark.parametrize("make", [lambda: held(proxied(), metadata(3)), held_login])
class TestAHeldClient:
    def test_is_closed_after_a_while(self, make: Callable[[], Playbook]) -> None:
        play = make()
        assert play.wakes_at == play.connection.next_deadline() == play.now + HELD_SECONDS
        play.wait_for(play.now + HELD_SECONDS - 0.001)
        assert play.take() == []
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed broker_unreachable", "close"]

    def test_goes_on_when_the_broker_is_back(self, make: Callable[[], Playbook]) -> None:
        play = make()
        play.now += 1.0
        play.call(Connection.broker_is_back)
        assert (play.take(), play.paused) == (["connect"], {"client"})
        play.broker_connects()
        assert len(play.take()) == 1
        assert len(play.to_broker) > 0

    def test_is_held_once_in_all(self, make: Callable[[], Playbook]) -> None:
        """A broker that comes and goes does not make a client wait forever."""
        play = make()
        play.now += 2.0
        play.call(Connection.broker_is_back)
        play.call(Connection.broker_is_down)
        assert play.take() == ["connect", "await broker"]
        assert play.wakes_at == play.now + HELD_SECONDS - 2.0
        play.call(Connection.broker_is_back)
        play.now += HELD_SECONDS
        play.call(Connection.timer)
        assert play.take() == ["connect"]  # the dial has a time limit of its own
        play.call(Connection.broker_is_down)
        assert play.take() == ["closed broker_unreachable", "close"]

    def test_is_read_so_that_its_disconnect_is_noticed(self, make: Callable[[], Playbook]) -> None:
        play = make()
        assert play.paused == set()
        play.call(Connection.client_finished)
        assert play.take() == ["closed client_closed", "close"]

    def test_is_not_read_without_bound(self, make: Callable[[], Playbook]) -> None:
        play = make()
        play.client(bytes(HELD_BYTES))
        assert play.paused == {"client"}
        assert play.take() == []

    def test_is_not_held_while_the_proxy_drains(self, make: Callable[[], Playbook]) -> None:
        play = make()
        play.call(Connection.drain)
        assert play.take() == ["closed drained", "close"]

    def test_can_be_killed(self, make: Callable[[], Playbook]) -> None:
        play = make()
        play.call(finishing(CloseReason.KILLED))
        assert play.take() == ["closed killed", "close"]


class TestAfterALoginToTheProxy:
    @pytest.mark.parametrize("frame", [api_versions(3), request(DESCRIBE_ACLS, 1, 3)])
    def test_what_the_proxy_answers_waits_too(self, frame: bytes) -> None:
        """Java resets its back-off when ApiVersions is answered after a login."""
        play = held(proxied(), frame)
        assert play.received[2:] == []

    def test_a_reauthentication_does_not_wait(self) -> None:
        play = proxied()
        play.now += 2.0
        play.client(handshake(3, OAUTHBEARER), authenticate(4, bearer()))
        assert play.take()[-1] == "authenticated User:alice again (1)"

    def test_without_sasl_the_first_request_is_answered(self) -> None:
        """franz-go takes a close before any answer for a listener that it does not understand."""
        play = Playbook(connects=False)
        play.call(lambda connection, now: connection.admit(Identity("User:ANONYMOUS"), now))
        play.client(api_versions(1))
        assert play.take()[-1] == "to client: #1 versions error 0"
        held(play, metadata(2))

    def test_its_session_may_end_meanwhile(self) -> None:
        play = held(proxied(max_reauth_ms=1_000), fetch(3))
        play.now += 1.0 + MAX_DELAY + 0.001
        play.call(Connection.broker_is_back)
        assert play.take() == ["expired enforce by Fetch", "closed expired", "close"]

    def test_its_rights_are_judged_when_it_goes_on(self) -> None:
        guarded = Guarded(topic(Operation.WRITE, "mine"))
        guarded.play.connects = False
        play = held(guarded.play, produce(3, "mine"))
        guarded.change()
        play.call(Connection.broker_is_back)
        play.broker_connects()
        assert not play.to_broker
        assert guarded.rights.denials == [(Operation.WRITE, ResourceType.TOPIC, "mine")]

    def test_requests_keep_their_order(self) -> None:
        play = held(proxied(), metadata(3))
        play.client(fetch(4)[:9])
        play.client(fetch(4)[9:])
        play.call(Connection.broker_is_back)
        play.broker_connects()
        lines = ["connect", "to broker: Metadata v12 #3", "to broker: Fetch v12 #4"]
        assert (play.take(), play.paused) == (lines, set())


class TestAfterAHoldInALogin:
    def test_the_time_for_it_begins_again(self) -> None:
        """A client is not closed as silent for having waited for the broker."""
        play = held_login()
        play.now += 2.0
        play.call(Connection.broker_is_back)
        play.broker_connects()
        play.take()
        login_ends = play.connection.held_until + play.rules.authentication_timeout
        assert play.connection.next_deadline() == login_ends
        play.wait_for(login_ends)
        assert play.take()[-2:] == ["closed authentication_timeout", "close"]

    def test_nothing_that_is_sent_ahead_is_lost(self) -> None:
        play = held_login()
        play.client(handshake(3, SCRAM))
        play.call(Connection.broker_is_back)
        play.broker_connects()
        assert play.take() == ["connect", "to broker: SaslHandshake v1 #2"]
        assert play.kept_bytes == len(handshake(3, SCRAM))


class TestTheBytesOfHeldClients:
    def test_count_in_the_budget_until_they_go_on(self) -> None:
        frame = fetch(3)
        memory = MemoryBudget(len(frame) + 10)
        play = held(proxied(memory=memory), frame)
        assert taken(memory) == len(frame)
        play.client(b"\0" * 5)
        assert taken(memory) == len(frame) + 5
        play.call(Connection.broker_is_back)
        assert taken(memory) == 0

    def test_are_released_when_it_leaves(self) -> None:
        memory = MemoryBudget()
        play = held(proxied(memory=memory), fetch(3))
        play.call(finishing(CloseReason.CLIENT_CLOSED))
        assert taken(memory) == 0

    def test_that_do_not_fit_close(self) -> None:
        memory = MemoryBudget(100)
        assert memory.take("another client", 60)
        play = held(proxied(memory=memory), metadata(3))
        play.client(bytes(60))
        assert play.take() == ["closed broker_unreachable", "close"]
        assert taken(memory) == 60

    def test_of_one_that_logs_in_count_among_the_unauthenticated(self) -> None:
        play = relaying(connects=False)
        memory = play.rules.unauthenticated_memory
        frame = handshake(2, SCRAM)
        long = frame[:2] + b"\x80\0" + frame[4:] + bytes(0x8000 - len(frame) + 4)
        held(play, long)
        assert taken(memory) == len(long)
        play.call(finishing(CloseReason.BROKER_UNREACHABLE))
        assert taken(memory) == 0


class Reached(Recorder):
    """Counts the connections whose broker takes requests."""

    count = 0

    def reached_broker(self, _: Connection) -> None:
        self.count += 1


def test_a_broker_is_reached_when_the_proxy_has_logged_in() -> None:
    """A client whose requests go nowhere has its events limited."""
    play = waiting_play()
    play.connection.observer = seen = Reached([])
    identify(play)
    play.broker(offers("PLAIN"))
    assert seen.count == 0
    play.broker(lets_in())
    assert seen.count == 1
