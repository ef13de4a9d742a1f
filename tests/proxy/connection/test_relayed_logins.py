"""Logins that the broker authenticates, as transcripts (`sasl.termination: broker`)."""

from dataclasses import replace

import pytest

from proxy.connection.connection import Connection
from proxy.connection.life import PauseReason
from proxy.wire.api_versions import (
    REBOOTSTRAP_REQUIRED,
    UNSUPPORTED_VERSION,
    BrokerIdentity,
    UpstreamVersions,
)
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.wire.primitives import INT16, INT32
from sasl.mechanism import FailureReason
from sasl.states import Enforcement, Failed
from tests.support import messages
from tests.support.frames import (
    authenticate,
    bearer,
    fetch,
    handshake,
    metadata,
    read_authenticated,
    response,
    sized,
)
from tests.support.playbook import HOUR_MS, SCRAM, VERSIONS, Offer, Playbook, everything, refused
from tests.support.relayed_logins import (
    CHALLENGE,
    CONFIRMED,
    PROOF,
    Login,
    answered,
    logged_in,
    raw,
    relaying,
    settings,
    shaken,
    shaken_hands,
)
from tests.support.sasl import NOW

NO_APIS = b"\x01" + INT32.pack(0) + b"\0"
"""The rest of an answer to ApiVersions v5."""


def cluster(*node_ids: int) -> bytes:
    """The answer to a Metadata v13."""
    brokers = [{"node_id": id_, "host": f"kafka-{id_}", "port": 9092} for id_ in node_ids]
    told = messages.response(METADATA, 13, brokers=brokers, cluster_id="c1", controller_id=3)
    return sized(messages.response_bytes(told, 0))


OBSERVE, PROBE, ENFORCE = Enforcement.OBSERVE, Enforcement.PROBE, Enforcement.ENFORCE


class TestFirstLogin:
    def test_each_message_goes_to_the_broker_and_its_answer_to_the_client(self) -> None:
        play = relaying()
        login = Login(play, play.broker)
        login.begin()
        assert play.take() == ["connect", "to broker: SaslHandshake v1 #1"]
        play.broker(shaken(1))
        assert play.take() == ["to client: #1 handshake error 0"]
        login.first()
        assert play.take() == ["to broker: SaslAuthenticate v1 #2"]
        login.challenged()
        assert play.take() == ["to client: #2 token error 0 lifetime 0"]
        login.final()
        login.proven()
        assert play.take() == [
            "to broker: SaslAuthenticate v1 #3",
            "to client: #3 token error 0 lifetime 3600000",
            "authenticated User:alice",
        ]
        play.client(fetch(4))
        assert play.take() == ["to broker: Fetch v12 #4"]

    @pytest.mark.parametrize(
        ("enforcement", "max_reauth_ms", "broker_ms", "told_ms", "deadline"),
        [
            (ENFORCE, 60_000, 0, 60_000, NOW + 60),
            (ENFORCE, 60_000, 5_000, 5_000, NOW + 5),
            (ENFORCE, 5_000, 60_000, 5_000, NOW + 5),
            (ENFORCE, 0, 60_000, 60_000, NOW + 60),
            (ENFORCE, 0, 0, 0, None),
            (PROBE, 60_000, 0, 60_000, NOW + 60),
            (OBSERVE, 60_000, 0, 0, None),
            (OBSERVE, 60_000, 5_000, 5_000, None),  # which the broker keeps
        ],
    )
    @pytest.mark.parametrize("version", [1, 2])
    def test_the_smaller_lifetime_is_announced(
        self,
        enforcement: Enforcement,
        max_reauth_ms: int,
        broker_ms: int,
        told_ms: int,
        deadline: float | None,
        version: int,
    ) -> None:
        play = relaying(enforcement=enforcement, max_reauth_ms=max_reauth_ms)
        Login(play, play.broker, version=version).run(broker_ms)
        assert f"to client: #3 token error 0 lifetime {told_ms}" in play.take()
        assert play.session.deadline == deadline
        assert play.session.announced_lifetime_ms == told_ms

    def test_a_client_that_was_not_told_has_the_same_session(self) -> None:
        """SaslAuthenticate v0 has no lifetime (KAFKA-9241)."""
        assert logged_in(version=0).session.deadline == NOW + 3_600

    @pytest.mark.parametrize(
        ("mechanism", "message", "claimed"),
        [
            ("PLAIN", b"\0alice\0secret", "alice"),
            ("PLAIN", b"mallory\0alice\0secret", None),
            ("PLAIN", b"alice secret", None),
            ("OAUTHBEARER", bearer(), "alice"),
            ("GSSAPI", b"`alice", None),
        ],
    )
    def test_one_that_the_broker_refuses_is_told_with_the_name_that_was_claimed(
        self, mechanism: str, message: bytes, claimed: str | None
    ) -> None:
        """The part that a message shows; never a password."""
        play = shaken_hands(mechanism)
        play.client(authenticate(2, message))
        play.broker(answered(2, error_code=58))
        (failed,) = play.recorder.seen
        assert isinstance(failed, Failed)
        assert failed.claimed == claimed


