"""The webhook on a cluster, as it is shipped: over pods of many shapes, and when it is down."""

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import proxy
from proxy.kubernetes.injection import CONFIG, INJECT
from tests.support import deploy
from tests.support.kubernetes import producing, shapes
from tests.support.kubernetes.broker import BOOTSTRAP, Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.release import message_of
from tests.support.kubernetes.webhooks import SYSTEM, WEBHOOK, applied, dry_run, wait_asked
from tests.support.sasl import ISSUER, Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)

IMAGES = (
    f"--image=kafka-reauth-proxy:{proxy.__version__}",
    f"--redirect-image=kafka-reauth-proxy-redirect:{proxy.__version__}",
)


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[None]:
    """Two webhooks, which make their certificate themselves."""
    with applied(cluster, "webhook"):
        log.info("the webhook is asked after %.1f s", wait_asked(cluster))
        yield


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("shape", shapes.INJECTED)
def test_the_api_server_takes_an_injected_pod(cluster: Cluster, namespace: str, shape: str) -> None:
    """A namespace without labels of its own; the patch is applied, and what comes out is valid."""
    before = shapes.INJECTED[shape]
    done = dry_run(cluster, namespace, before)
    assert done.exit_status == 0, done.stderr
    spec = json.loads(done.stdout)["spec"]
    assert [one["name"] for one in spec["initContainers"]].count("reauth-proxy") == 1
    again = json.loads(done.stdout)
    del again["metadata"]["uid"], again["metadata"]["creationTimestamp"]
    twice = dry_run(cluster, namespace, again)
    assert twice.exit_status == 0, twice.stderr
    assert json.loads(twice.stdout)["spec"] == spec


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("shape", shapes.REFUSED)
def test_the_api_server_tells_why_it_refuses(cluster: Cluster, namespace: str, shape: str) -> None:
    pod, words = shapes.REFUSED[shape]
    done = dry_run(cluster, namespace, pod)
    assert done.exit_status != 0
    assert words in done.stderr
    assert 'admission webhook "inject.reauth-proxy.io" denied the request: ' in done.stderr


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("shape", shapes.UNCHANGED)
def test_other_pods_are_let_through(cluster: Cluster, namespace: str, shape: str) -> None:
    done = dry_run(cluster, namespace, shapes.UNCHANGED[shape])
    assert done.exit_status == 0, done.stderr
    assert "initContainers" not in json.loads(done.stdout)["spec"]


BOOTSTRAPS = {"egress": "127.0.0.1:9094", "transparent": BOOTSTRAP}


def application(mode: str, topic: str, issuer: Issuer) -> list[Document]:
    """A pod that asks for the sidecar, and the sidecar's configuration."""
    config = yaml.safe_load(deploy.configuration(deploy.kustomized(mode)))
    deploy.verifying_tokens(config, "file:///etc/reauth-proxy/jwks.json", ISSUER)
    files = {
        "proxy_yaml": yaml.safe_dump(config),
        "jwks_json": json.dumps(issuer.jwks()),
        producing.TOKEN: issuer.mint("alice"),
    }
    pod = shapes.pod(
        {INJECT: mode, CONFIG: "orders-proxy"},
        containers=[producing.container(topic, BOOTSTRAPS[mode])],
        volumes=producing.volumes("orders-proxy"),
    )
    return [producing.config_map("orders-proxy", **files), pod]


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("mode", BOOTSTRAPS)
def test_an_injected_pod_works(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, mode: str
) -> None:
    """It delivers all of its messages through the sidecar; another version is shown as drift."""
    topic = f"injected-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    cluster.apply(*application(mode, topic, issuer), namespace=namespace)
    took = producing.wait_ready(cluster, "pod/shape", namespace)
    line = cluster.kubectl("get", "pod", "shape", "--no-headers", f"--namespace={namespace}")
    log.info("ready after %.1f s: %s", took, line.strip())
    assert line.split()[1] == "2/2"
    pods = cluster.kubectl("get", "pods", "--output=json", f"--namespace={namespace}")
    assert drift(pods, *IMAGES) == (0, [])
    status, found = drift(pods, "--image=kafka-reauth-proxy:another")
    assert (status, [one["name"] for one in found]) == (1, ["shape"])
    debug = ("debug", "shape", "--image=docker.io/library/machine:1", f"--namespace={namespace}")
    cluster.kubectl(*debug, "--image-pull-policy=Never", "--", "/busybox/sleep", "1")
    count = producing.end(cluster, broker, namespace, topic, "shape")
    log.info("%d of %d messages", count, count)


