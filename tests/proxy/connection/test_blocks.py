"""The block list: its file, what it matches, and what it does to logins and sessions."""

from typing import Any, cast

import pytest

from proxy.connection.blocks import MAX_BYTES, MAX_ENTRIES, BadBlocks, Blocks, Login
from proxy.connection.connection import Connection
from sasl.credentials import ScramCredential, ScramMechanism
from sasl.identity import Identity, LoginFacts
from sasl.learned import UNREADABLE
from sasl.mechanism import PASSWORD, Mechanism
from sasl.scram import ScramServer
from tests.support.blocks import blocks, document
from tests.support.frames import authenticate, bearer, handshake, response
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, log_in, log_in_by_scram
from tests.support.playbook import logged_in as with_token
from tests.support.relayed_logins import Login as RelayedLogin
from tests.support.relayed_logins import answered, logged_in, relaying, shaken, shaken_hands
from tests.support.sasl import FAKE_SECRET, NOW, WALL, Users, cache_of, ed_key, rsa_key
from tests.support.sasl import document as keys_of
from tests.support.tables import table

FACTS = LoginFacts("https://issuer.test", "alice", "t1", WALL - 10, is_token=True)
CLAIMED = ("app", "librdkafka", "2.3.0")


def login(facts: LoginFacts = FACTS, host: str = "10.1.2.3", at: float | None = None) -> Login:
    identity = Identity("User:alice", ["Group:a", "Group:b"])
    return Login(identity, facts, host, CLAIMED, authenticated_at=at)


def found(entry: dict[str, Any], client: Login, now: float = NOW) -> bool:
    return blocks(entry).find(client, now, WALL + now - NOW) is not None


@pytest.mark.parametrize(("entry", "blocked"), table(__file__, "block_criteria"))
def test_an_entry_blocks_what_meets_all_criteria(entry: dict[str, Any], blocked: bool) -> None:
    assert found(entry, login()) is blocked
    assert found(entry, login(host="::ffff:10.1.2.3")) is blocked, "the same address"


@pytest.mark.parametrize(
    ("facts", "at", "blocked"),
    [
        (PASSWORD, None, False),
        (PASSWORD, NOW - 1, True),
        (PASSWORD, NOW, False),
        (LoginFacts(is_token=True), None, True),
        (UNREADABLE, None, True),
    ],
)
def test_issue_time_of_other_credentials(
    facts: LoginFacts, at: float | None, blocked: bool
) -> None:
    """A session with a password is older than the entry, whatever the clocks say; an unknown time
    of issue is never newer."""
    for issued_before in (WALL - 3600, WALL + 3600):
        entry = {"principal": "User:alice", "issued_before": issued_before}
        assert found(entry, login(facts, at=at)) is blocked


def test_a_login_that_only_the_broker_could_read_meets_any_identity() -> None:
    assert found({"principal": "User:bob"}, login(UNREADABLE))
    assert not found({"address": "10.9.9.9"}, login(UNREADABLE))


def test_a_margin_keeps_open_sessions_from_the_time_at_which_the_entry_came() -> None:
    entry = {"principal": "User:alice", "margin_s": 30}
    first = blocks(entry)
    again = Blocks.parse(document(entry, {"jti": "x"}), first.seen, NOW + 20)
    for now, ends in ((NOW + 29, False), (NOW + 30, True)):
        assert (again.find(login(at=NOW - 5), now, WALL) is not None) is ends
        assert again.find(login(), now, WALL) is not None, "logins are refused at once"
    assert again.may_change
    assert not blocks({"jti": "x"}).may_change


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "must begin with a line"),
        (document({"jti": "x"})[:-1], "is incomplete"),
        (document({"jti": "x"}, count=2), "is incomplete"),
        (document({"jti": "x"}, count=0), "is incomplete"),
        (document(count=1_000_000), f"{MAX_ENTRIES} are the most"),
        (b" " * (MAX_BYTES + 1), "is larger"),
        (document({"jti": "x"}, {"jti": "x", "id": "0"}), "has an id twice"),
        (document({"reason": "x"}), "line 2: needs at least one criterion"),
        (document({"principal": ""}), "no empty one"),
        (document({"principal": "alice"}), "must have a type"),
        (document({"group": "analysts"}), "must begin with Group:"),
        (document({"address": "10.1.2.3/24"}), "must be an address or a network"),
        (document({"jti": 7}), "must be a text"),
        (document({"jti": "x", "ends_at": "soon"}), "must be a number of seconds"),
        (document({"jti": "x", "ends_at": True}), "must be a number of seconds"),
        (document({"jti": "x", "ends_at": 1e300}), "must be a number of seconds"),
        (document({"jti": "x", "subject": None}), "must not be null"),
        (document({"jti": "x", "margin_s": 1e999}), "not a JSON object"),
        (document({"\x1b[31m": "x"}), r"'\\x1b\[31m': is unknown"),
        (document({"id": "", "jti": "x"}), "id: is required"),
    ],
)  # fmt: skip
def test_a_list_counts_as_a_whole_or_not_at_all(content: bytes, problem: str) -> None:
    with pytest.raises(BadBlocks, match=problem):
        Blocks.parse(content, {}, NOW)


def test_a_lookup_touches_one_entry_of_thousands() -> None:
    many = [{"principal": f"User:u{number}"} for number in range(5_000)]
    many += [{"jti": f"t{number + 2}", "address": "10.1.0.0/16"} for number in range(5_000)]
    listed = blocks(*many)
    assert len(listed._tables) == 2
    assert listed.find(login(), NOW, WALL) is None
    assert all(len(found) == 1 for table in listed._tables.values() for found in table.values())


