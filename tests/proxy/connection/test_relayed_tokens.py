"""Tokens that proxy and broker verify, as transcripts (`sasl.termination: broker`)."""

import pytest

from proxy.connection.connection import Connection
from sasl.identity import Identity
from sasl.jwks import KeyCache
from sasl.jwt_claims import OAuthBearerSettings
from sasl.mechanism import Mechanism
from sasl.messages import client_initial_response
from sasl.oauthbearer import OAuthBearerServer
from sasl.states import Authenticated, Authenticator, Enforcement
from tests.support.blocks import blocks
from tests.support.frames import (
    authenticate,
    bearer,
    bearer_of_unknown_key,
    fetch,
    handshake,
    response,
)
from tests.support.playbook import OAUTHBEARER, Playbook
from tests.support.relayed_logins import Login, answered, raw, relaying, settings, shaken
from tests.support.sasl import (
    NOW,
    SETTINGS,
    WALL,
    cache_of,
    claims,
    document,
    ed_key,
    only,
    rsa_key,
    token,
)

ANALYSTS, INTERNS = "Group:analysts", "Group:interns"
TOKEN_MS = 300_000
"""Remaining lifetime of each token at its login, in milliseconds; sessions may last an hour."""
REJECTED = b'{"status":"invalid_token"}'


def of_groups(groups: list[object], **more: object) -> bytes:
    """The client's message with a good token that names groups."""
    return client_initial_response(token(claims(groups=groups, **more), ed_key()))


def verifying(
    keys: KeyCache | None = None,
    enforcement: Enforcement = Enforcement.ENFORCE,
    *,
    enforces_token_expiry: bool = True,
    issuer: OAuthBearerSettings = SETTINGS,
) -> Playbook:
    """A connection whose proxy has signing keys, too."""
    verifiers: dict[str, Mechanism] = {}
    play = relaying(
        relays=settings(verifiers=verifiers),
        enforcement=enforcement,
        enforces_token_expiry=enforces_token_expiry,
    )
    verifiers[OAUTHBEARER] = OAuthBearerServer(
        issuers=only(keys or cache_of(ed_key()), issuer._replace(groups_claim_name="groups")),
        wall_clock=lambda: WALL + play.now - NOW,
    )
    return play


def offered(play: Playbook, message: bytes, version: int = 1) -> Playbook:
    """The client has chosen OAUTHBEARER, and sent a token."""
    play.client(handshake(1, OAUTHBEARER, version))
    play.broker(shaken(1))
    play.take()
    play.raw = not version
    play.client(authenticate(2, message) if version else raw(message))
    return play


def test_groups_count_when_proxy_and_broker_have_accepted_the_token() -> None:
    play = offered(verifying(), of_groups(["analysts"]))
    assert play.take() == ["to broker: SaslAuthenticate v1 #2"]
    play.broker(answered(2))
    assert "authenticated User:alice" in play.take()
    assert play.session.identity == Identity("User:alice", [ANALYSTS])
    assert play.session.authenticator is Authenticator.BROKER


def test_without_keys_groups_do_not_count() -> None:
    play = offered(relaying(), of_groups(["analysts"]))
    play.broker(answered(2))
    assert play.session.identity == Identity("User:alice")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (bearer(aud="other"), "wrong_audience"),
        (bearer(iss="https://other.test"), "wrong_issuer"),
        (bearer(exp=int(WALL) - 40), "expired"),
        (of_groups([7]), "bad_groups"),
        (b"n,a=bob," + bearer()[3:], "bad_claims"),
        (b"no token", "bad_message"),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_what_the_proxy_rejects_reaches_no_broker(
    message: bytes, reason: str, version: int
) -> None:
    """Whatever the broker would say: a group that is not known may be one that an ACL denies."""
    play = offered(verifying(), message, version)
    refusal = ["to client: #2 token error 58 lifetime 0"] if version else []
    assert play.take() == [
        f"failed {reason}",
        "closed authentication_failed",
        "close after 0.1 s",
        *refusal,
    ]


def test_a_blocked_token_reaches_no_broker() -> None:
    play = verifying()
    play.rules.blocks.blocks = blocks({"subject": "alice"})
    assert offered(play, bearer()).take()[:1] == ["failed blocked"]


def test_a_session_whose_key_is_gone_can_be_ended() -> None:
    keys = cache_of(ed_key())
    play = offered(verifying(keys), bearer())
    play.broker(answered(2))
    keys.loaded(document(rsa_key().jwk()), NOW)
    play.call(Connection.end_if_revoked)
    assert play.take()[-2:] == ["closed revoked", "close"]


def test_a_broker_that_rejects_the_token_hears_the_acknowledgement_alone() -> None:
    play = offered(verifying(), bearer())
    play.broker(answered(2, REJECTED))
    play.client(authenticate(3, b"\x01"))
    play.broker(answered(3, error_code=58))
    assert play.take()[2:5] == [
        "to broker: SaslAuthenticate v1 #3",
        "failed refused_by_broker",
        "closed authentication_failed",
    ]


