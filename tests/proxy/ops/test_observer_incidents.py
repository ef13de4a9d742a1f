"""Which occurrences are worth showing to people, and in which words."""

from dataclasses import replace
from typing import Any

import pytest

from metrics import registry
from metrics.history import Timeline, UnauthenticatedEventLimit
from metrics.tally import Tally
from proxy.acl.administration import Administered
from proxy.acl.authorizer import DenialNotice
from proxy.acl.model import Operation, ResourceType
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.commands import CloseReason
from proxy.connection.frames import route_key
from proxy.connection.throttling import Throttling
from proxy.ops.observer import MAX_OUTCOMES
from proxy.ops.status.recent import INCIDENT_CLOSES, Incident
from proxy.quota.callback import ClientQuotaType
from proxy.quota.meter import Meter
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.quota.throttle import Mode, Throttle
from proxy.wire.api_versions import NO_SOFTWARE, ApiVersionsRequest, BrokerIdentity
from proxy.wire.apis import CREATE_TOPICS, FETCH, PRODUCE
from proxy.wire.codec import encode
from proxy.wire.messages import CreateTopicsResponse
from sasl.identity import Identity
from sasl.mechanism import FailureReason
from sasl.states import Authenticated, Enforcement, Failed
from tests.support.frames import request
from tests.support.metrics import read
from tests.support.observer import DENIAL, authenticated, observer_of
from tests.support.playbook import Playbook, everything
from tests.support.sasl import NOW, WALL

WALL_MS = int(WALL * 1000)
REFUSED = Failed(
    reason=FailureReason.BAD_CREDENTIALS,
    mechanism="SCRAM-SHA-256",
    handshake_version=1,
    previous=None,
)
UNJUDGED = {"operation": Operation.UNKNOWN, "resource_type": ResourceType.UNKNOWN}


def session(
    enforcement: Enforcement, principal: str = "User:alice", groups: tuple[str, ...] = ()
) -> Authenticated:
    return authenticated(
        identity=Identity(principal, groups),
        enforcement=enforcement,
        killed_after=NOW + 60 if enforcement is Enforcement.ENFORCE else None,
    )


class Observed:
    """A connection, and the incidents of its observer."""

    def __init__(
        self, event_limit: UnauthenticatedEventLimit | None = None, tally: Tally | None = None
    ) -> None:
        self.lines: list[str] = []
        self.noted: list[Incident] = []
        self.doubted: list[DiscoveredBroker] = []
        self.broker = DiscoveredBroker(
            None, "broker", 9092, identity=BrokerIdentity(cluster_id="c", node_ids={1})
        )
        self.told: list[str] = []
        self.details: list[str] = []
        self.connection = Playbook().connection
        self.connection.target = BrokerView(self.broker, resolve=None)
        self.observer = observer_of(
            timeline=Timeline(wall=WALL, now=NOW),
            tally=tally or Tally(run="r"),
            event_limit=event_limit or UnauthenticatedEventLimit(workers=1),
            emit=self.lines.append,
            note=self.noted.append,
            may_have_changed=lambda broker, _now: self.doubted.append(broker),
            inform=self._inform,
        )
        self.observer.opened(self.connection, NOW)

    def _inform(self, _cause: str, text: str, *, detail: str = "") -> None:
        self.told.append(text)
        self.details.append(detail)

    def log_in(self, as_whom: Authenticated) -> None:
        self.observer.authenticated(self.connection, as_whom)

    def only(self) -> Incident:
        (one,) = self.noted
        return one


def logged_in(as_whom: Authenticated | None = None) -> Observed:
    seen = Observed()
    seen.log_in(as_whom or session(Enforcement.ENFORCE))
    return seen


def test_an_authentication_has_the_groups_of_the_client() -> None:
    seen = logged_in(session(Enforcement.ENFORCE, groups=("Group:analysts",)))
    seen.observer.reached_broker(seen.connection)
    assert [read(line).groups for line in seen.lines] == [("Group:analysts",)]


def test_a_misrouted_client() -> None:
    """The incident names the intended broker; it may be that one by now, so it is queried."""
    seen = Observed()
    request = ApiVersionsRequest(NO_SOFTWARE, "other", 7)
    seen.observer.misrouted(seen.connection, request, NOW + 1)
    assert (seen.only().kind, seen.only().what) == ("misrouted", "node 7 of other")
    (event,) = map(read, seen.lines)
    assert (event.meant_cluster_id, event.meant_node_id) == ("other", 7)
    assert (event.cluster_id, event.node_id) == ("c", 1)
    assert seen.doubted == [seen.broker]


