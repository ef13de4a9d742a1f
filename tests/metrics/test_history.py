import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metrics.event_schema import ApiVersion, AuthInterval, SessionEvent
from metrics.events import MAX_INTERVALS, MAX_TEXT_CHARS, EventKind
from metrics.history import Cadence, Timeline
from metrics.period import LATENCY_GAMMA, latency_bucket
from tests.support.metrics import EPOCH_MS, grant, history, to_json_line, used


def test_login_reauthentication_and_close() -> None:
    session = history()
    (login,) = session.authenticated(grant(), used(0, None), 1.0)
    (again,) = session.authenticated(grant(latency=0.25), used(10, 50.0), 55.0)
    closed, summary = session.closed("client_closed", used(12, 56.0), 60.0)

    assert [login.kind, again.kind, closed.kind] == ["authenticated", "reauthenticated", "closed"]
    assert [login.sequence, again.sequence, closed.sequence, summary.sequence] == [0, 1, 2, 3]
    assert (login.since_auth_ms, login.authenticated_ms) == (0, EPOCH_MS + 1000)
    assert (again.since_auth_ms, again.authenticated_ms) == (54_000, EPOCH_MS + 55_000)
    assert (again.auth_latency_us, again.authentications) == (250_000, 2)
    assert (again.requests, again.request_bytes, again.response_bytes) == (10, 1000, 500)
    assert (closed.requests, closed.since_auth_ms) == (2, 5000)
    assert (closed.close_reason, closed.last_request_ms) == ("client_closed", EPOCH_MS + 56_000)

    assert (summary.requests, summary.reauthentications, summary.final) == (12, 1, True)
    first, second = summary.intervals or ()
    assert (first.number, first.requests, first.last_request_since_auth_ms) == (1, 10, 49_000)
    assert (first.ended_since_auth_ms, first.ended_by) == (54_000, "reauthenticated")
    assert (second.number, second.requests, second.last_request_since_auth_ms) == (2, 2, 1000)
    assert (second.ended_since_auth_ms, second.ended_by) == (5000, "closed")


def test_clients_without_reauthentication_have_an_event_of_their_own() -> None:
    """KIP-368 counts SaslAuthenticate v0 and raw tokens, at the login alone."""
    for version, kinds in ((None, 2), (0, 2), (1, 1), (2, 1)):
        session = history(authenticate_version=version)
        assert len(session.authenticated(grant(), used(0, None), 1.0)) == kinds
        assert len(session.authenticated(grant(), used(0, None), 5.0)) == 1


def test_a_failed_reauthentication_does_not_reset_the_age() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    failed = session.failed("bad_credentials", used(1, 30.0), 40.0)
    _, summary = session.closed("authentication_failed", used(1, 30.0), 40.2)
    assert (failed.since_auth_ms, failed.authentications) == (40_000, 1)
    assert (summary.intervals or ())[0].ended_by == "failed"


def test_a_session_continues_after_a_refused_reauthentication() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    session.failed("illegal_state", used(1, 0.4), 0.5)
    session.authenticated(grant(), used(1, 0.4), 2.0)
    _, summary = session.closed("client_closed", used(2, 3.0), 3.0)
    ends = [interval.ended_by for interval in summary.intervals or ()]
    assert ends == ["reauthenticated", "closed"]


def test_a_failed_login_names_nobody() -> None:
    """A principal that was merely claimed is not written."""
    session = history()
    failed = session.failed("bad_credentials", used(0, None), 1.0)
    assert failed.principal is None
    assert failed.since_auth_ms is None
    assert [
        event.kind for event in session.closed("authentication_failed", used(0, None), 1.1)
    ] == ["closed"]


def test_who_never_began_sasl_is_not_told() -> None:
    """Health checks and port scans would fill the log."""
    session = history()
    session.client.handshake_version = None
    assert session.closed("client_closed", used(0, None), 1.0) == []


def test_who_means_another_broker_is_told_of_with_whom_it_meant() -> None:
    """Before a login, too; what is not known is left out."""
    session = history()
    meant: dict[str, Any] = {"meant_cluster_id": "k" * 40_000, "meant_node_id": -2}
    event = session.misrouted(**meant, cluster_id=None, node_id=None, usage=used(0, None), now=1.0)
    assert (event.kind, event.principal, event.meant_node_id) == ("misrouted", None, -2)
    assert len(event.meant_cluster_id or "") == MAX_TEXT_CHARS
    assert (event.cluster_id, event.node_id) == (None, None)
    event = session.misrouted(**meant, cluster_id="c", node_id=3, usage=used(0, None), now=2.0)
    assert (event.sequence, event.cluster_id, event.node_id) == (1, "c", 3)


