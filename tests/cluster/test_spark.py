"""Spark on Kubernetes with deploy/spark: its tables equal those of a local run."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from benchmarks.events.generate import EPOCH, Size, generate
from proxy.cli import app
from tests.support.deploy import DEPLOY, Document, of_kind, of_text, run
from tests.support.kubernetes.cluster import Cluster
from tests.support.readiness import comparable

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("report_image")]
log = logging.getLogger(__name__)

SIZE = Size(connections=24, principals=6, clients=12, days=0.2, seed=5, bad=True)
AS_OF = datetime.fromtimestamp(EPOCH + SIZE.days * 86_400, UTC).isoformat()
JOB = "report"
USER = 65532
_VOLUME = "reauth-proxy-spark"


@pytest.fixture
def volume(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """The folder that driver and executors share, with events, in a namespace that is `restricted`.

    A folder of the node in place of one that several nodes can mount.
    """
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, label)
    folder = cluster.directory / namespace
    generate(SIZE, folder / "events", parquet=False)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": str(folder)},
                "claimRef": {"name": _VOLUME, "namespace": namespace},
            },
        }
    )
    yield folder
    cluster.kubectl("delete", "persistentvolume", namespace, "--wait=false")
    shutil.rmtree(folder)


def manifests(*without: str) -> list[Document]:
    """Documents of `kubectl apply -k`, with two small executors and the events' time."""
    made = of_text(run("kustomize", "build", DEPLOY / "spark"))
    settings = of_kind(made, "ConfigMap")["data"]
    text = settings["spark-defaults.conf"]
    settings["spark-defaults.conf"] = (
        text + "spark.executor.instances 2\nspark.executor.memory 512m\n"
        "spark.kubernetes.executor.request.cores 100m\n"
        # for few events, as the report itself sets Spark where all is on one machine
        "spark.sql.shuffle.partitions 2\nspark.sql.codegen.wholeStage false\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\n"
        "spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1\n"
    )
    pod = of_kind(made, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    driver["args"].append(f"--as-of={AS_OF}")
    driver["resources"]["requests"]["cpu"] = "100m"
    return [one for one in made if one["kind"] not in without]


class Job:
    """A manual run of the CronJob."""

    def __init__(self, cluster: Cluster, namespace: str, documents: list[Document]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.executors: dict[str, Document] = {}
        """Names of executor pods that have run."""
        cluster.apply(*documents, namespace=namespace)
        cron_job = f"--from=cronjob/{_VOLUME}"
        cluster.kubectl("create", "job", JOB, cron_job, f"--namespace={namespace}")

    def end(self) -> str:
        """Wait for the end; return `Complete` or `Failed`."""
        found: list[str] = []

        def ended() -> bool:
            for pod in self._pods("spark-role=executor"):
                if pod["status"]["phase"] == "Running":
                    self.executors[pod["metadata"]["name"]] = pod
            job = self._cluster.get("job", JOB, f"--namespace={self._namespace}")
            found[:] = [
                one["type"]
                for one in job["status"].get("conditions", ())
                if one["status"] == "True" and one["type"] in ("Complete", "Failed")
            ]
            return bool(found)

        took = self._cluster.wait(ended, what="the job does not end", namespace=self._namespace)
        log.info("%s after %.0f s, %d executors", found[0], took, len(self.executors))
        return found[0]

    def log(self) -> str:
        """The driver's log."""
        job = f"job/{JOB}"
        return self._cluster.kubectl("logs", job, f"--namespace={self._namespace}", "--tail=200")

    def _pods(self, selector: str) -> list[Document]:
        options = (f"--selector={selector}", f"--namespace={self._namespace}")
        items: list[Document] = self._cluster.get("pods", *options)["items"]
        return items

    def has_no_pods_left(self) -> bool:
        """Whether the executors' pods are gone."""
        return not self._pods("spark-role=executor")


def tables(folder: Path) -> dict[str, list[Any]]:
    """Sorted rows of each table, without the run's id."""
    found = {}
    for table in folder.iterdir():
        if table.is_dir():
            rows = f"(SELECT * EXCLUDE (run_id) FROM '{table}/*.parquet') AS r"
            lines = duckdb.connect().execute(f"SELECT CAST(to_json(r) AS VARCHAR) FROM {rows}")
            found[table.name] = sorted(
                str(comparable(json.loads(line))) for (line,) in lines.fetchall()
            )
    return found


def test_executors_in_pods_make_the_tables_of_a_local_run(
    cluster: Cluster, namespace: str, volume: Path, tmp_path: Path
) -> None:
    job = Job(cluster, namespace, manifests())
    assert job.end() == "Complete", job.log()
    assert len(job.executors) == 2
    arguments = ["report", "--events", str(volume / "events"), "--out", str(tmp_path / "report")]
    as_of = ["--as-of", "2026-06-01T04:48", "--engine", "duckdb"]
    result = CliRunner().invoke(app, [*arguments, *as_of])
    assert result.exit_code == 0, result.output
    local = tables(tmp_path / "report/tables")
    assert {"clients", "sessions", "what_if"} <= local.keys()
    assert tables(volume / "report/tables") == local
    cluster.wait(job.has_no_pods_left, what="executors are left", namespace=namespace)


def test_a_driver_without_rights_says_so(cluster: Cluster, namespace: str, volume: Path) -> None:
    """The last line of its log becomes the pod's message."""
    del volume
    documents = manifests("RoleBinding")
    of_kind(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["backoffLimit"] = 0
    job = Job(cluster, namespace, documents)
    assert job.end() == "Failed"
    assert "the driver's account lacks rights in its namespace: deploy/spark" in job.log()
