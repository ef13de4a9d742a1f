"""The readiness report of events in a Kafka topic, by Spark's connector and a real Kafka.

Read as it grows and read at once, the topic gives the same report.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from benchmarks.events.generate import EPOCH, Size, generate
from tests.support.kafka.clients import password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.spark_jars import spark_jars

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SIZE = Size(connections=24, principals=6, clients=12, days=0.2, seed=5, bad=True)
AS_OF_MS = round((EPOCH + SIZE.days * 86_400) * 1000)
READER = "report-reader"
SCRAM = "SCRAM-SHA-256"
TWICE = 40
"""Lines that the topic has twice, as after a producer's retry."""

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def connector() -> str:
    """Its jars, fetched once."""
    return spark_jars("spark-kafka")


class Reports:
    """A process that makes one report after the other, as a service would."""

    def __init__(self, connector: str, directory: Path, topic: str, kafka: KafkaCluster) -> None:
        self._directory = directory
        self._common = ["--master", "local[2]", "--events", f"kafka:{topic}"]
        self._common += ["--as-of-ms", str(AS_OF_MS)]
        self._common += ["--bootstrap-server", kafka.bootstrap("LONG")]
        self._common += ["--kafka-option", "kafka.security.protocol=SASL_PLAINTEXT"]
        self._common += ["--kafka-option", f"kafka.sasl.mechanism={SCRAM}"]
        program = (
            "import json, sys; from metrics.spark.job import main\n"
            "for line in sys.stdin: print(main(json.loads(line)), flush=True)"
        )
        login = f'username="{READER}" password="{password_of(READER)}"'
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        jaas = directory / "jaas.conf"
        jaas.write_text(f"KafkaClient {{ {module} required {login}; }};\n")
        environment = {
            "PYSPARK_SUBMIT_ARGS": f"--jars {connector} pyspark-shell",
            # a password does not stand on a command line
            "JDK_JAVA_OPTIONS": f"-Djava.security.auth.login.config={jaas}",
        }
        self._said = (directory / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def facts(self, name: str, *more: str) -> Facts:
        """Make one."""
        out = self._directory / name
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([*self._common, "--out", str(out), *more]) + "\n")
        stdin.flush()
        status = stdout.readline().strip()
        assert status == "0", (self._directory / "stderr").read_text()[-2000:]
        found: Facts = json.loads((out / "report.json").read_text())
        return found

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=300)
        self._said.close()


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"session-events-{uuid.uuid4()}"
    kafka.create_topic(name, partitions=3)
    kafka.add_scram_user(READER, password_of(READER), SCRAM)
    return name


@pytest.fixture
def reports(connector: str, kafka: KafkaCluster, topic: str, tmp_path: Path) -> Iterator[Reports]:
    made = Reports(connector, tmp_path, topic, kafka)
    try:
        yield made
    finally:
        made.close()


def produce(kafka: KafkaCluster, topic: str, lines: Sequence[str]) -> None:
    """Without keys: the lines of a connection are spread over the partitions, in no order."""
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap()})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % 3)
    assert producer.flush(120) == 0


def test_a_topic_that_grows_is_read_to_the_same_report_as_all_of_it_at_once(
    kafka: KafkaCluster, topic: str, reports: Reports, tmp_path: Path
) -> None:
    events, state = tmp_path / "events", str(tmp_path / "state")
    generate(SIZE, events, parquet=False)
    (file,) = events.glob("*.jsonl")
    lines = file.read_text().splitlines()
    half = len(lines) // 2
    produce(kafka, topic, lines[half:])
    first = reports.facts("first", "--state", state)
    assert first["lines"]["lines"] == len(lines) - half
    produce(kafka, topic, lines[: half + TWICE])
    streamed = reports.facts("streamed", "--state", state)
    at_once = reports.facts("at-once")
    for key in set(streamed) - {"source", "run_id"}:
        assert streamed[key] == at_once[key], key
    assert streamed["lines"]["lines"] == len(lines) + TWICE
    assert streamed["lines"]["duplicate"] >= TWICE
    assert streamed["lines"]["missing"] == 0
    truth = json.loads((events / "truth.json").read_text())
    assert {row["client_id"]: row["verdict"] for row in streamed["clients"]} == truth