def test_a_broker_that_closes_a_connection_may_come_back_as_another() -> None:
    for reason in (CloseReason.CLIENT_CLOSED, CloseReason.BROKER_CLOSED):
        seen = Observed()
        seen.observer.closed(seen.connection, reason, NOW + 1)
        assert seen.doubted == [seen.broker] * (reason is CloseReason.BROKER_CLOSED)


def test_a_failed_login() -> None:
    seen = Observed()
    seen.observer.authentication_failed(seen.connection, REFUSED, NOW + 1)
    assert seen.only() == Incident(
        kind="failed",
        what="bad_credentials",
        listener="clients",
        principal=None,
        client_id=None,
        client_host=seen.connection.peer_host,
        mechanism="SCRAM-SHA-256",
        times=1,
        first_ms=WALL_MS + 1_000,
        last_ms=WALL_MS + 1_000,
    )


@pytest.mark.parametrize(("unknown", "what"), [(True, "unknown user"), (False, "bad_credentials")])
def test_who_a_client_claims_to_be_is_marked_as_a_claim(unknown: bool, what: str) -> None:
    """In the event, on the status page, and in the log, where a name cannot steer a terminal."""
    seen = Observed()
    hostile = "User\x1b[2J" + "x" * 1_000
    failed = replace(REFUSED, claimed=hostile, detail="unknown user" if unknown else "")
    seen.observer.authentication_failed(seen.connection, failed, NOW + 1)
    (event,) = seen.lines
    assert "\x1b" not in event
    bounded = read(event).claimed_principal
    assert bounded is not None
    assert (bounded[:10], len(bounded)) == ("User:User\x1b", 256)
    assert seen.only().principal is None
    assert seen.only().claimed_principal == bounded
    (line,) = seen.told
    assert seen.details == [bounded], "each claimed principal has lines of its own"
    host = seen.connection.peer_host
    assert line.startswith(f"login failed: {what}, from {host}, claims to be 'User:User\\x1b[2J")
    assert line.isprintable()


@pytest.mark.parametrize("reason", ["unsupported_api", "oversize_frame", "malformed_frame"])
def test_what_a_client_speaks_wrong_is_logged_with_its_software(reason: str) -> None:
    seen = Observed()
    seen.connection.authentication.client_software_name = "sarama"
    seen.connection.authentication.client_software_version = "1.0"
    seen.observer.closed(seen.connection, CloseReason(reason), NOW + 1)
    assert seen.only().client_software == "sarama 1.0"
    host = seen.connection.peer_host
    assert seen.told == [f"closed: {reason}, from {host}, software 'sarama 1.0'"]


@pytest.mark.parametrize(
    ("enforcement", "kind"),
    [(Enforcement.ENFORCE, "expired-killed"), (Enforcement.PROBE, "would-be-killed")],
)
@pytest.mark.parametrize(("api_key", "what"), [(PRODUCE, "Produce"), (999, "API 999")])
def test_an_expired_session_that_is_used(
    enforcement: Enforcement, kind: str, api_key: int, what: str
) -> None:
    seen = logged_in(session(enforcement))
    for _ in range(2 if enforcement is Enforcement.PROBE else 1):
        seen.observer.expired(seen.connection, session(enforcement), api_key, NOW + 61)
    one = seen.only()  # in `probe` too: one event is shown once
    assert (one.kind, one.what, one.principal) == (kind, what, "User:alice")
    killed = enforcement is Enforcement.ENFORCE
    assert [line.split(", ")[0] for line in seen.told] == [
        f"closed: session expired before {what}"
    ] * killed
    assert seen.details == ["User:alice"] * killed
    helps = '{principal: "User:alice", reauth.enforcement: probe}'
    assert all(line.endswith(f"would help 'reauth.overrides: [{helps}]'") for line in seen.told)


@pytest.mark.parametrize(
    ("throttled_at", "size", "event"),
    [
        (50, 40_000, (30_000, "producer_byte_rate of user=alice")),
        (10, 40_000, (None, None)),  # it was read again before the end
        (61, 40_000, (None, None)),  # the end was before it
    ],
)
def test_a_throttle_beyond_the_end_of_a_session_is_recorded(
    throttled_at: int, size: int, event: tuple[int | None, str | None]
) -> None:
    """The client could not re-authenticate in time, at Kafka no more than here."""
    seen = logged_in()
    table = UsageTable(1, WindowConfig(), rows=8)
    meter = Meter(table, 0, kind="PRODUCE", tags={"user": "alice"}, limit=1_000.0)
    throttle = Throttle({ClientQuotaType.PRODUCE: meter}, Mode.ENFORCE, lambda _: None)
    seen.connection.throttling = Throttling(throttle, seen.connection.pipe)
    throttle.produced(size, NOW + throttled_at)
    seen.observer.expired(seen.connection, session(Enforcement.ENFORCE), PRODUCE, NOW + 81)
    killed = read(seen.lines[-1])
    assert (killed.throttled_ms, killed.throttled_by) == event
    cause = f" during a throttle of {event[0]} ms by {event[1]!r}" if event[0] else ""
    logged = seen.told[-1].split(", ")[0]
    assert logged == f"closed: session expired before Produce{cause}"
    assert (f"would help 'a higher {event[1]}: the client" in seen.told[-1]) is bool(event[0])


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({}, "denied", "WRITE on TOPIC orders"),
        ({"would_be": True}, "would-be-denied", "WRITE on TOPIC orders"),
        (UNJUDGED | {"name": "Produce v2", "would_be": True}, "would-be-denied", "Produce v2"),
    ],
)
def test_a_denial(changes: dict[str, Any], kind: str, what: str) -> None:
    seen = logged_in()
    notice = DenialNotice(denial=DENIAL._replace(**changes), count=3)
    seen.observer.denied(seen.connection, notice, NOW + 1)
    one = seen.only()
    assert (one.kind, one.what, one.times) == (kind, what, 3)