def test_groups_stand_in_authentications_with_those_that_came_and_went() -> None:
    session = history()
    (login,) = session.authenticated(grant(groups=("Group:a", "Group:b")), used(0, None), 1.0)
    assert (login.groups, login.groups_joined) == (("Group:a", "Group:b"), None)
    (again,) = session.authenticated(grant(groups=("Group:b", "Group:c")), used(0, None), 2.0)
    assert again.groups == ("Group:b", "Group:c")
    assert (again.groups_joined, again.groups_left) == (("Group:c",), ("Group:a",))
    (same,) = session.authenticated(grant(groups=("Group:b", "Group:c")), used(0, None), 3.0)
    assert (same.groups_joined, same.groups_left) == (None, None)
    (without,) = session.authenticated(grant(), used(0, None), 4.0)
    assert (without.groups, without.groups_left) == (None, ("Group:b", "Group:c"))


def test_dropped_versions_stand_in_every_line_from_their_use_on() -> None:
    session = history()
    (login,) = session.authenticated(grant(), used(0, None), 1.0)
    session.client.dropped_versions = [("Produce", 2), ("Fetch", 0)]
    lines = [*session.sweep(used(1, 2.0), 3_700.0), *session.closed("idle", used(1, 2.0), 3_701.0)]
    assert login.dropped_versions is None
    assert len(lines) == 4
    for line in lines:
        assert line.dropped_versions == (
            ApiVersion(api="Produce", version=2),
            ApiVersion(api="Fetch", version=0),
        )


def test_who_has_no_sasl_is_recorded_for_dropped_versions() -> None:
    session = history()
    session.client.handshake_version = None
    session.client.principal = "User:ANONYMOUS"
    session.client.dropped_versions = [("Produce", 2)]
    assert session.sweep(used(1, 2.0), 60.0) == []
    (checkpoint,) = session.sweep(used(1, 2.0), 900.0)
    (closed,) = session.closed("client_closed", used(1, 2.0), 901.0)
    assert [checkpoint.kind, closed.kind] == [EventKind.CHECKPOINT, EventKind.CLOSED]
    for line in (checkpoint, closed):
        assert (line.principal, line.authentications) == ("User:ANONYMOUS", 0)
        assert line.dropped_versions == (ApiVersion(api="Produce", version=2),)


def test_an_expired_session_is_reported_once_until_it_is_renewed() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    first = session.would_be_killed(3, used(1, 61.0), 61.0)
    assert first is not None
    assert (first.since_auth_ms, first.api_key, first.session_lifetime_ms) == (61_000, 3, 60_000)
    assert session.would_be_killed(3, used(2, 62.0), 62.0) is None
    session.authenticated(grant(), used(2, 62.0), 63.0)
    assert session.would_be_killed(3, used(3, 130.0), 130.0) is not None
    _, summary = session.closed("client_closed", used(3, 130.0), 131.0)
    assert summary.would_be_kills == 2


def test_uses_of_an_expired_session_are_counted_until_it_is_renewed() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    past = session.would_be_killed(3, used(5, 60.0), 61.0)
    assert past is not None
    (checkpoint,) = session.sweep(used(7, 62.0), 1000.0)
    (again,) = session.authenticated(grant(), used(8, 1001.0), 1002.0)
    closed, summary = session.closed("client_closed", used(20, 1010.0), 1011.0)
    lines = [past, checkpoint, again, closed, summary]
    assert [line.expired_requests for line in lines] == [0, 2, 1, 0, 3]


def test_the_refused_request_is_a_use_of_the_session() -> None:
    """It is not forwarded and not counted, but without it the what-if would miss a real kill."""
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    killed = session.expired_killed(1, used(4, 10.0), 75.0)
    _, summary = session.closed("expired", used(4, 10.0), 75.0)
    (interval,) = summary.intervals or ()
    assert (killed.since_auth_ms, killed.requests) == (75_000, 4)
    assert (interval.last_request_since_auth_ms, interval.requests) == (75_000, 4)
    assert interval.ended_by == "expired-killed"


