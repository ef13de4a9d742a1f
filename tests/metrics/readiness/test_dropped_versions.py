"""Versions that Kafka 4.0 dropped, added up by client, API and version."""

from metrics.event_schema import ApiVersion
from metrics.events import EventKind
from tests.support.readiness import USES_OF_DROPPED, answers, later


def test_each_version_of_a_client_counts_its_connections() -> None:
    found = answers(USES_OF_DROPPED).table("dropped_versions", "principal, api, version")
    assert [
        (row["principal"], row["client_id"], row["api"], row["version"], row["connections"])
        for row in found
    ] == [
        ("User:ANONYMOUS", "app", "Produce", 1, 1),
        ("User:alice", "app", "Fetch", 0, 1),
        ("User:alice", "app", "Produce", 2, 2),
    ]


def test_each_client_stands_once_with_all_its_versions() -> None:
    shown = answers(USES_OF_DROPPED).shown
    alice, anonymous = shown["breaks_at_kafka_4"]
    assert (alice["principal"], alice["connections"]) == ("User:alice", 2)
    assert alice["versions"] == ["Fetch v0", "Produce v2"]
    assert (alice["hosts"], alice["host_count"]) == (["10.0.0.7", "10.0.0.8"], 2)
    assert (anonymous["principal"], anonymous["versions"]) == ("User:ANONYMOUS", ["Produce v1"])
    assert shown["breaks_at_kafka_4_count"] == [{"clients": 2}]


def test_verdicts_are_not_touched() -> None:
    """Who breaks at Kafka 4.0 may well re-authenticate, and has no session without SASL."""
    clients = {
        row["principal"]: row["verdict"] for row in answers(USES_OF_DROPPED).shown["clients"]
    }
    assert clients == {"User:alice": "unproven", "User:new": "unproven"}


def test_who_uses_none_does_not_break() -> None:
    shown = answers(USES_OF_DROPPED[5:7]).shown
    assert shown["breaks_at_kafka_4"] == []
    assert shown["breaks_at_kafka_4_count"] == [{"clients": 0}]


def test_summary_rows_alone_suffice() -> None:
    summary = later(
        EventKind.SUMMARY,
        60,
        final=True,
        intervals=(),
        dropped_versions=(ApiVersion(api="Fetch", version=0),),
    )
    (row,) = answers([summary]).shown["breaks_at_kafka_4"]
    assert row["versions"] == ["Fetch v0"]