# Connections


def block(play: Playbook, **entry: object) -> None:
    play.rules.blocks.blocks = blocks(entry, now=play.now)
    play.rules.blocks.wall_offset = WALL - NOW


def sweep(play: Playbook) -> list[str]:
    play.call(Connection.end_if_blocked)
    return play.take()


def refused(play: Playbook) -> bool:
    """Whether the last login failed; the transcript is taken."""
    taken = play.take()
    return "failed blocked" in taken and "closed authentication_failed" in taken


def test_a_blocked_login_fails_like_any_other() -> None:
    play = Playbook()
    block(play, principal="User:alice", client_id="app")
    log_in(play)
    assert play.take()[-4:] == [
        "failed blocked",
        "closed authentication_failed",
        "close after 0.1 s",
        "to client: #2 token error 58 lifetime 0",
    ]
    play = Playbook()
    block(play, principal="User:alice")
    log_in_by_scram(play, version=None)
    assert refused(play)


def test_a_blocked_session_ends() -> None:
    play = with_token(jti="t1")
    block(play, jti="t2")
    assert sweep(play) == []
    block(play, jti="t1")
    assert sweep(play) == ["closed blocked", "close"]


def test_a_newer_credential_is_let_back_within_the_margin() -> None:
    play = with_token(jti="t1")
    block(play, principal="User:alice", issued_before=WALL + 5, margin_s=30)
    assert sweep(play) == []
    play.now += 20
    log_in(play, first_id=3, iat=WALL + 6)
    assert play.session.reauthentications == 1
    play.take()
    play.now += 20
    assert sweep(play) == []
    log_in(play, first_id=5, iat=WALL + 4)
    assert refused(play)


def test_a_session_under_renewal_ends() -> None:
    play = with_token()
    play.now += 5
    play.client(handshake(3, OAUTHBEARER))
    play.take()
    block(play, principal="User:alice")
    assert sweep(play) == ["closed blocked", "close"]


def test_without_a_list_no_login_succeeds_if_so_configured() -> None:
    play = Playbook()
    play.rules.blocks.refuses_after = play.now
    log_in(play)
    assert "failed blocks_unknown" in play.take()


def test_a_client_without_sasl_is_closed_at_once() -> None:
    play = Playbook()
    block(play, address="192.0.2.0/24")
    play.call(lambda connection, now: connection.admit(Identity("User:ANONYMOUS"), now))
    assert play.take() == ["closed blocked", "close"]


def test_relayed_logins_and_sessions() -> None:
    play = relaying()
    block(play, principal="User:alice")
    RelayedLogin(play, play.broker).run()
    assert refused(play)
    play = logged_in()
    block(play, principal="User:alice", issued_before=WALL)
    assert sweep(play) == []
    play.rules.blocks.blocks = Blocks(1, blocks({"principal": "User:alice"}).entries.values())
    assert sweep(play) == ["closed blocked", "close"]


@pytest.mark.parametrize("message", [bearer(jti="t1"), b"n,,\x01auth=Bearer " + b"x" * 70_000])
def test_a_relayed_token_is_blocked_even_if_only_the_broker_can_read_it(message: bytes) -> None:
    """Otherwise a client could hide behind a message that is longer than the proxy reads."""
    play = relaying()
    block(play, jti="t1")
    play.client(handshake(1, OAUTHBEARER))
    play.broker(shaken(1))
    play.client(authenticate(2, message))
    play.broker(answered(2))
    assert refused(play)


def test_a_relayed_login_that_is_confirmed_later_is_judged_then() -> None:
    """The list may have changed since its last message."""
    play = shaken_hands("GSSAPI")
    play.client(authenticate(2, b"\x60token"))
    play.broker(answered(2))
    block(play, address="192.0.2.1")
    play.take()
    play.broker(response(0, b"\0\0" + bytes(4)))
    assert refused(play)


# Revoked credentials


class Fleeting(Users):
    """A user that is removed after `lookups`."""

    lookups = 1

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        self.lookups -= 1
        return super().find(user, mechanism) if self.lookups >= 0 else None


def of_users(users: Users) -> Playbook:
    play, name = Playbook(), ScramMechanism.SCRAM_SHA_256
    users.add("alice", "secret", name)
    server = ScramServer(mechanism=name, credentials=users, fake_secret=FAKE_SECRET)
    cast(dict[str, Mechanism], play.rules.mechanisms)[SCRAM] = server
    log_in_by_scram(play, version=1)
    return play


def test_a_session_ends_when_its_user_has_another_password() -> None:
    users = Users()
    play = of_users(users)
    play.call(Connection.end_if_revoked)
    assert not play.connection.closed
    users.add("alice", "changed", ScramMechanism.SCRAM_SHA_256)
    play.call(Connection.end_if_revoked)
    assert play.take()[-2:] == ["closed revoked", "close"]


def test_a_user_that_is_removed_during_the_login_is_refused() -> None:
    assert "failed bad_credentials" in of_users(Fleeting()).take()


def test_a_session_ends_when_its_key_is_gone_and_not_when_keys_are_old() -> None:
    keys = cache_of(ed_key())
    play = with_token(Playbook(keys=keys))
    play.now += 10 * 86_400
    keys.loaded(keys_of(ed_key().jwk(), rsa_key().jwk()), NOW)
    play.call(Connection.end_if_revoked)
    assert not play.connection.closed
    keys.loaded(keys_of(rsa_key().jwk()), NOW)
    play.call(Connection.end_if_revoked)
    assert play.take() == ["closed revoked", "close"]
