"""Remembered permissions of connections: shared where possible, and only after a decision."""

import tracemalloc

from proxy.acl.authorizer import Authorizer
from proxy.acl.index import AclIndex
from proxy.acl.model import AuthorizerMode
from proxy.acl.topic_ids import KnownTopics
from proxy.connection.authorization import MAX_NAME_BYTES, MAX_TOPICS, RequestAuthorization
from proxy.connection.interfaces import AuthorizedConnection
from sasl.identity import Identity
from tests.support.acl_index import ADDRESS, ALICE, PREFIXED, WRITE, acl
from tests.support.authorization import produce
from tests.support.frames import response
from tests.support.playbook import Playbook, everything, logged_in


class Crowd:
    """Connections of one principal at one address, judged by ACLs that can be changed."""

    records_uses = False

    def __init__(self) -> None:
        rule = acl("mine", operation=WRITE, pattern_type=PREFIXED)
        index = AclIndex([rule], version=1)
        self.authorizer = Authorizer(index, mode=AuthorizerMode.ENFORCE, report=lambda _: None)
        self.plays: list[Playbook] = []
        self.topics: KnownTopics = {}

    def admit(self, connection: AuthorizedConnection, _identity: Identity) -> RequestAuthorization:
        return RequestAuthorization(
            self.authorizer.authority((ALICE,), ADDRESS),
            self.topics,
            forget=connection.forget,
        )

    def is_super_user(self, _identity: Identity) -> bool:
        return False

    def passes_unjudged(
        self, _connection: AuthorizedConnection, _identity: Identity, _key: int
    ) -> None:
        """Nobody asks."""

    def join(self) -> Playbook:
        play = logged_in(Playbook(rights=self, offer=everything(rewritten=frozenset())))
        self.plays.append(play)
        return play

    def take_all_away(self) -> None:
        self.authorizer.index = AclIndex([], version=2)
        for play in self.plays:
            admission = play.connection.authorization
            assert admission is not None
            admission.rights_changed(self.authorizer.authority((ALICE,), ADDRESS))
            play.connection.forget()


def test_what_one_connection_found_out_the_others_know() -> None:
    """Or thousands of connections that use hundreds of topics remember each of them."""
    crowd = Crowd()
    first, second = crowd.join(), crowd.join()
    for number in range(100):
        first.client(produce(number, f"mine-{number}"))
    asked = crowd.authorizer.counts.cache_hits
    for number in range(100):
        second.client(produce(number, f"mine-{number}"))
    assert bytes(second.to_broker) == bytes(first.to_broker)
    assert crowd.authorizer.counts.cache_hits == asked


def test_what_was_found_out_is_forgotten_by_all_when_rights_change() -> None:
    crowd = Crowd()
    plays = [crowd.join(), crowd.join()]
    for play in plays:
        play.client(produce(1, "mine"))
    before = [bytes(play.to_broker) for play in plays]
    crowd.take_all_away()
    plays.append(crowd.join())
    for play in plays:
        play.client(produce(2, "mine"))
    assert [bytes(play.to_broker) for play in plays] == [*before, b""]


def test_how_much_is_remembered_is_bounded() -> None:
    crowd = Crowd()
    play = crowd.join()
    play.client(produce(1, "mine" + "x" * MAX_NAME_BYTES))
    remembered = crowd.authorizer.authority((ALICE,), ADDRESS).allowed_topics.written
    assert not remembered
    for number in range(MAX_TOPICS + 1):
        play.client(produce(number, f"mine-{number}"))
        play.broker(response(number, b"\0"))
    assert len(remembered) == 1


def test_a_connection_that_has_asked_nothing_costs_little() -> None:
    """Most of thousands are idle, or use what others of their principal use."""
    crowd = Crowd()
    connection = crowd.join().connection
    tracemalloc.start()
    try:
        kept = [crowd.admit(connection, Identity(ALICE)) for _ in range(1_000)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(kept) < 450, "bytes"
