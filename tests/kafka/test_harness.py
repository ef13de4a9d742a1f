"""The harness itself: clusters that lose, move and gain nodes, and Java programs."""

import json
from pathlib import Path

import pytest

from tests.support.kafka import java
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.wire_client import Outcome, WireClient, ask, metadata_fields

pytestmark = pytest.mark.kafka


def test_round_trip_of_the_java_clients(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Produce, transaction, group and admin: what later goes through the proxy."""
    client_properties = tmp_path / "client.properties"
    client_properties.write_text("")
    done = java.run_program(
        "RoundTrip", [kafka.bootstrap(), str(client_properties), "harness", "100"]
    )
    assert done.exit_status == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["step"] for event in events] == [
        "admin",
        "produce",
        "transaction",
        "group",
        "done",
    ]
    assert events[3]["in_order"]


def test_tools_of_the_distribution_run(kafka: KafkaCluster) -> None:
    done = java.run_tool("kafka-topics", ["--bootstrap-server", kafka.bootstrap(), "--list"])
    assert done.exit_status == 0, done.stderr


@pytest.mark.slow
def test_nodes_stop_move_and_join(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=2)
    before = cluster.address(2)
    cluster.kill_node(2)
    with pytest.raises(ConnectionError), WireClient(before):
        pass
    cluster.start_node(2, move=True)
    assert cluster.address(2) != before
    joined = cluster.add_node()
    cluster.stop_node(2)
    answer = ask(cluster.address(joined), 3, 12, metadata_fields())
    assert {broker.node_id for broker in answer.brokers} >= {1, joined}


def test_connection_that_says_nothing_is_silent(kafka: KafkaCluster) -> None:
    """`Outcome.SILENT` and `Outcome.CLOSED` are told apart: every program relies on it."""
    with WireClient(kafka.address()) as client:
        assert client.receive(0.1) is Outcome.SILENT
        client.raw(b"\xff\xff\xff\xff")
        assert client.receive() is Outcome.CLOSED
