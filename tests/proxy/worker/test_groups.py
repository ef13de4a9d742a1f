"""Groups of tokens and ACLs of a store: what a re-authentication with other groups changes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kio.schema.produce.v9.response import ProduceResponse
from kio.static.primitive import i32

from proxy.acl.authorizer import DenialNotice
from proxy.acl.model import Acl, AuthorizerMode
from proxy.config import Authorizer, Quotas
from proxy.connection.connection import Connection
from proxy.connection.interfaces import ConnectionRights, NoAuthorizer
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.store import Store, open_store
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.error_codes import ErrorCode
from proxy.worker.acl_service import AclService
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from sasl.states import Authenticated
from tests.support.acl_index import ALICE, DENY, READ, WRITE, acl
from tests.support.authorization import produce
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, response_type
from tests.support.kio_messages.entities import NOT_THROTTLED, make
from tests.support.messages import fetch_body
from tests.support.playbook import Playbook, everything, log_in, logged_in
from tests.support.quotas import answer

ANALYSTS, INTERNS, ADMINS = "Group:analysts", "Group:interns", "Group:kafka-admins"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as opened:
        yield opened


class Unrecorded:
    """Records no denial."""

    def denied(self, connection: Connection, notice: DenialNotice, now: float) -> None:
        pass


def joined(store: Store, *groups: str, acls: tuple[Acl, ...] = ()) -> Playbook:
    """A client in these groups, judged by these ACLs."""
    store.create_acls(acls)
    settings = Authorizer.model_validate({"mode": AuthorizerMode.ENFORCE, "super.users": [ADMINS]})
    rights = AclService(settings, store, observer=lambda _: Unrecorded())
    offer = everything(rewritten=frozenset())
    return logged_in(Playbook(rights=rights, offer=offer), groups=groups)


def renew(play: Playbook, *groups: str) -> None:
    """Re-authenticate with a newer token."""
    play.now += 2
    log_in(play, first_id=9_000, groups=groups)
    state = play.connection.session.state
    assert isinstance(state, Authenticated)
    assert state.identity.groups == tuple(f"Group:{name}" for name in groups)
    play.take()


SESSION = 77


def fetch(number: int, *topics: str) -> bytes:
    """The fetch of this number in a session, which the first one begins."""
    body = fetch_body(
        12,
        [(name, [0]) for name in topics],
        session_id=i32(SESSION if number else 0),
        session_epoch=i32(number),
    )
    return request(FETCH, 12, number, body)


def fetched(number: int) -> bytes:
    body = make(
        response_type(FETCH, 12),
        throttle_time=NOT_THROTTLED,
        error_code=ErrorCode.NONE,
        session_id=i32(SESSION),
        responses=(),
    )
    return response(number, b"\0" + encode(body))


def fetch_error(play: Playbook) -> ErrorCode:
    error: ErrorCode = decode(response_type(FETCH, 12), play.received[-1], 5).error_code
    return error


def produce_error(play: Playbook) -> ErrorCode:
    (topic,) = decode(ProduceResponse, play.received[-1], 5).responses
    error: ErrorCode = topic.partition_responses[0].error_code
    return error


MAY_WRITE = acl("mine", WRITE, principal=ANALYSTS)
MAY_READ = acl("mine", READ, principal=ANALYSTS)


@pytest.mark.parametrize(
    ("acls", "before", "after"),
    [
        ((MAY_WRITE,), ["analysts"], []),
        ((MAY_WRITE,), ["analysts"], ["interns"]),
        (
            (MAY_WRITE, acl("mine", WRITE, DENY, principal=INTERNS)),
            ["analysts"],
            ["analysts", "interns"],
        ),
        ((), ["kafka-admins"], []),
    ],
)
def test_the_next_produce_is_judged_by_the_new_groups(
    store: Store, acls: tuple[Acl, ...], before: list[str], after: list[str]
) -> None:
    """Those before it have reached the broker, in their order."""
    play = joined(store, *before, acls=acls)
    frames = [produce(number, "mine", version=9) for number in range(1, 5)]
    play.client(*frames)
    assert bytes(play.to_broker) == b"".join(frames)
    renew(play, *after)
    play.client(produce(5, "mine", version=9))
    assert bytes(play.to_broker) == b"".join(frames)
    renew(play, *before)
    play.client(produce(6, "mine", version=9))
    assert bytes(play.to_broker) == b"".join([*frames, produce(6, "mine", version=9)])


def test_a_client_that_joins_a_group_may_do_more_at_once(store: Store) -> None:
    play = joined(store, acls=(MAY_WRITE,))
    play.client(produce(1, "mine", version=9))
    assert not play.to_broker
    assert produce_error(play) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    renew(play, "analysts")
    play.client(produce(2, "mine", version=9))
    assert bytes(play.to_broker) == produce(2, "mine", version=9)


def test_a_fetch_session_ends_with_the_group_that_could_read(store: Store) -> None:
    play = joined(store, "analysts", acls=(MAY_READ,))
    for number, topics in ((0, ["mine"]), (1, [])):
        play.client(fetch(number, *topics))
        play.broker(fetched(number))
    renew(play)
    sent = len(play.to_broker)
    play.client(fetch(2))
    assert len(play.to_broker) == sent
    assert fetch_error(play) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_session_goes_on_with_the_same_groups(store: Store) -> None:
    play = joined(store, "analysts", acls=(MAY_READ,))
    play.client(fetch(0, "mine"))
    play.broker(fetched(0))
    renew(play, "analysts")
    sent = len(play.to_broker)
    play.client(fetch(1))
    assert bytes(play.to_broker[sent:]) == fetch(1)


@pytest.mark.parametrize("authorizer", [True, False])
def test_groups_may_administer(store: Store, authorizer: bool) -> None:
    """Also where there is no authorizer."""
    settings = Authorizer.model_validate({"mode": AuthorizerMode.AUDIT, "super.users": [ADMINS]})
    rights: ConnectionRights = NoAuthorizer([ADMINS])
    if authorizer:
        rights = AclService(settings, store, observer=lambda _: Unrecorded())
    assert rights.is_super_user(Identity(ALICE, [ANALYSTS, ADMINS]))
    assert not rights.is_super_user(Identity(ALICE, [ANALYSTS]))
    assert not rights.is_super_user(Identity("User:kafka-admins"))


def test_groups_that_a_file_takes_away_count_at_once(store: Store) -> None:
    """Without a re-authentication: clients without tokens may not re-authenticate for long."""
    play = joined(store, "analysts", acls=(MAY_WRITE, MAY_READ))
    play.client(produce(1, "mine", version=9), fetch(0, "mine"))
    play.broker(response(1, b"\0"))
    play.broker(fetched(0))
    sent = len(play.to_broker)
    play.call(lambda connection, now: connection.regroup(now, Identity(ALICE, [INTERNS])))
    play.client(produce(2, "mine", version=9))
    assert produce_error(play) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    play.client(fetch(1))
    assert fetch_error(play) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(play.to_broker) == sent


# Groups of ACLs and quotas

BYTES_PER_SECOND = 5.0
"""So little that one Produce is too much."""


def test_groups_are_handled_alike_for_acls_and_quotas(tmp_path: Path) -> None:
    """As KIP-257 has it, "Proposed Changes"."""
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as store:
        # An administrator lets a group write a topic, and limits how much, for all of it together
        store.create_acls([acl("mine", WRITE, principal="Group:analysts")])
        limits = {QuotaKey.PRODUCER_BYTE_RATE: BYTES_PER_SECOND}
        store.alter_quotas({QuotaEntity(user="Group:analysts"): limits})
        settings = Authorizer.model_validate({"mode": AuthorizerMode.ENFORCE})
        rights = AclService(settings, store, observer=lambda _: Unrecorded())
        quotas = QuotaService(
            Quotas.model_validate(
                {
                    "mode": "enforce",
                    "client.quota.callback.class": "proxy.quota.group_quotas:GroupQuotas",
                }
            ),
            store,
            UsageTable(1, WindowConfig(), rows=64),
            0,
            clock=lambda: 0,
        )

        def client(**claims: Any) -> Playbook:
            offer = everything(rewritten=frozenset(), metered=True)
            play = Playbook(rights=rights, quotas=quotas, offer=offer)
            play.now = float(int(play.now))
            return logged_in(play, **claims)

        def is_written(play: Playbook, number: int) -> bool:
            sent = len(play.to_broker)
            play.client(produce(number, "mine", version=9))
            return len(play.to_broker) > sent

        # Both members may write; what one of them writes uses up the quota of both
        alice = client(sub="alice", groups=("analysts",))
        bob = client(sub="bob", groups=("analysts", "interns"))
        assert is_written(alice, 3)
        assert alice.paused == {"client"}, "over the quota"
        assert not is_written(bob, 3)
        assert bob.paused == {"client"}, "a new connection waits for what the group owes"
        bob.wait_for(bob.wakes_at)
        assert bob.to_broker

        # A client outside these groups may not write, and has no limit
        carol = client(sub="carol", groups=("interns",))
        assert not is_written(carol, 3)
        assert produce_error(carol) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert carol.paused == set()

        # A newer token takes the right and the quota away at once, and gives them back
        for play in (alice, bob):
            play.broker(answer(PRODUCE, 9, 3))
            play.wait_for(play.wakes_at)
        renew(alice)
        assert not is_written(alice, 5)
        assert produce_error(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert alice.paused == set(), "the quota is the group's"
        renew(alice, "analysts")
        sent = len(alice.to_broker)
        assert not is_written(alice, 7)
        assert alice.paused == {"client"}, "the group still owes"
        alice.wait_for(alice.wakes_at)
        assert len(alice.to_broker) > sent
        quotas.close()