def test_a_broker_that_accepts_what_is_no_token_lets_nobody_in() -> None:
    play = offered(verifying(), bearer())
    play.broker(answered(2, REJECTED))
    play.client(authenticate(3, b"\x01"))
    play.broker(answered(3))
    assert "failed bad_credentials" in play.take()
    assert not isinstance(play.connection.session.state, Authenticated)


def test_another_token_after_a_rejected_one_is_verified_as_well() -> None:
    play = offered(verifying(), bearer())
    play.broker(answered(2, REJECTED))
    play.take()
    play.client(authenticate(3, bearer(aud="other")))
    assert "failed wrong_audience" in play.take()


class TestKeysAreSought:
    def asking(self, version: int = 1) -> tuple[Playbook, KeyCache]:
        keys = KeyCache()
        assert keys.loaded(document(ed_key().jwk()), NOW - 100.0)
        play = offered(verifying(keys), bearer_of_unknown_key(), version)
        assert play.take() == ["seek keys"]
        assert play.paused == {"client"}
        return play, keys

    @pytest.mark.parametrize("version", [0, 1])
    def test_and_found(self, version: int) -> None:
        """Then the broker has the token, byte for byte."""
        play, keys = self.asking(version)
        keys.loaded(document(ed_key().jwk(), rsa_key().jwk()), play.now)
        play.call(lambda connection, now: connection.resume_login(now))
        token = bearer_of_unknown_key()
        assert play.take() == [
            "to broker: SaslAuthenticate v1 #2" if version else f"to broker: raw {len(token)} bytes"
        ]
        assert token in play.to_broker
        play.broker(answered(2) if version else raw(b""))
        assert "authenticated User:alice" in play.take()

    def test_and_not_found(self) -> None:
        play, keys = self.asking()
        keys.failed("no route", play.now)
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take()[0] == "failed unknown_key"


class TestReauthentication:
    def logged_in(self, enforcement: Enforcement = Enforcement.ENFORCE) -> Playbook:
        play = offered(verifying(enforcement=enforcement), of_groups(["analysts"]))
        play.broker(answered(2, lifetime_ms=60_000))
        play.take()
        return play

    def again(self, message: bytes) -> Playbook:
        play = self.logged_in()
        play.client(handshake(10, OAUTHBEARER))
        play.broker(shaken(10))
        play.client(authenticate(11, message))
        return play

    def test_other_groups_count_from_then_on(self) -> None:
        play = self.again(of_groups(["interns"]))
        play.broker(answered(11, lifetime_ms=60_000))
        assert play.session.identity == Identity("User:alice", [INTERNS])

    def test_a_token_that_the_proxy_rejects_ends_the_connection(self) -> None:
        play = self.again(of_groups(["interns"], aud="other"))
        assert "failed wrong_audience" in play.take()

    def test_another_principal_ends_the_connection(self) -> None:
        play = self.again(bearer(sub="mallory"))
        play.broker(answered(11, lifetime_ms=60_000))
        assert "failed principal_changed" in play.take()

    def test_another_account_of_the_same_principal_is_the_brokers_to_refuse(self) -> None:
        """Kafka 4.4 announces a token's lifetime whatever its `connections.max.reauth.ms`."""
        settings = SETTINGS._replace(sub_claim_name="team")
        play = offered(verifying(issuer=settings), bearer(team="etl", sub="alice"))
        play.broker(answered(2, lifetime_ms=60_000))
        play.client(handshake(10, OAUTHBEARER))
        play.take()
        play.broker(shaken(10))
        play.client(authenticate(11, bearer(team="etl", sub="mallory")))
        assert "to broker: SaslAuthenticate v1 #11" in play.take()
        play.broker(answered(11, error_code=58))
        assert "failed refused_by_broker" in play.take()