def test_administration_is_recorded_for_a_bounded_number_of_resources() -> None:
    seen = logged_in()
    result = CreateTopicsResponse.CreatableTopicResult
    topics = (result(name=f"t{number}", error_code=36) for number in range(MAX_OUTCOMES + 3))
    body = encode(CreateTopicsResponse(topics=tuple(topics)), 5)
    answered = Administered(route_key(CREATE_TOPICS, 5), NOW + 1, response=body)
    seen.observer.administered(seen.connection, answered)
    seen.observer.administered(seen.connection, answered._replace(response=None))
    *events, unknown = map(read, seen.lines[-MAX_OUTCOMES - 1 :])
    assert {(one.kind, one.api_key, one.error_code, one.resources_omitted) for one in events} == {
        ("administered", CREATE_TOPICS, 36, 3)
    }
    assert [one.resource_name for one in events] == [f"t{n}" for n in range(MAX_OUTCOMES)]
    assert (unknown.kind, unknown.resource_name, unknown.error_code) == ("administered", None, None)


@pytest.mark.parametrize("reason", CloseReason)
def test_an_end_unless_it_is_usual_or_told_otherwise(reason: CloseReason) -> None:
    """Once: the summary row of the same end says nothing new."""
    seen = logged_in()
    seen.observer.closed(seen.connection, reason, NOW + 1)
    assert [one.what for one in seen.noted] == [str(reason)] * (str(reason) in INCIDENT_CLOSES)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (CloseReason.DRAINED, "the proxy was stopped or replaced, or an operator drained it"),
        (CloseReason.KILLED, "an operator closed it"),
    ],
)
def test_what_the_operator_ends_is_logged(reason: CloseReason, text: str) -> None:
    seen = Observed()
    seen.connection.authentication.client_id = "orders"
    seen.log_in(session(Enforcement.ENFORCE))
    seen.observer.closed(seen.connection, reason, NOW + 1)
    assert len(seen.told) == 1
    assert seen.told[0].startswith(f"closed: {text}, from ")
    assert "principal 'User:alice'" in seen.told[0]
    assert "client id 'orders'" in seen.told[0]


def test_what_goes_well_is_none() -> None:
    seen = logged_in()
    seen.observer.sweep(seen.connection, NOW + 10_000)
    assert [read(line).kind for line in seen.lines] == ["authenticated", "checkpoint", "summary"]
    assert seen.noted == []


def test_long_names_are_cut() -> None:
    """A token's subject may have half a megabyte."""
    seen = Observed()
    seen.connection.authentication.client_id = "y" * 30_000
    seen.log_in(session(Enforcement.ENFORCE, principal="User:" + "x" * 500_000))
    seen.observer.expired(seen.connection, session(Enforcement.ENFORCE), PRODUCE, NOW + 61)
    one = seen.only()
    assert one.principal is not None
    assert one.client_id is not None
    assert len(one.principal) == len(one.client_id) == 256


def test_failed_logins_beyond_the_logs_limit_are_counted_and_shown() -> None:
    """Nobody can push others' events out of the log, nor hide a failure among many."""
    event_limit, tally, written = UnauthenticatedEventLimit(workers=1), Tally(run="r"), 0
    for _ in range(5_000):
        seen = Observed(event_limit, tally)
        seen.observer.authentication_failed(seen.connection, REFUSED, NOW + 1)
        seen.observer.closed(seen.connection, CloseReason.AUTHENTICATION_FAILED, NOW + 1)
        assert [read(line).sequence for line in seen.lines] in ([0, 1], [])
        assert len(seen.noted) == 1, "on the status page"
        written += len(seen.lines)
    assert 0 < written < 5_000
    assert event_limit.dropped == 2 * 5_000 - written
    failures = tally.snapshot().values[registry.AUTHENTICATION_FAILURES.name]
    assert failures == {("clients", "SCRAM-SHA-256", "bad_credentials"): 5_000}