class TestSilence:
    """For how long a login has waited for its client, which decides who gives a slot to others."""

    def silence(self, play: Playbook) -> float:
        return play.connection.relayed_login.silence(play.now)

    def test_it_is_counted_from_the_brokers_answer_whatever_comes_of_the_next_message(self) -> None:
        play = relaying()
        login = Login(play, play.broker)
        login.begin()
        play.now += 5
        assert self.silence(play) == 0, "the broker is awaited"
        play.broker(shaken(1))
        message = authenticate(2, b"n,,n=alice,r=nonce")
        for at in range(3):
            play.now += 1
            play.client(message[at : at + 1])
        play.connection.hold(PauseReason.THROTTLED)  # as for an earlier fetch
        assert self.silence(play) == 3
        play.call(lambda connection, now: connection.release(PauseReason.THROTTLED, now))
        play.client(message[3:])
        play.now += 5
        assert self.silence(play) == 0

    def test_so_is_that_of_a_re_authentication_aside(self) -> None:
        play = logged_in()
        Login(play, play.side, first_id=10).begin()
        play.now += 5
        assert self.silence(play) == 0, "the broker is awaited"
        play.side_connects()
        play.side(shaken(10))
        play.now += 2
        assert self.silence(play) == 2
        play.take()
        play.call(
            lambda connection, now: connection.relayed_login.failed(FailureReason.DISPLACED, now)
        )
        assert play.take()[:2] == ["failed displaced", "closed authentication_failed"]

    def test_so_is_that_behind_requests_which_the_broker_answers_late(self) -> None:
        """The broker answers a connection's requests in order, and says last which node it is."""
        play = logged_in(relaying(offer=replace(everything(), offered=VERSIONS)))
        play.client(fetch(9))
        login = Login(play, play.side, first_id=10)
        login.begin()
        play.side_connects()
        play.side(shaken(10))
        login.rest()
        play.now += 2
        assert self.silence(play) == 2
        play.broker(response(9, b"records"))
        assert self.silence(play) == 0, "now the broker is awaited"

    def test_a_raw_token_without_an_answer_leaves_it_to_the_client(self) -> None:
        play = shaken_hands("GSSAPI", version=0)
        play.now += 5
        play.client(raw(b"\x60token"))
        play.now += 2
        assert self.silence(play) == 2


