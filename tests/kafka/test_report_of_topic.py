"""The readiness report of a topic, with librdkafka and DuckDB instead of Spark."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from typer.testing import CliRunner, Result

from benchmarks.events.generate import generate
from metrics.readiness import topic_table
from proxy.cli import app
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.clients import confluent_admin
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.readiness import comparable

pytestmark = pytest.mark.kafka

NOBODY = "127.0.0.1:1"
"""An address without a broker."""
AS_OF = "2026-06-02T00:00"
GARBAGE: Sequence[bytes | None] = (
    None,
    b"",
    b"\n",
    b"\x00\xff\xfe",
    b"{",
    b"[1, 2]",
    b'"text"',
    b'{"kind": {"a": [1]}, "sequence": "x"}\n{"kind": 1}',
    b"[" * 20_000,
    os.urandom(50_000),
    b'{"kind":"x","intervals":[' + b"{}," * 20_000 + b"{}]}",
    b'{"kind":"x","client_id":"' + b"x" * 600_000 + b'"}',
    *[b'{"kind":"x","intervals":[' + b"{}," * 9_000 + b"{}]}"] * 600,
)
"""Values that any client with WRITE on the topic may produce."""


@pytest.fixture
def wide(kafka: KafkaCluster, topic: str) -> str:
    """A topic of three partitions."""
    name = f"wide-{topic}"
    forever = {"retention.ms": "-1"}  # the events' times are fixed and would exceed the retention
    kafka.create_topic(name, partitions=3, configs=forever)
    return name


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated") / "events"
    generate(SIZE, folder, parquet=False)
    return folder


@pytest.fixture(scope="module")
def written(events: Path) -> list[bytes]:
    return [line for path in events.glob("*.jsonl") for line in path.read_bytes().splitlines()]


def produce(kafka: KafkaCluster, topic: str, values: Sequence[bytes | None]) -> None:
    """Produce without keys, so the lines of a connection are spread over all partitions."""
    failed: list[str] = []
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap()})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 3, on_delivery=noting(failed))
    assert producer.flush(120) == 0
    assert not failed


def noting(failed: list[str]) -> Callable[[confluent.KafkaError | None, confluent.Message], None]:
    """Return a delivery callback."""

    def note(error: confluent.KafkaError | None, _message: confluent.Message) -> None:
        if error is not None:
            failed.append(str(error))

    return note


def invoke(topic: str, out: Path, *more: str) -> Result:
    arguments = ["report", "--events", f"kafka:{topic}", "--out", str(out), "--as-of", AS_OF]
    return CliRunner().invoke(app, [*arguments, *more])


def facts_of(topic: str, out: Path, *more: str) -> dict[str, Any]:
    result = invoke(topic, out, *more)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads((out / "report.json").read_text())
    del facts["run_id"], facts["source"]
    return facts


def test_with_a_state_only_what_is_new_is_read(
    kafka: KafkaCluster,
    wide: str,
    events: Path,
    written: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_table, "SMALL_BYTES", 0)  # files are not merged
    half, options = len(written) // 2, ["--bootstrap-server", kafka.bootstrap()]
    state = tmp_path / "state"
    produce(kafka, wide, written[half:])
    first = facts_of(wide, tmp_path / "first", "--state", str(state), *options)
    assert first["lines"]["lines"] == len(written) - half
    kept = {path: path.read_bytes() for path in (state / "topic").glob("*.parquet")}
    produce(kafka, wide, written[:half])
    second = facts_of(wide, tmp_path / "second", "--state", str(state), *options)
    assert {path: path.read_bytes() for path in kept} == kept
    assert comparable(second) == comparable(report_of(events))
    third = facts_of(wide, tmp_path / "third", "--state", str(state), *options)
    assert comparable(third) == comparable(second)


def test_garbage_is_set_aside_and_counted(
    kafka: KafkaCluster, wide: str, events: Path, written: list[bytes], tmp_path: Path
) -> None:
    produce(kafka, wide, [*GARBAGE, *written, *GARBAGE])
    facts = facts_of(wide, tmp_path / "report", "--bootstrap-server", kafka.bootstrap())
    clean = report_of(events)
    worthy = sum(1 for value in GARBAGE if value and value.strip())
    lines = dict(clean["lines"])
    lines["lines"] += 2 * worthy
    lines["unreadable"] += 2 * worthy
    assert facts.pop("lines") == lines
    del clean["lines"]
    assert comparable(facts) == comparable(clean)


def test_a_report_from_a_time_on_reads_no_more_of_the_topic(
    kafka: KafkaCluster, wide: str, written: list[bytes], tmp_path: Path
) -> None:
    """Offsets are found by message time; earlier lines are left out as for a folder."""
    old, new = 1_780_272_000_000, 1_780_300_000_000
    failed: list[str] = []
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap()})
    for number, line in enumerate(written):
        producer.produce(
            wide,
            line,
            partition=0 if number >= 15 else 1,  # has no new lines
            timestamp=old if number < 30 else new,
            on_delivery=noting(failed),
        )
    assert producer.flush(120) == 0
    assert not failed
    options = ["--bootstrap-server", kafka.bootstrap(), "--since", "2026-06-01T02:00"]
    facts = facts_of(wide, tmp_path / "report", *options)
    assert facts["lines"]["lines"] == len(written) - 30


def test_what_cannot_be_read_is_one_line(
    kafka: KafkaCluster, wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic, servers, problem in (
        ("no-such-topic", kafka.bootstrap(), "there is no such topic, or it may not be described"),
        (wide, kafka.bootstrap(), "there are no events in this topic yet"),
        (wide, NOBODY, "no broker answers; check the address, and how clients must connect"),
    ):
        with monkeypatch.context() as patched:
            if servers == NOBODY:
                patched.setattr("metrics.readiness.topic.TIMEOUT_SECONDS", 3.0)
            result = invoke(topic, tmp_path / "report", "--bootstrap-server", servers)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1] == f"reauth-proxy: kafka:{topic}: {problem}"
        assert len(result.stderr.splitlines()) == 2


@pytest.mark.slow
def test_a_partition_without_a_leader_is_named(tmp_path: Path) -> None:
    """librdkafka only reports "Local: Unknown partition"."""
    with KafkaCluster(nodes=1) as cluster:
        other = cluster.add_node()
        admin = confluent_admin.AdminClient({"bootstrap.servers": str(cluster.address())})
        topic = confluent_admin.NewTopic("spread", 3, replica_assignment=[[1], [other], [1]])
        admin.create_topics([topic])["spread"].result(60)
        cluster.stop_node(other)

        def is_without() -> bool:
            partitions = admin.list_topics("spread", timeout=30).topics["spread"].partitions
            return bool(partitions[1].leader < 0)

        wait_until(is_without, what="partition 1 keeps its leader")
        servers = ("--bootstrap-server", str(cluster.address()))
        result = invoke("spread", tmp_path / "report", *servers)
    assert result.exit_code == 2
    problem = f"partition 1 has no leader; start the brokers that have it (node ids {other})"
    assert f"kafka:spread: {problem}, and run the report again\n" in result.stderr


def test_a_state_is_of_one_topic(
    kafka: KafkaCluster, wide: str, written: list[bytes], tmp_path: Path
) -> None:
    produce(kafka, wide, written[:10])
    options = ["--bootstrap-server", kafka.bootstrap(), "--state", str(tmp_path / "state")]
    facts_of(wide, tmp_path / "report", *options)
    result = invoke("another", tmp_path / "report", *options)
    assert result.exit_code == 2
    assert f"belongs to kafka:{wide}; use a separate --state for each topic" in result.stderr
    (tmp_path / "state" / "topic" / "topic.json").write_text("[]")
    result = invoke(wide, tmp_path / "report", *options)
    assert result.exit_code == 2
    assert "damaged" in result.stderr
