"""A fleet's report on a cluster as in docs/fleet.md: sidecars, topic, job and page."""

import copy
import json
import logging
import urllib.request
from typing import Final

import duckdb
import pytest
import yaml

from tests.support import deploy
from tests.support.kubernetes import producing
from tests.support.kubernetes.broker import BOOTSTRAP, Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.producing import wait_ready
from tests.support.kubernetes.volumes import provide
from tests.support.sasl import ISSUER, Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)

TOPIC: Final = "session-events"
"""As the overlay has it."""
ORDERS: Final = "fleet-orders"
"""The topic that the applications produce to."""
SIDECARS: Final = 3


def sidecars(issuer: Issuer) -> list[Document]:
    """The egress overlay with applications, and sidecars that deliver their events."""
    documents = copy.deepcopy(deploy.kustomized("egress"))
    config = deploy.of_kind(documents, "ConfigMap")
    settings = yaml.safe_load(config["data"]["proxy.yaml"])
    deploy.verifying_tokens(settings, "file:///etc/reauth-proxy/jwks.json", ISSUER)
    settings["events"]["deliver"] = {"to": f"kafka:{TOPIC}"}
    config["data"] = {
        "proxy.yaml": yaml.safe_dump(settings),
        "jwks.json": json.dumps(issuer.jwks()),
        producing.TOKEN: issuer.mint("alice"),
    }
    deploy.of_kind(documents, "Deployment")["spec"]["replicas"] = SIDECARS
    pod = deploy.pod(documents)
    pod["volumes"] += producing.volumes(config["metadata"]["name"])
    pod["containers"] = [producing.container(ORDERS, "127.0.0.1:9094")]
    return documents


class Fleet:
    """Sidecars and their report, in a namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.volume = provide(cluster, namespace, "reauth-proxy-report")
        """Folder of the report's volume on the node."""

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments)

    def execute(self, pod: str, container: str, *command: str) -> str:
        """Run a program in a container; return what it wrote."""
        return self.kubectl("exec", pod, f"--container={container}", "--", *command)

    def create_topic(self) -> None:
        """Create the topic of the events from a pod; a busy broker may answer late."""
        command = ("events", "topic", "create", TOPIC, "--command-config=/dev/stdin")
        replicas = "--replication-factor=1"  # there is one broker
        exec_in = ("exec", "--stdin", "deploy/orders", "--container=reauth-proxy", "--")

        def is_there() -> bool:
            done = self.cluster.try_kubectl(
                f"--namespace={self.namespace}",
                *(*exec_in, "reauth-proxy", *command, replicas),
                stdin=f"bootstrap.servers={BOOTSTRAP}\n",
            )
            return done.stdout.count("kafka-acls.sh") == 2 or "such a topic already" in done.stderr

        self.cluster.wait(is_there, what="there is no topic", namespace=self.namespace)

    def pods(self) -> list[str]:
        """The names of the applications' pods."""
        found = self.cluster.get("pods", f"--namespace={self.namespace}", "-l", "app=orders")
        return [pod["metadata"]["name"] for pod in found["items"]]

    def connections(self, pod: str) -> int:
        """Number of connections that a pod's application made."""
        return int(self.execute(pod, "application", "/busybox/cat", "/tmp/connections"))  # noqa: S108

    def wait_delivered(self, pod: str) -> None:
        """Wait until a sidecar has delivered all events."""
        command = ("events", "status", "--config=/etc/reauth-proxy/proxy.yaml", "--output=json")

        def nothing_waits() -> bool:
            (found,) = json.loads(self.execute(pod, "reauth-proxy", "reauth-proxy", *command))
            return bool(found["waiting_bytes"] == 0)

        self.cluster.wait(nothing_waits, what="events wait", namespace=self.namespace)

    def run_report(self, name: str) -> None:
        """Run the CronJob now, and wait for its end."""
        self.kubectl("create", "job", name, "--from=cronjob/reauth-proxy-report")

        def conditions() -> set[str]:
            job = self.cluster.get("job", name, f"--namespace={self.namespace}")
            return {one["type"] for one in job["status"].get("conditions", ())}

        took = self.cluster.wait(
            lambda: bool(conditions() & {"Complete", "Failed"}),
            what="the report does not end",
            namespace=self.namespace,
        )
        log.info("%s took %.1f s: %s", name, took, self.kubectl("logs", f"job/{name}").strip())
        assert "Complete" in conditions()

    def sessions(self, client_id: str) -> list[tuple[str, bool]]:
        """A client's connections in the last report: principal, and whether they are closed."""
        tables = f"{self.volume}/report/tables/sessions/*.parquet"
        query = "SELECT principal, closed FROM read_parquet(?) WHERE client_id = ?"
        return duckdb.execute(query, [tables, client_id]).fetchall()

    def page(self, path: str) -> str:
        """Response of the page's Service."""
        service = self.cluster.get("service", "reauth-proxy-report", f"-n={self.namespace}")
        url = f"http://{service['spec']['clusterIP']}:9405{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture
def fleet(cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer) -> Fleet:
    """Three sidecars with their applications, and the topic that they deliver to."""
    broker.create_topic(ORDERS)
    made = Fleet(cluster, namespace)
    cluster.apply(*sidecars(issuer), namespace=namespace)
    log.info("sidecars: %.1f s", wait_ready(cluster, "deployment/orders", namespace))
    made.create_topic()
    return made


@pytest.mark.usefixtures("report_image")
def test_the_last_events_of_a_deleted_pod_are_in_the_report(fleet: Fleet, broker: Broker) -> None:
    """The report has all connections, including the ends of those of the deleted pod."""
    secret = "--from-literal=report.properties=bootstrap.servers=" + BOOTSTRAP
    fleet.kubectl("create", "secret", "generic", "reauth-report", secret)
    fleet.cluster.apply(*deploy.kustomized("report"), namespace=fleet.namespace)
    wait_ready(fleet.cluster, "deployment/reauth-proxy-report", fleet.namespace)
    first, *others = fleet.pods()
    assert len(others) == SIDECARS - 1
    for pod in (first, *others):
        fleet.wait_delivered(pod)
    fleet.run_report("before")
    assert ("User:alice", False) in fleet.sessions(first)

    producing.end(fleet.cluster, broker, fleet.namespace, ORDERS, first)
    ((_, connections),) = (
        record for record in broker.records(ORDERS) if record[0] == f"{first}/connections"
    )
    for pod in others:
        fleet.wait_delivered(pod)
    least = [fleet.connections(pod) for pod in others]
    fleet.run_report("after")
    assert fleet.sessions(first) == [("User:alice", True)] * int(connections)
    for pod, count in zip(others, least, strict=True):
        assert count <= len(fleet.sessions(pod)) <= fleet.connections(pod)
    page = fleet.page("/")
    assert all(pod in page for pod in (first, *others))
    assert "kafka_reauth_proxy_readiness_clients" in fleet.page("/report.prom")