class TestSide:
    def test_a_learned_principal_is_renewed_aside_and_keeps_its_connection(self) -> None:
        play = logged_in()
        play.client(fetch(9))
        play.now += 100
        login = Login(play, play.side, first_id=10)
        login.begin()
        assert play.take() == ["to broker: Fetch v12 #9", "open side until 3600"]
        play.side_connects()
        assert play.take() == ["to side: SaslHandshake v1 #10"]
        play.side(shaken(10))
        assert play.take() == []  # after the request in flight
        play.broker(response(9, b"records"))
        assert play.take() == ["to client: #9 records", "to client: #10 handshake error 0"]
        login.rest()
        assert play.take() == [
            "to side: SaslAuthenticate v1 #11",
            "to client: #11 token error 0 lifetime 0",
            "to side: SaslAuthenticate v1 #12",
            "to client: #12 token error 0 lifetime 3600000",
            "authenticated User:alice again (1)",
            "close side",
        ]
        assert play.session.deadline == NOW + 100 + 3600
        play.client(fetch(13))
        assert play.take() == ["to broker: Fetch v12 #13"]

    def test_another_principal_is_refused_and_the_connection_closed(self) -> None:
        play = logged_in()
        play.now += 100
        Login(play, play.side, first_id=10, user="bob").run()
        assert play.take()[-4:] == refused(
            "principal_changed", "to client: #12 token error 58 lifetime 0", close="close"
        )
        _, message, _, _ = read_authenticated(play.received[-1], 1)
        assert (
            message
            == b"Cannot change principals during re-authentication from User.alice: User.bob"
        )

    def test_another_mechanism_is_closed_at_the_token(self) -> None:
        """As by Kafka, and without a byte to the broker."""
        play = logged_in()
        play.now += 100
        play.client(handshake(10, "PLAIN"))
        assert play.take() == ["to client: #10 handshake error 0"]
        play.client(authenticate(11, b"\0alice\0secret"))
        assert play.take() == refused("mechanism_changed")

    def test_a_mechanism_that_the_broker_does_not_offer_is_closed(self) -> None:
        play = logged_in()
        play.now += 100
        play.client(handshake(10, "NONSENSE"))
        assert play.take()[0] == "failed unsupported_mechanism"

    def test_a_second_one_within_a_second_is_refused(self) -> None:
        play = logged_in()
        Login(play, play.side, first_id=10).run()
        play.take()
        play.now += 0.5
        play.client(handshake(20, SCRAM))
        assert play.take() == ["failed illegal_state", "to client: #20 handshake error 34"]

    def test_a_session_without_an_end_is_the_brokers_to_refuse(self) -> None:
        play = logged_in(relaying(max_reauth_ms=0))
        play.client(handshake(10, SCRAM))
        assert play.take() == ["to broker: SaslHandshake v1 #10"]
        play.broker(shaken(10, 34))
        play.client(fetch(11))
        assert play.take() == ["to client: #10 handshake error 34", "to broker: Fetch v12 #11"]


class TestSameConnection:
    """Brokers that announce lifetimes themselves."""

    @pytest.mark.parametrize("enforcement", [ENFORCE, PROBE, OBSERVE])
    def test_a_reauthentication_goes_behind_what_is_in_flight(
        self, enforcement: Enforcement
    ) -> None:
        play = logged_in(relaying(enforcement=enforcement), lifetime_ms=10_000)
        play.now += 9
        play.client(fetch(9))
        login = Login(play, play.broker, first_id=10)
        login.begin()
        play.client(fetch(13))  # waits
        assert play.take() == ["to broker: Fetch v12 #9", "to broker: SaslHandshake v1 #10"]
        play.broker(response(9, b"records"), shaken(10))
        assert play.take()[:2] == ["to client: #9 records", "to client: #10 handshake error 0"]

    def test_it_renews_the_session(self) -> None:
        play = logged_in(lifetime_ms=10_000)
        play.now += 9
        Login(play, play.broker, first_id=10).run(lifetime_ms=10_000)
        assert play.take()[-2:] == [
            "to client: #12 token error 0 lifetime 10000",
            "authenticated User:alice again (1)",
        ]
        assert play.session.deadline == NOW + 19

    def test_observe_changes_no_byte_of_it(self) -> None:
        play = logged_in(relaying(enforcement=OBSERVE), lifetime_ms=10_000)
        assert play.session.deadline is None
        play.now += 60  # past the lifetime that the broker announced, and itself keeps
        play.client(fetch(9))
        assert play.take() == ["to broker: Fetch v12 #9"]


