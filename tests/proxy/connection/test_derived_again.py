"""What follows from an identity follows again at a re-authentication: an attack for each value.

The client keeps its principal, and comes back with a token that has other groups.
"""

from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.connection.authorization import RequestAuthorization
from proxy.connection.connection import Connection
from proxy.connection.enforcement import Override
from proxy.connection.interfaces import AuthorizedConnection
from proxy.wire.error_codes import ErrorCode
from sasl.identity import Identity
from sasl.jwks import KeyCache
from sasl.messages import client_initial_response
from sasl.states import Authenticated, Enforcement
from tests.support.authorization import (
    LITTLE,
    NOTHING,
    READ_ID,
    Judge,
    Right,
    Rights,
    describe,
    described,
    fetch,
    fetched,
    group,
    produce,
    topic,
)
from tests.support.frames import authenticate, handshake
from tests.support.playbook import OAUTHBEARER, Playbook, everything, logged_in
from tests.support.sasl import cache_of, claims, document, ed_key, rsa_key, token

OF_GROUP: dict[str, frozenset[Right]] = {
    "Group:writers": topic(Operation.WRITE, "orders"),
    "Group:readers": topic(Operation.READ, "read"),
    "Group:admins": group(Operation.DESCRIBE, "*"),
}


class ByGroup(Judge):
    """Rights as the groups of an identity have them; members of `Group:super` may do everything."""

    def admit(  # type: ignore[override]  # like the real one
        self, connection: AuthorizedConnection, identity: Identity
    ) -> RequestAuthorization | None:
        if self.is_super_user(identity):
            return None
        rights = Rights(NOTHING.union(*(OF_GROUP.get(one, NOTHING) for one in identity.groups)))
        before = connection.authorization
        if before is None:
            return RequestAuthorization(rights, self.topics, forget=connection.forget)
        before.rights_changed(rights)
        return before

    def is_super_user(self, identity: Identity) -> bool:
        return "Group:super" in identity.groups


def member(*groups: str, keys: KeyCache | None = None, **options: Any) -> Playbook:
    """A logged-in client with these groups."""
    offer, rights = everything(rewritten=frozenset()), ByGroup(known={READ_ID.bytes: "read"})
    play = Playbook(rights=rights, offer=offer, keys=keys, **options)
    play.client(login(*groups, first_id=1))
    play.take()
    return play


def with_groups(*groups: str) -> bytes:
    return client_initial_response(token(claims(groups=list(groups)), ed_key()))


def login(*groups: str, first_id: int = 10) -> bytes:
    """Both requests of an authentication with these groups."""
    return handshake(first_id, OAUTHBEARER) + authenticate(first_id + 1, with_groups(*groups))


def test_a_remembered_request_is_judged_again_even_in_the_same_read() -> None:
    play = member("writers")
    play.client(produce(3, "orders"), produce(4, "orders"))
    assert play.owed == [3, 4]
    play.client(login(), produce(3, "orders"))
    assert play.owed == [3, 4], "it was answered, not forwarded"
    play.client(login("writers", first_id=20))
    play.now += 2
    play.client(login("writers", first_id=30), produce(5, "orders"))
    assert play.owed == [3, 4, 5]


def test_a_super_user_by_group_is_one_only_as_long_as_the_group_is_in_the_token() -> None:
    play = member("super")
    play.client(produce(3, "orders"), login(), produce(4, "orders"))
    assert play.owed == [3]


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_open_fetch_session_ends(in_flight: bool) -> None:
    """Also if its first response is under way during the re-authentication."""
    play = member("readers")
    play.client(fetch(3, READ_ID))
    if in_flight:
        play.client(login())
        play.broker(fetched(3, session=77))
    else:
        play.broker(fetched(3, session=77))
        play.client(login())
    play.client(fetch(4, session=77, epoch=1))
    assert play.owed == []
    assert play.received[-1][5 + 4 : 5 + 6] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND.to_bytes(2)


def test_requests_behind_a_login_that_waits_for_keys_are_judged_by_its_groups() -> None:
    keys = cache_of(ed_key())
    play = member("writers", keys=keys)
    unknown = with_groups()
    keys.loaded(document(rsa_key().jwk()), play.now)
    play.now += 100
    play.client(handshake(10, OAUTHBEARER), authenticate(11, unknown), produce(3, "orders"))
    assert "seek keys" in play.take()
    keys.loaded(document(ed_key().jwk()), play.now)
    play.call(Connection.resume_login)
    assert play.session.identity.groups == ()
    assert play.owed == []


@pytest.mark.parametrize("gains", [False, True])
def test_a_request_that_is_being_judged_while_rights_change_is_judged_again(gains: bool) -> None:
    """A re-authentication waits for it; a changed file of groups, or changed ACLs, do not."""
    with_right, without = Identity("User:alice", ["Group:admins"]), Identity("User:alice")
    play = member(*(() if gains else ("admins",)))
    play.runs_long_tasks_at_once = False
    play.client(describe(3, more=LITTLE))
    after = with_right if gains else without
    play.call(lambda connection, now: connection.regroup(now, after))
    while play.long_tasks:
        play.run_long_tasks()
    assert play.owed == ([3] if gains else [])
    if gains:
        play.broker(described(3))


def test_quotas_are_those_of_the_groups() -> None:
    asked: list[tuple[str, ...]] = []

    class Recording:
        clock = staticmethod(lambda: 0)

        def throttle(self, identity: Identity, *_: object) -> None:
            asked.append(identity.groups)

    member("a", quotas=Recording()).client(login("b"))
    assert (asked[0], asked[-1]) == (("Group:a",), ("Group:b",))


def test_overrides_are_those_of_the_groups() -> None:
    strict = Override(
        principal="Group:strict", prefixed=False, enforcement=Enforcement.ENFORCE, max_reauth_ms=5
    )
    play = member(enforcement=Enforcement.PROBE, overrides=(strict,))
    play.client(login("strict"))
    assert play.session.session_lifetime_ms == 5
    play.now += 2
    play.client(login(first_id=20))
    assert play.session.enforcement is Enforcement.PROBE


@pytest.mark.parametrize("after", [None, "mallory", "alice"])
def test_the_login_at_brokers_is_the_one_that_the_rules_give_now(after: str | None) -> None:
    """A reload may have denied it; brokers without lifetimes never ask for another."""
    names: list[str | None] = ["alice"]
    play = Playbook()

    def presents(session: Authenticated) -> str | None:
        assert session.principal == "User:alice"
        return names[0]

    object.__setattr__(play.rules, "presents", presents)
    logged_in(play)
    names[0] = after
    play.client(login())
    assert ("closed identity_refused" in play.take()) is (after != "alice")
