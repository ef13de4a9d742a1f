"""The job on a standalone cluster: a master, two workers, and a driver.

As docs/readiness.md says under "On a cluster".
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyspark
import pytest

from benchmarks.events.generate import EPOCH, Size, generate
from metrics.readiness import job
from metrics.readiness.settings import Settings
from tests.support.readiness import comparable

ROOT = Path(__file__).parents[3]
SIZE = Size(connections=24, principals=6, clients=12, days=0.1, seed=7, bad=True)
AS_OF = datetime.fromtimestamp(EPOCH + SIZE.days * 86_400, UTC).isoformat()
WORKERS = ("one", "other")
PATIENCE = 600.0
"""Seconds for a daemon to serve, and half of those for the job: beyond, it hangs."""
SUBMIT = ROOT / "deploy" / "spark" / "submit.py"


def installed(home: Path) -> Path:
    """A Spark whose workers leave their logs in a folder of the test."""
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


@contextmanager
def daemon(home: Path, log: Path, *words: str | Path) -> Iterator[None]:
    """Run a daemon of Spark, until the end."""
    with log.open("wb") as file:
        command = [home / "bin" / "spark-class", *words]
        process = subprocess.Popen(command, env=environment(home), stdout=file, stderr=file)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def said(log: Path, pattern: str) -> str:
    """Wait until a log has a pattern; return its first group."""
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)
    return found[1]


@contextmanager
def cluster(home: Path, folder: Path) -> Iterator[str]:
    """Run a master and two workers, each with a folder of its own; give the master's address."""
    prefix = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    log = folder / "master.log"
    with ExitStack() as stack:
        stack.enter_context(daemon(home, log, f"{prefix}.master.Master", *here, "--port", "0"))
        master = said(log, r"Starting Spark master at (spark://\S+)")
        for name in WORKERS:
            place = ("--cores", "1", "--memory", "1g", "--work-dir", folder / name)
            worker = daemon(
                home, folder / f"{name}.log", f"{prefix}.worker.Worker", *here, *place, master
            )
            stack.enter_context(worker)
        for name in WORKERS:
            said(folder / f"{name}.log", "(Successfully registered) with master")
        yield master


def environment(home: Path) -> dict[str, str]:
    """Return an environment without this Python's, in a time zone with half hours and summer."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PY")}
    return kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "TZ": "America/St_Johns",
    }


def submit(folder: Path, master: str, *options: str) -> None:
    """Run the job."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": "false",
    }
    home = folder / "spark"
    done = subprocess.run(
        [
            home / "bin" / "spark-submit",
            *("--master", master, "--total-executor-cores", "2", "--executor-cores", "1"),
            *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
            SUBMIT,
            "--as-of",
            AS_OF,
            *options,
        ],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_executors_need_nothing_but_spark(tmp_path: Path) -> None:
    """They could not even start a Python: theirs is `false`."""
    events, out, both = tmp_path / "events", tmp_path / "report", tmp_path / "both"
    generate(SIZE, events, parquet=False)
    home = installed(tmp_path / "spark")
    given = ("--events", events.as_uri())
    with cluster(home, tmp_path) as master:
        state = ("--state", (tmp_path / "state").as_uri())
        submit(tmp_path, master, *given, "--out", out.as_uri(), *state)
        submit(tmp_path, master, *given, "--out", str(both))
    for name in WORKERS:
        assert len(list((tmp_path / name).glob("app-*/*/stderr"))) == 2, "it had no executor"
    truth = json.loads((events / "truth.json").read_text())
    here, _ = job.run(
        Settings(events=str(events), out=str(tmp_path / "here"), as_of_ms=job.time_ms(AS_OF)),
        lambda _: None,
    )
    for report in (out, both):
        facts = json.loads((report / "report.json").read_text())
        assert facts["engine"] == "spark+duckdb"
        assert {row["client_id"]: row["verdict"] for row in facts["clients"]} == truth
        for key in here.keys() - {"source", "run_id", "engine"}:
            assert comparable(facts[key]) == comparable(here[key]), key
    (of_run,) = (out / "runs").iterdir()
    names = {"index.html", "report.json", "report.prom", "tables", "csv"}
    assert {path.name for path in of_run.iterdir()} == names
    assert list((of_run / "tables" / "clients").glob("*.parquet"))