class TestAside:
    """A re-authentication that the broker takes for a login, so that it compares no principals.

    The proxy names clients by the claim `team`, the broker by `sub`.
    """

    def renewed(self, first: bytes, second: bytes) -> Playbook:
        """With a request in flight; the broker accepts both tokens."""
        play = offered(verifying(issuer=SETTINGS._replace(sub_claim_name="team")), first)
        play.broker(answered(2))
        play.client(fetch(9))
        play.now += 100
        play.client(handshake(10, OAUTHBEARER))
        play.side_connects()
        play.side(shaken(10))
        play.client(authenticate(11, second))
        play.take()
        play.side(answered(11))
        return play

    def test_the_same_name_keeps_its_connection(self) -> None:
        message = bearer(team="etl")
        assert self.renewed(message, message).take() == [
            "authenticated User:etl again (1)",
            "close side",
        ]

    @pytest.mark.parametrize(
        ("first", "second"), [("alice", "mallory"), ("alice", 7), (7, "alice"), (7, 7)]
    )
    def test_another_or_an_unknown_name_moves_to_where_it_was_proved(
        self, first: object, second: object
    ) -> None:
        """Otherwise the broker would serve a principal that was not authenticated again."""
        play = self.renewed(bearer(team="etl", sub=first), bearer(team="etl", sub=second))
        play.client(fetch(12))
        assert play.take() == ["authenticated User:etl again (1)"]
        play.broker(response(9, b"records"))
        assert play.take()[-2:] == ["move to side", "to side: Fetch v12 #12"]

    @pytest.mark.parametrize("subject", ["alice", "mallory", 7])
    def test_another_principal_ends_the_connection(self, subject: object) -> None:
        play = self.renewed(bearer(team="etl"), bearer(team="web", sub=subject))
        assert play.take()[0] == "failed principal_changed"
        play.broker(response(9, b"records"))
        assert "closed authentication_failed" in play.take()


@pytest.mark.parametrize("broker_ms", [0, 60_000])
@pytest.mark.parametrize(
    ("enforcement", "reason"),
    [
        (Enforcement.ENFORCE, "expired"),
        (Enforcement.PROBE, "token_expired"),
        (Enforcement.OBSERVE, "token_expired"),
    ],
)
def test_nobody_uses_a_session_after_its_token(
    enforcement: Enforcement, reason: str, broker_ms: int
) -> None:
    """Its groups would keep their permissions. `observe` announces what the broker does."""
    play = offered(verifying(enforcement=enforcement), of_groups(["analysts"]))
    play.broker(answered(2, lifetime_ms=broker_ms))
    observes = enforcement is Enforcement.OBSERVE
    announced_ms = broker_ms if observes else broker_ms or TOKEN_MS
    assert f"to client: #2 token error 0 lifetime {announced_ms}" in play.take()
    assert play.session.credential_lifetime_ms == TOKEN_MS
    if enforcement is not Enforcement.ENFORCE:
        play.now += TOKEN_MS / 1000
        play.client(fetch(3))
        assert play.take()[-1] == "to broker: Fetch v12 #3"
        play.broker(response(3, b"records"))
        play.take()
    play.wait_for(NOW + TOKEN_MS / 1000)
    play.expire()
    play.client(fetch(4))
    assert play.take() == [f"expired {enforcement} by Fetch", f"closed {reason}", "close"]


@pytest.mark.parametrize("enforcement", list(Enforcement))
def test_a_token_that_expired_within_the_skew_is_used_for_nothing(enforcement: Enforcement) -> None:
    """The proxy knows the end, whatever lifetime the broker announces."""
    play = offered(verifying(enforcement=enforcement), bearer(exp=WALL - 5))
    play.take()
    play.broker(answered(2))
    assert play.take()[-2:] == [
        "to client: #2 token error 0 lifetime 0",
        "authenticated User:alice",
    ]
    play.client(fetch(3))
    assert play.take() == ["closed expired_at_login", "close"]


@pytest.mark.parametrize("enforcement", [Enforcement.PROBE, Enforcement.OBSERVE])
def test_an_expired_token_is_refused_where_nothing_would_end_its_session(
    enforcement: Enforcement,
) -> None:
    play = verifying(enforcement=enforcement, enforces_token_expiry=False)
    offered(play, bearer(exp=WALL - 5))
    assert play.take()[0] == "failed expired"


@pytest.mark.parametrize(
    ("enforcement", "announced_ms"), [(Enforcement.PROBE, TOKEN_MS), (Enforcement.OBSERVE, 0)]
)
def test_a_tokens_end_is_that_of_any_session_where_it_is_not_enforced(
    enforcement: Enforcement, announced_ms: int
) -> None:
    play = offered(verifying(enforcement=enforcement, enforces_token_expiry=False), bearer())
    play.broker(answered(2))
    assert f"to client: #2 token error 0 lifetime {announced_ms}" in play.take()
    play.now += 10_000_000
    play.client(fetch(3))
    counted = ["expired probe by Fetch"] if enforcement is Enforcement.PROBE else []
    assert play.take() == [*counted, "to broker: Fetch v12 #3"]


@pytest.mark.parametrize("enforcement", list(Enforcement))
def test_a_token_that_nobody_verified_here_ends_no_session(enforcement: Enforcement) -> None:
    play = offered(relaying(enforcement=enforcement, max_reauth_ms=0), bearer())
    play.broker(answered(2))
    assert (play.session.deadline, play.session.killed_after) == (None, None)


def test_other_mechanisms_are_the_brokers_alone() -> None:
    play = verifying()
    Login(play, play.broker).run()
    assert play.session.identity == Identity("User:alice")
