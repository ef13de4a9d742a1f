"""Reports with Spark: of a topic, and between buckets with S3A."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import obstore
import pytest
from obstore.store import S3Store

from benchmarks.events.generate import EPOCH, generate
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.clients import password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.spark_jars import spark_jars
from tests.support.readiness import comparable

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

AS_OF = datetime.fromtimestamp(EPOCH + SIZE.days * 86_400, UTC).isoformat()
READER = "report-reader"
SCRAM = "SCRAM-SHA-256"
TWICE = 40
"""Lines that are duplicated in the topic, as after a retry."""

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def connector() -> str:
    """Jars of Spark's Kafka connector, downloaded once."""
    return spark_jars("spark-kafka")


class Reports:
    """A process that makes several reports, like a service."""

    def __init__(self, connector: str, directory: Path, topic: str, kafka: KafkaCluster) -> None:
        self._directory = directory
        self._common = ["--master", "local[2]", "--events", f"kafka:{topic}"]
        self._common += ["--as-of", AS_OF]
        self._common += ["--bootstrap-server", kafka.bootstrap("LONG")]
        properties = directory / "client.properties"
        properties.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={SCRAM}\n")
        self._common += ["--command-config", str(properties)]
        program = (
            "import json, sys; from typer.testing import CliRunner; from proxy.cli import app\n"
            "for line in sys.stdin:\n"
            "    done = CliRunner().invoke(app, ['report', *json.loads(line)])\n"
            "    print(done.stderr, file=sys.stderr)\n"
            "    print(done.exit_code, flush=True)"
        )
        login = f'username="{READER}" password="{password_of(READER)}"'
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        jaas = directory / "jaas.conf"
        jaas.write_text(f"KafkaClient {{ {module} required {login}; }};\n")
        environment = {
            "PYSPARK_SUBMIT_ARGS": f"--jars {connector} pyspark-shell",
            # keeps the password off the command line
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
    """Produce without keys, so the lines of a connection are spread over all partitions."""
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


# --- from a bucket to a bucket

OUT = "s3a://events/fleet/report"
CLUSTER = "local-cluster[2,1,1024]"
COMMON = ("--master", "local[2]", "--as-of", "2026-06-02T00:00", "--out", OUT)


@pytest.fixture(scope="module")
def jars() -> str:
    """Jars for S3A, downloaded once."""
    return spark_jars("spark-s3a", "-P", "s3a")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated") / "events"
    generate(SIZE, folder, parquet=False)
    return folder


def run(server: str, jars: str, *options: str) -> "subprocess.CompletedProcess[str]":
    settings = {
        "spark.hadoop.fs.s3a.endpoint": server,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.retry.limit": "1",
    }
    confs = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return subprocess.run(
        [sys.executable, "-m", "proxy", "report", *COMMON, *options],
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": f"{confs} --jars {jars} pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=900,
    )


def published() -> dict[str, Any]:
    """Facts of a report; asserts that its files are from one run."""
    store = S3Store("events", prefix="fleet/report")
    facts: dict[str, Any] = json.loads(bytes(obstore.get(store, "report.json").bytes()))
    run_id = facts.pop("run_id")
    assert run_id.encode() in bytes(obstore.get(store, "index.html").bytes())
    assert b"readiness_clients" in bytes(obstore.get(store, "report.prom").bytes())
    table = obstore.get(store, f"runs/{run_id}/tables/clients/part-00000.parquet")
    assert bytes(table.bytes()).startswith(b"PAR1")
    del facts["source"]
    return facts


@pytest.mark.usefixtures("object_store")
def test_from_a_bucket_to_a_bucket(object_server: str, jars: str, events: Path) -> None:
    """Reading a pattern, or everything with a state, gives the same report as the folder."""
    store = S3Store("events", prefix="fleet/events")
    for number, file in enumerate(sorted(events.glob("*.jsonl*"))):
        obstore.put(store, f"date={number}/{file.name}", file.read_bytes())
    obstore.put(store, "_temporary/half.jsonl", b"half")
    wanted = report_of(events)
    rest = {name: fact for name, fact in wanted.items() if name not in {"engine", "lines"}}
    for given, engine in (
        (("--events", "s3a://events/fleet/ev*"), "duckdb"),
        (
            (
                *("--events", "s3a://events/fleet/events", "--state", "s3a://events/fleet/state"),
                *("--master", CLUSTER),
            ),
            "spark+duckdb",
        ),
    ):
        done = run(object_server, jars, *given)
        assert done.returncode == 0, done.stderr[-3000:]
        facts = published()
        assert facts.pop("engine") == engine
        assert facts.pop("lines") == wanted["lines"]
        assert comparable(facts) == comparable(rest)
    done = run(object_server, jars, "--events", "s3a://missing/events")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("there is no such bucket")