class TestOpaque:
    """Mechanisms that do not show who the client is."""

    def opaque(
        self, mechanism: str = "GSSAPI", rules: str | None = None, broker_ms: int = 0
    ) -> Playbook:
        play = shaken_hands(mechanism, relays=settings(rules=rules))
        play.client(authenticate(2, b"\x60token"))
        data = b"" if mechanism == "GSSAPI" else b"done"
        play.broker(answered(2, data, lifetime_ms=broker_ms))
        return play

    def test_gssapi_is_confirmed_when_the_broker_has_nothing_more_to_say(self) -> None:
        play = self.opaque()
        assert play.take()[-2:] == [
            "to client: #2 token error 0 lifetime 3600000",
            "to broker: ApiVersions v0 #0",
        ]
        play.broker(CONFIRMED)
        assert play.take() == ["authenticated Opaque:GSSAPI@192.0.2.1"]

    def test_a_broker_that_is_in_the_middle_of_a_login_ends_it(self) -> None:
        play = self.opaque()
        play.take()
        play.broker(response(0, b"\0\x22" + bytes(4)))
        assert play.take() == refused("refused_by_broker", close="close")

    def test_a_rule_makes_it_a_user(self) -> None:
        play = self.opaque(rules=r"RULE:GSSAPI@192\.0\.2\..*/etl/")
        play.broker(CONFIRMED)
        assert play.take()[-1] == "authenticated User:etl"

    @pytest.mark.parametrize("mechanism", ["GSSAPI", "X-OWN"])
    @pytest.mark.parametrize("broker_ms", [10_000, 2 * HOUR_MS])
    def test_a_lifetime_of_the_broker_confirms_it(self, mechanism: str, broker_ms: int) -> None:
        play = self.opaque(mechanism, broker_ms=broker_ms)
        assert play.take()[-2:] == [
            f"to client: #2 token error 0 lifetime {min(broker_ms, HOUR_MS)}",
            f"authenticated Opaque:{mechanism}@192.0.2.1",
        ]

    def test_another_mechanism_is_confirmed_before_the_first_request(self) -> None:
        play = self.opaque("X-OWN")
        assert play.take()[-1] == "to client: #2 token error 0 lifetime 3600000"
        play.client(metadata(3)[:9])
        assert play.take() == []
        play.client(metadata(3)[9:], fetch(4))
        assert play.take() == ["to broker: ApiVersions v0 #0"]
        play.broker(CONFIRMED)
        assert play.take() == [
            "authenticated Opaque:X-OWN@192.0.2.1",
            "to broker: Metadata v12 #3",
            "to broker: Fetch v12 #4",
        ]

    def test_a_client_that_goes_on_needs_no_confirmation(self) -> None:
        play = self.opaque("X-OWN")
        play.take()
        play.client(authenticate(3, b"more"))
        assert play.take() == ["to broker: SaslAuthenticate v1 #3"]

    def test_one_that_is_silent_is_confirmed_when_its_time_is_over(self) -> None:
        play = self.opaque("X-OWN")
        play.take()
        play.wait_for(NOW + 10)
        assert play.take() == ["to broker: ApiVersions v0 #0"]
        play.broker(CONFIRMED)
        assert play.take() == ["authenticated Opaque:X-OWN@192.0.2.1"]

    def test_requests_move_to_the_side_connection_when_those_in_flight_are_answered(self) -> None:
        play = self.opaque()
        play.broker(CONFIRMED)
        play.client(fetch(9))
        play.now += 100
        play.client(handshake(10, "GSSAPI"))
        play.side_connects()
        play.side(shaken(10))
        play.client(authenticate(11, b"\x60token"))
        play.side(answered(11))
        assert play.take()[-1] == "to side: ApiVersions v0 #0"
        play.side(CONFIRMED)
        play.client(fetch(12))
        assert play.take() == ["authenticated Opaque:GSSAPI@192.0.2.1 again (1)"]
        play.broker(response(9, b"records"))
        assert play.take() == [
            "to client: #9 records",
            "to client: #10 handshake error 0",
            "to client: #11 token error 0 lifetime 3600000",
            "move to side",
            "to side: Fetch v12 #12",
        ]

    def test_the_owner_of_a_delegation_token_is_not_its_id(self) -> None:
        play = shaken_hands()
        play.client(authenticate(2, b"n,,n=token-id,r=nonce,tokenauth=true"))
        play.broker(answered(2, CHALLENGE % b"nonceserver"))
        play.client(authenticate(3, b"c=biws,r=nonceserver,p=cHJvb2Y="))
        play.broker(answered(3, PROOF))
        assert play.take()[-1] == "authenticated Opaque:SCRAM-SHA-256@tokenauth=token-id"