def test_a_client_that_was_known_is_told_of_however_many_unknown_ones_there_are() -> None:
    """Its failed re-authentication and its end, and the login of one that comes then."""
    event_limit = UnauthenticatedEventLimit(workers=1)
    for _ in range(5_000):
        other = Observed(event_limit)
        other.observer.authentication_failed(other.connection, REFUSED, NOW)
    assert event_limit.dropped
    seen = Observed(event_limit)
    as_alice = session(Enforcement.ENFORCE)
    seen.log_in(as_alice)
    again = replace(REFUSED, previous=as_alice)
    seen.observer.authentication_failed(seen.connection, again, NOW + 1)
    seen.observer.closed(seen.connection, CloseReason.AUTHENTICATION_FAILED, NOW + 1)
    kinds = [read(line).kind for line in seen.lines]
    assert kinds == ["authenticated", "failed", "closed", "summary"]


class TestLoginsThatReachNoBroker:
    def recorded(self, limit: UnauthenticatedEventLimit) -> list[str]:
        """The kinds of events of a client that logs in, and whose broker is down."""
        seen = Observed(limit)
        seen.log_in(session(Enforcement.ENFORCE))
        assert seen.lines == []
        seen.observer.closed(seen.connection, CloseReason.BROKER_UNREACHABLE, NOW + 3)
        return [read(line).kind for line in seen.lines]

    def test_are_recorded_whole_or_not_at_all_within_the_limit(self) -> None:
        limit, kinds = UnauthenticatedEventLimit(workers=1), list[list[str]]()
        while recorded := self.recorded(limit):
            kinds.append(recorded)
        assert set(map(tuple, kinds)) == {("authenticated", "closed", "summary")}
        assert limit.dropped == 3

    def test_are_recorded_if_they_last(self) -> None:
        seen = Observed()
        seen.log_in(session(Enforcement.ENFORCE))
        seen.observer.sweep(seen.connection, NOW + 60)
        assert [read(line).kind for line in seen.lines] == ["authenticated"]

    def test_do_not_limit_those_that_reach_one(self) -> None:
        limit = UnauthenticatedEventLimit(workers=1)
        while self.recorded(limit):
            pass
        seen = Observed(limit)
        seen.log_in(session(Enforcement.ENFORCE))
        seen.observer.reached_broker(seen.connection)
        seen.observer.closed(seen.connection, CloseReason.CLIENT_CLOSED, NOW + 3)
        assert len(seen.lines) == 3


# --- clients without SASL: that they are connected, and what they are denied

ALICE = "User:CN=alice"


def test_versions_that_kafka_4_dropped_are_reported_by_name() -> None:
    reported: list[str] = []
    observer = observer_of(emit=reported.append)
    play = Playbook(offer=everything(enforces_acls=False))
    observer.opened(play.connection, NOW)
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    observer.authenticated(play.connection, play.session)
    play.client(request(PRODUCE, 2, 3, b"\xff\xff"), request(FETCH, 3, 4), request(FETCH, 4, 5))
    observer.closed(play.connection, CloseReason.CLIENT_CLOSED, NOW + 1)
    (event,) = map(read, reported)
    assert (event.kind, event.principal, event.client_id) == ("closed", ALICE, "app")
    versions = [(one.api, one.version) for one in event.dropped_versions or ()]
    assert versions == [("Produce", 2), ("Fetch", 3)]


def test_no_metric_of_kip_368_counts_it_and_no_event_but_a_denial_tells_of_it() -> None:
    reported: list[str] = []
    noted: list[Incident] = []
    tally = Tally(run="r")
    observer = observer_of(emit=reported.append, note=noted.append, tally=tally)
    play = Playbook()
    observer.opened(play.connection, NOW)
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    observer.authenticated(play.connection, play.session)
    denial = DENIAL._replace(principal=ALICE)
    observer.denied(play.connection, DenialNotice(denial=denial, count=1), NOW)
    observer.sweep(play.connection, NOW + 100_000)
    observer.closed(play.connection, CloseReason.CLIENT_CLOSED, NOW + 100_001)

    (event,) = map(read, reported)
    assert (event.kind, event.principal) == ("denied", ALICE)
    (incident,) = noted
    assert (incident.kind, incident.principal) == ("denied", ALICE)
    counters = tally.snapshot().values
    assert {name for name, sets in counters.items() if any(sets.values())} == {
        registry.CONNECTIONS_OPENED.name,
        registry.CONNECTIONS_CLOSED.name,
    }
