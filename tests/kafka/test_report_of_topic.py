"""The readiness report of a topic, with librdkafka and DuckDB, and with Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import obstore
import pytest
from obstore.store import S3Store
from typer.testing import CliRunner, Result

from benchmarks.events.generate import EPOCH, generate
from metrics.readiness import topic_table
from proxy.cli import app
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.clients import confluent_admin, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.spark_jars import spark_jars
from tests.support.readiness import comparable

pytestmark = pytest.mark.kafka

NOBODY = "127.0.0.1:1"
"""An address without a broker."""
AS_OF = "2026-06-02T00:00"
SMALL_GARBAGE: Sequence[bytes | None] = (
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
)
"""Values that any client with WRITE on the topic may produce."""
GARBAGE = (*SMALL_GARBAGE, *[b'{"kind":"x","intervals":[' + b"{}," * 9_000 + b"{}]}"] * 600)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_garbage_is_set_aside_and_counted(
    kafka: KafkaCluster, wide: str, events: Path, written: list[bytes], tmp_path: Path
) -> None:
    produce(kafka, wide, [*GARBAGE, *written, *SMALL_GARBAGE])
    facts = facts_of(wide, tmp_path / "report", "--bootstrap-server", kafka.bootstrap())
    clean = report_of(events)
    worthy = sum(1 for value in (*GARBAGE, *SMALL_GARBAGE) if value and value.strip())
    lines = dict(clean["lines"])
    lines["lines"] += worthy
    lines["unreadable"] += worthy
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


# --- with Spark: of a topic, and between buckets with S3A

SPARK_AS_OF = datetime.fromtimestamp(EPOCH + SIZE.days * 86_400, UTC).isoformat()
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
        self._common += ["--as-of", SPARK_AS_OF]
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
def reports(connector: str, kafka: KafkaCluster, wide: str, tmp_path: Path) -> Iterator[Reports]:
    kafka.add_scram_user(READER, password_of(READER), SCRAM)
    made = Reports(connector, tmp_path, wide, kafka)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_topic_that_grows_is_read_to_the_same_report_as_all_of_it_at_once(
    kafka: KafkaCluster,
    wide: str,
    reports: Reports,
    events: Path,
    written: list[bytes],
    tmp_path: Path,
) -> None:
    state, lines = str(tmp_path / "state"), written
    half = len(lines) // 2
    produce(kafka, wide, lines[half:])
    first = reports.facts("first", "--state", state)
    assert first["lines"]["lines"] == len(lines) - half
    produce(kafka, wide, lines[: half + TWICE])
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


@pytest.mark.slow
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