class TestNode:
    """A broker with ApiVersions v5 shows authenticated clients its node id (KIP-1242)."""

    @staticmethod
    def renewed(*answers: int, versions: UpstreamVersions = VERSIONS) -> Playbook:
        """A login on a side connection, while the broker of the requests is asked which node it
        is: its answers to the ApiVersions that follow Metadata."""
        identity = BrokerIdentity(node_ids=frozenset({7}))
        offer = replace(everything(), offered=versions, identity=identity)
        play = logged_in(relaying(offer=offer))
        login = Login(play, play.side, first_id=10)
        login.begin()
        assert play.take() == ["to broker: Metadata v13 #0", "open side until 3600"]
        play.side_connects()
        play.side(shaken(10))
        play.broker(cluster(3, 7))
        for error_code in answers:
            play.broker(response(0, INT16.pack(error_code) + NO_APIS))
        login.rest()
        return play

    def test_the_same_node_renews_the_session(self) -> None:
        play = self.renewed(REBOOTSTRAP_REQUIRED, 0)
        asked = [line for line in play.take() if "ApiVersions" in line]
        assert asked == ["to broker: ApiVersions v5 #0"] * 2 + ["to side: ApiVersions v5 #0"]
        assert bytes(play.to_side).endswith(b"\x03c1" + INT32.pack(7) + b"\0")
        play.client(fetch(13))
        assert play.take() == [], "only who is let in gets anything through"
        play.side(response(0, INT16.pack(0) + NO_APIS))
        assert play.take() == [
            "authenticated User:alice again (1)",
            "close side",
            "to broker: Fetch v12 #13",
        ]
        play.now += 100
        Login(play, play.side, first_id=30).begin()
        assert play.take() == ["open side until 3600"], "it is asked once"

    @pytest.mark.parametrize("error_code", [REBOOTSTRAP_REQUIRED, UNSUPPORTED_VERSION])
    def test_another_node_fails_the_re_authentication(self, error_code: int) -> None:
        play = self.renewed(REBOOTSTRAP_REQUIRED, 0)
        play.client(fetch(13))
        play.take()
        play.side(response(0, INT16.pack(error_code) + NO_APIS))
        other = error_code == REBOOTSTRAP_REQUIRED
        assert play.take()[:2] == [
            f"failed {'broker_unavailable' if other else 'refused_by_broker'}",
            "closed authentication_failed",
        ]
        assert b"Fetch" not in b"".join(play.received)

    def test_a_login_aside_waits_until_it_is_known_which_node_to_ask(self) -> None:
        play = self.renewed(REBOOTSTRAP_REQUIRED)
        assert play.take()[-1] == "to side: SaslAuthenticate v1 #12"
        play.broker(response(0, INT16.pack(0) + NO_APIS))
        assert "to side: ApiVersions v5 #0" in play.take()

    @pytest.mark.parametrize("answers", [(0,), (REBOOTSTRAP_REQUIRED,) * 3])
    def test_a_broker_that_is_not_known_by_its_node_is_one_by_its_address(
        self, answers: tuple[int, ...]
    ) -> None:
        """It refuses no node at all, or each."""
        play = self.renewed(*answers)
        assert play.take()[-2:] == ["authenticated User:alice again (1)", "close side"]

    def test_a_broker_before_v5_is_not_asked(self) -> None:
        apis = {**VERSIONS.apis, API_VERSIONS: (0, 4)}
        play = logged_in(relaying(offer=replace(everything(), offered=UpstreamVersions(apis=apis))))
        Login(play, play.side, first_id=10).begin()
        assert play.take() == ["open side until 3600"]


class TestRawTokens:
    def test_plain_succeeds_with_an_empty_answer(self) -> None:
        play = shaken_hands("PLAIN", version=0)
        play.client(raw(b"\0alice\0secret"))
        assert play.take() == ["to broker: raw 13 bytes"]
        play.broker(raw(b""))
        assert play.take() == ["to client: raw nothing", "authenticated User:alice"]
        play.raw = False
        play.client(fetch(2))
        assert play.take() == ["to broker: Fetch v12 #2"]

    def test_the_last_token_of_gssapi_has_no_answer(self) -> None:
        """Kafka sends none where the mechanism has nothing to say; the next frame is a request."""
        play = shaken_hands("GSSAPI", version=0)
        for token in (b"\x60AP-REQ of a ticket", b""):
            play.client(raw(token))
            play.broker(raw(b"\x60an answer"))
        play.client(raw(b"\x05\x04wrapped choice"))
        assert play.take()[-3:] == [
            "to broker: raw 0 bytes",
            "to client: raw 10 bytes",
            "to broker: raw 16 bytes",
        ]
        play.raw = False
        play.client(metadata(2), fetch(3))
        assert play.take() == ["to broker: ApiVersions v0 #0"]
        play.broker(CONFIRMED)
        assert play.take() == [
            "authenticated Opaque:GSSAPI@192.0.2.1",
            "to broker: Metadata v12 #2",
            "to broker: Fetch v12 #3",
        ]
        assert play.session.session_lifetime_ms == HOUR_MS

    def test_a_request_in_the_middle_of_raw_gssapi_reaches_no_broker(self) -> None:
        """The broker refuses by closing."""
        play = shaken_hands("GSSAPI", version=0)
        play.client(raw(b"\x60AP-REQ of a ticket"))
        play.raw = False
        play.client(metadata(2))
        assert play.take()[-1] == "to broker: ApiVersions v0 #0"
        play.call(Connection.broker_closed)
        assert play.take() == refused("refused_by_broker", close="close")

    @pytest.mark.parametrize(
        ("version", "reason"), [(0, "refused_by_broker"), (1, "broker_unavailable")]
    )
    def test_a_broker_refuses_only_raw_tokens_by_closing(self, version: int, reason: str) -> None:
        play = shaken_hands("PLAIN", version=version)
        token = b"\0alice\0wrong"
        play.client(authenticate(2, token) if version else raw(token))
        play.take()
        play.call(Connection.broker_closed)
        assert play.take() == refused(reason, close="close")