def test_sweeps_write_checkpoints_and_hourly_rows() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    written = [
        (minute, event.kind)
        for minute in range(1, 121)
        for event in session.sweep(used(minute, minute * 60.0 - 30), minute * 60.0)
    ]
    checkpoints = [(minute, EventKind.CHECKPOINT) for minute in range(15, 121, 15)]
    rows = [(minute, EventKind.SUMMARY) for minute in (60, 120)]
    assert sorted(written) == sorted(checkpoints + rows)


def test_an_interval_that_spans_rows_stands_in_each() -> None:
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    (row,) = (e for e in session.sweep(used(9, 3599.0), 3600.0) if e.kind is EventKind.SUMMARY)
    _, final = session.closed("client_closed", used(11, 4000.0), 4100.0)
    (going_on,), (ended,) = row.intervals or (), final.intervals or ()
    assert (going_on.number, ended.number) == (1, 1)
    assert (going_on.ended_by, going_on.ended_since_auth_ms) == (None, None)
    assert (going_on.last_request_since_auth_ms, going_on.requests) == (3_599_000, 9)
    assert (ended.last_request_since_auth_ms, ended.requests) == (4_000_000, 11)
    assert (row.requests, final.requests) == (9, 2)
    assert final.period_start_ms == row.timestamp_ms
    assert (row.reauthentications, final.reauthentications) == (0, 0)


def test_unauthenticated_connections_have_no_rows() -> None:
    assert history().sweep(used(0, None), 7200.0) == []


def test_too_many_intervals_leave_out_the_least_used() -> None:
    """A client that re-authenticates every second must not grow a row, nor hide a long interval."""
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    now = 500.0
    session.authenticated(grant(), used(1, 499.0), now)
    for step in range(200):
        now += 1 + step % 7
        session.authenticated(grant(), used(2 + step, now - 0.5), now)
    _, summary = session.closed("client_closed", used(300, now), now)
    intervals = summary.intervals or ()
    assert len(intervals) < MAX_INTERVALS
    assert len(intervals) + (summary.intervals_omitted or 0) == 202
    assert max(held.last_request_since_auth_ms or 0 for held in intervals) == 499_000
    kept = [held.last_request_since_auth_ms or 0 for held in intervals]
    assert sorted(kept)[1] >= (summary.intervals_omitted_used_ms or 0)
    assert [held.number for held in intervals] == sorted(held.number for held in intervals)


def test_the_timeline_follows_a_clock_that_was_set() -> None:
    timeline = Timeline(wall=1000.0, now=0.0)
    timeline.adjust(wall=1060.4, now=60.0)
    assert timeline.epoch_ms(60.0) == 1_060_000
    timeline.adjust(wall=5000.0, now=60.0)
    assert timeline.epoch_ms(61.0) == 5_001_000


@given(st.integers(1, 10**10))
def test_latency_buckets_are_exact_to_a_hundredth(latency_us: int) -> None:
    bucket = latency_bucket(latency_us)
    middle = 2 * LATENCY_GAMMA**bucket / (LATENCY_GAMMA + 1)
    assert math.isclose(middle, latency_us, rel_tol=0.01)


def test_latencies_of_a_row() -> None:
    session = history()
    for now, latency in enumerate((0.5, 0.001, 0.001, 0.02)):
        session.authenticated(grant(latency=latency), used(0, None), float(now))
    _, summary = session.closed("client_closed", used(0, None), 9.0)
    assert [(cell.bucket, cell.count) for cell in summary.reauth_latencies or ()] == [
        (latency_bucket(1000), 2),
        (latency_bucket(20_000), 1),
    ]


@dataclass
class Life:
    """A connection's true life: when it authenticated, when it was used. Whole seconds."""

    authentications: list[int]
    requests: list[int]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    moments = st.lists(st.integers(1, 4 * 3600), max_size=60, unique=True)
    requests = sorted(draw(moments))
    later = draw(st.lists(st.integers(1, 4 * 3600), max_size=6, unique=True))
    return Life([0, *sorted(set(later) - set(requests))], requests)


def play(life: Life) -> list[SessionEvent]:
    """Replay it in a history that is swept each minute and closed at the end."""
    session = history(cadence=Cadence())
    events: list[SessionEvent] = []
    seen: list[int] = []
    occurrences = sorted(
        [(at, 0) for at in life.authentications]
        + [(at, 1) for at in life.requests]
        + [(at * 60, -1) for at in range(1, 241)]
    )
    for at, what in occurrences:
        usage = used(len(seen), float(seen[-1]) if seen else None)
        if what == 0:
            events += session.authenticated(grant(), usage, float(at))
        elif what == 1:
            seen.append(at)
        else:
            events += session.sweep(usage, float(at))
    usage = used(len(seen), float(seen[-1]) if seen else None)
    return events + session.closed("client_closed", usage, 4 * 3600 + 1.0)


