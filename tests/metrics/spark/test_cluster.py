"""The job on a cluster: a driver, two workers in processes of their own, nothing but PySpark there.

As docs/readiness.md says under "On a cluster".
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from benchmarks.events.generate import EPOCH, Size, generate

ROOT = Path(__file__).parents[3]
SIZE = Size(connections=24, principals=6, clients=12, days=0.1, seed=7, bad=True)
AS_OF_MS = round((EPOCH + SIZE.days * 86_400) * 1000)
SUBMIT = "from metrics.spark.job import main\nraise SystemExit(main())\n"


def installed(home: Path) -> Path:
    """A Spark whose workers leave their logs in a folder of the test."""
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def bare_python(path: Path) -> Path:
    """A Python without site-packages: what it can import, spark-submit has given to it."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def wheel(directory: Path) -> Path:
    """This package; without isolation, which would fetch what builds it."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True)
    (built,) = directory.glob("*.whl")
    return built


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_executors_need_nothing_but_spark(tmp_path: Path) -> None:
    """They could not even start a Python: theirs is `false`."""
    events, out = tmp_path / "events", tmp_path / "report"
    generate(SIZE, events, parquet=False)
    home = installed(tmp_path / "spark")
    package = wheel(tmp_path / "dist")
    (tmp_path / "submit.py").write_text(SUBMIT)
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.pyspark.driver.python": str(bare_python(tmp_path / "bare-python")),
        "spark.pyspark.python": "false",
    }
    done = subprocess.run(
        [
            home / "bin" / "spark-submit",
            *("--master", "local-cluster[2,1,1024]"),
            *(text for name, value in options.items() for text in ("--conf", f"{name}={value}")),
            *("--py-files", package, tmp_path / "submit.py"),
            *("--events", events.as_uri(), "--out", out.as_uri(), "--as-of-ms", str(AS_OF_MS)),
            *("--state", (tmp_path / "state").as_uri()),
        ],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("PY")}
        | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((out / "report.json").read_text())
    truth = json.loads((events / "truth.json").read_text())
    assert {row["client_id"]: row["verdict"] for row in facts["clients"]} == truth
    (of_run,) = (out / "runs").iterdir()
    assert {path.name for path in of_run.iterdir()} == {"index.html", "report.json", "tables"}
    assert (of_run / "tables" / "clients" / "_SUCCESS").exists()