class TestBrokerUnknown:
    """The client wants broker 2, and its login goes to another one of the cluster."""

    def play(self) -> Playbook:
        offer = replace(everything(), offered=VERSIONS, learned={})
        return relaying(wanted=2, offer=offer)

    def learned(self, play: Playbook) -> dict[int, str]:
        assert isinstance(play.connection.target, Offer)
        return {id_: one.host for id_, one in play.connection.target.learned.items()}

    def test_brokers_are_learned_behind_the_login_and_no_request_is_forwarded(self) -> None:
        play = self.play()
        login = Login(play, play.broker)
        login.begin()
        play.broker(shaken(1))
        login.first()
        login.challenged()
        login.final()
        play.client(fetch(4))  # before it has the answer
        play.take()
        login.proven()
        assert play.take() == [
            "to client: #3 token error 0 lifetime 3600000",
            "authenticated User:alice",
            "to broker: Metadata v13 #0",
        ]
        play.client(fetch(5), metadata(6), handshake(7, SCRAM))
        assert play.take() == []
        play.broker(cluster(1, 2))
        assert play.take() == ["closed broker_unknown", "close"]
        assert self.learned(play) == {1: "kafka-1", 2: "kafka-2"}

    def test_a_client_whose_broker_is_absent_is_closed_later(self) -> None:
        """Or it would come back at once, and cost another login each time."""
        play = logged_in(self.play())
        play.broker(cluster(1, 3))
        assert play.take() == ["closed broker_unknown", "close after 3.0 s"]
        assert self.learned(play) == {1: "kafka-1", 3: "kafka-3"}

    def test_a_login_that_does_not_show_its_end_is_confirmed_before(self) -> None:
        play = self.play()
        play.client(handshake(1, "X-OWN"))
        play.broker(shaken(1))
        play.client(authenticate(2, b"token"))
        play.broker(answered(2, b"done"))
        play.take()
        play.client(fetch(3))
        assert play.take() == ["to broker: ApiVersions v0 #0"]
        play.broker(CONFIRMED)
        assert play.take() == ["authenticated Opaque:X-OWN@192.0.2.1", "to broker: Metadata v13 #0"]
        play.broker(cluster(2))
        assert play.take() == ["closed broker_unknown", "close"]

    def test_a_refused_login_learns_nothing(self) -> None:
        play = self.play()
        play.client(handshake(1, SCRAM))
        play.broker(shaken(1))
        play.client(authenticate(2, b"n,,n=alice,r=nonce"))
        play.take()
        play.broker(answered(2, error_code=58))
        answer = "to client: #2 token error 58 lifetime 0"
        assert play.take() == refused("refused_by_broker", answer, close="close")
        assert self.learned(play) == {}

    def test_a_broker_that_does_not_answer_is_not_waited_for(self) -> None:
        play = logged_in(self.play())
        play.wait_for(NOW + 10)
        assert play.take() == ["closed broker_fault", "close"]

    def test_an_answer_that_does_not_parse_is_a_fault_of_the_broker(self) -> None:
        play = logged_in(self.play())
        play.broker(response(0, bytes(6)))
        assert play.take() == ["closed broker_fault", "close"]
        assert self.learned(play) == {}