def drift(pods: str, *options: str) -> tuple[int, Any]:
    """The exit status of `reauth-proxy webhook drift`, and what it lists."""
    command = [sys.executable, "-m", "proxy", "webhook", "drift", "--output=json", *options]
    done = subprocess.run(command, input=pods, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.usefixtures("webhook")
def test_two_webhooks_add_one_sidecar(cluster: Cluster, namespace: str) -> None:
    """A second configuration, left over from another name say, finds that all is there."""
    first = cluster.get("mutatingwebhookconfiguration", "reauth-proxy")
    second = {key: first[key] for key in ("apiVersion", "kind", "webhooks")}
    second |= {"metadata": {"name": "reauth-proxy-second"}}
    cluster.apply(second)
    try:
        for annotations in (shapes.EGRESS, shapes.TRANSPARENT):
            done = dry_run(cluster, namespace, shapes.pod(annotations))
            assert done.exit_status == 0, done.stderr
            names = [one["name"] for one in json.loads(done.stdout)["spec"]["initContainers"]]
            assert names in (["reauth-proxy"], ["reauth-redirect", "reauth-proxy"])
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfiguration", "reauth-proxy-second")


WRONG_FILES = {
    "is not YAML": ({"proxy_yaml": "listeners: ["}, "line 1: is not YAML"),
    "has another name": ({"proxies_yaml": ""}, "/etc/reauth-proxy/proxy.yaml"),
}


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_a_wrong_file_is_told_and_the_right_one_taken_up(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, wrong: str
) -> None:
    """The application waits; when the ConfigMap is mended it starts, in the same pod."""
    topic = f"mended-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    files, words = WRONG_FILES[wrong]
    right, pod = application("egress", topic, issuer)
    data = {key: value for key, value in right["data"].items() if key != "proxy.yaml"}
    bad = producing.config_map("orders-proxy", **files)
    bad["data"] |= data
    cluster.apply(bad, pod, namespace=namespace)
    here = f"--namespace={namespace}"

    def message() -> str:
        return message_of(cluster.get("pod", "shape", here))

    cluster.wait(lambda: words in message(), what=f"nobody says {words}", namespace=namespace)
    log.info("the pod's status says: %s", message().strip())
    (status,) = cluster.get("pod", "shape", here)["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "PodInitializing"
    cluster.apply(right, namespace=namespace)
    log.info("mended after %.1f s", producing.wait_ready(cluster, "pod/shape", namespace))
    producing.end(cluster, broker, namespace, topic, "shape")


@pytest.mark.usefixtures("webhook")
def test_where_the_webhook_is_down_only_those_wait_that_ask_for_it(
    cluster: Cluster, namespace: str
) -> None:
    cluster.kubectl("scale", WEBHOOK, "--replicas=0", "-n", SYSTEM)
    try:
        cluster.wait(
            lambda: not cluster.get("pods", f"--namespace={SYSTEM}")["items"],
            what="the webhook does not end",
            namespace=SYSTEM,
        )
        refused = dry_run(cluster, namespace, shapes.pod(shapes.EGRESS))
        assert refused.exit_status != 0
        assert 'failed calling webhook "inject.reauth-proxy.io"' in refused.stderr
        log.info("%s", refused.stderr.strip())
        assert dry_run(cluster, namespace, shapes.pod()).exit_status == 0
    finally:
        cluster.kubectl("scale", WEBHOOK, "--replicas=2", "-n", SYSTEM)
    wait_asked(cluster)