def intervals_of(rows: list[SessionEvent]) -> dict[int, AuthInterval]:
    """As docs/events.md says: by number, the latest row counts."""
    ordered = sorted(rows, key=lambda row: row.sequence)
    return {held.number: held for row in ordered for held in row.intervals or ()}


@given(lives(), st.integers(1, 4 * 3600))
def test_rows_answer_what_any_lifetime_would_have_done(life: Life, lifetime: int) -> None:
    """Against KIP-368's rule applied to every single request."""
    rows = [event for event in play(life) if event.kind is EventKind.SUMMARY]
    recorded = intervals_of(rows)
    begins = [*life.authentications, math.inf]
    for number, (begin, end) in enumerate(pairwise(begins), start=1):
        within = [at for at in life.requests if begin < at < end]
        overused = [at - begin for at in within if at - begin > lifetime]
        used_ms = recorded[number].last_request_since_auth_ms
        assert ((used_ms or 0) > lifetime * 1000) == bool(overused)
        if overused:
            assert used_ms == max(overused) * 1000
        assert recorded[number].requests == len(within)


@given(lives())
def test_active_minutes_are_those_with_requests(life: Life) -> None:
    rows = [event for event in play(life) if event.kind is EventKind.SUMMARY]
    active = {
        (row.active_from_ms or 0) // 60_000 + bit - EPOCH_MS // 60_000
        for row in rows
        for bit in range(63)
        if (row.active_minutes or 0) >> bit & 1
    }
    assert active == {at // 60 for at in life.requests}


def kills(uses: Iterable[tuple[float, float]], lifetime: int) -> int:
    """Count kills; a use is when it is at the latest past expiry, and when the next one begins."""
    begun, count = 0.0, 0
    for judged, begins in uses:
        if judged > begun + lifetime:
            begun, count = begins, count + 1
    return count


@given(lives(), st.integers(60, 3600))
def test_kills_lie_between_the_two_counts_by_minute(life: Life, lifetime: int) -> None:
    """How often, for a client that never re-authenticates: docs/events.md claims both bounds."""
    rows = [e for e in play(Life([0], life.requests)) if e.kind is EventKind.SUMMARY]
    minutes = [
        ((row.active_from_ms or 0) - EPOCH_MS) // 1000 + 60 * bit
        for row in rows
        for bit in range(63)
        if (row.active_minutes or 0) >> bit & 1
    ]
    true = kills(((at, at) for at in life.requests), lifetime)
    assert kills(((minute, minute + 60) for minute in minutes), lifetime) <= true
    assert kills(((minute + 60, minute) for minute in minutes), lifetime) >= true


@given(lives())
def test_either_view_adds_up_to_the_total(life: Life) -> None:
    events = play(life)
    assert [event.sequence for event in events] == list(range(len(events)))
    for view in (True, False):
        part = [event for event in events if (event.kind is EventKind.SUMMARY) is view]
        assert sum(event.requests for event in part) == len(life.requests)


def test_a_row_stays_small() -> None:
    """46,000 connections write a row an hour: some 1.5 KB each, not more."""
    session = history()
    session.authenticated(grant(), used(0, None), 0.0)
    (row,) = (e for e in session.sweep(used(9, 3599.0), 3600.0) if e.kind is EventKind.SUMMARY)
    assert len(to_json_line(row)) < 1500
    assert row.active_minutes == 1 << 59


def test_without_sasl_only_denials_are_recorded() -> None:
    """There is no session; but whom ACLs stop, an operator must find by name."""
    session = history()
    session.client.mechanism = session.client.handshake_version = None
    session.client.authenticate_version = None
    session.client.principal = "User:CN=alice"
    denied = session.denied(
        would_be=True,
        operation="READ",
        resource_type="TOPIC",
        resource_name="orders",
        denials=2,
        usage=used(3, 5.0),
        now=6.0,
    )
    assert (denied.principal, denied.authentications) == ("User:CN=alice", 0)
    assert (denied.mechanism, denied.since_auth_ms, denied.session_lifetime_ms) == (None,) * 3
    assert session.sweep(used(3, 5.0), 10_000.0) == []
    assert session.closed("client_closed", used(3, 5.0), 10_001.0) == []
