"""Report of events in a bucket, written to a bucket, by Hadoop's S3A really run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from benchmarks.events.generate import generate
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.spark_jars import spark_jars
from tests.support.readiness import comparable

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("object_store")]

OUT = "s3a://events/fleet/report"
CLUSTER = "local-cluster[2,1,1024]"
COMMON = ("--master", "local[2]", "--as-of", "2026-06-02T00:00", "--out", OUT)


@pytest.fixture(scope="module")
def jars() -> str:
    """S3A's jars, fetched once."""
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
    """The facts of the report, whose files are all of one run."""
    store = S3Store("events", prefix="fleet/report")
    facts: dict[str, Any] = json.loads(bytes(obstore.get(store, "report.json").bytes()))
    run_id = facts.pop("run_id")
    assert run_id.encode() in bytes(obstore.get(store, "index.html").bytes())
    assert b"readiness_clients" in bytes(obstore.get(store, "report.prom").bytes())
    table = obstore.get(store, f"runs/{run_id}/tables/clients/part-00000.parquet")
    assert bytes(table.bytes()).startswith(b"PAR1")
    del facts["source"]
    return facts


def test_from_a_bucket_to_a_bucket(object_server: str, jars: str, events: Path) -> None:
    """All at once, by a pattern, and what is new with a state, give the report of the folder."""
    store = S3Store("events", prefix="fleet/events")
    for number, file in enumerate(sorted(events.glob("*.jsonl*"))):
        obstore.put(store, f"date={number}/{file.name}", file.read_bytes())
    obstore.put(store, "_temporary/half.jsonl", b"half")
    wanted = report_of(events)
    rest = {name: fact for name, fact in wanted.items() if name not in {"engine", "lines"}}
    for given, engine in (
        (("--events", "s3a://events/fleet/ev*"), "duckdb"),
        (("--events", "s3a://events/fleet/ev*", "--master", CLUSTER), "spark+duckdb"),
        (
            ("--events", "s3a://events/fleet/events", "--state", "s3a://events/fleet/state"),
            "spark+duckdb",
        ),
    ):
        done = run(object_server, jars, *given)
        assert done.returncode == 0, done.stderr[-3000:]
        facts = published()
        assert facts.pop("engine") == engine
        assert facts.pop("lines") == wanted["lines"]
        assert comparable(facts) == comparable(rest)
    state = S3Store("events", prefix="fleet/state")
    assert not {one["path"] for one in obstore.list(state).collect()} & {".lock"}
    obstore.put(state, ".lock", b"")
    done = run(object_server, jars, *given)
    assert done.returncode == 2
    assert "s3a://events/fleet/state: another run uses this --state" in done.stderr
    done = run(object_server, jars, "--events", "s3a://missing/events")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("there is no such bucket")
