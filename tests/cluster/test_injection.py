"""The shipped admission policies on a cluster, with pods of many shapes."""

import json
import logging
import uuid
from collections.abc import Iterator

import pytest
import yaml

from tests.support import deploy
from tests.support.kubernetes import producing, shapes
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.injection import applied, dry_run
from tests.support.kubernetes.release import message_of
from tests.support.kubernetes.shapes import CONFIG, INJECT
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("policies")]
log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def policies(cluster: Cluster) -> Iterator[None]:
    """The sidecar template and the policies."""
    with applied(cluster, shapes.REFUSED["no such mode"][0]):
        yield


@pytest.mark.parametrize("shape", shapes.INJECTED)
def test_the_api_server_takes_an_injected_pod(cluster: Cluster, namespace: str, shape: str) -> None:
    """In a namespace without labels; the result is valid and stays the same if sent again."""
    before = shapes.INJECTED[shape]
    done = dry_run(cluster, namespace, before)
    assert done.exit_status == 0, done.stderr
    after = json.loads(done.stdout)
    spec = after["spec"]
    added = ["reauth-redirect", "reauth-proxy"] if "redirected" in shape else ["reauth-proxy"]
    inits = spec["initContainers"]
    assert [one["name"] for one in inits[: len(added)]] == added
    own = [one["name"] for one in before["spec"].get("initContainers", [])]
    assert [one["name"] for one in inits[len(added) :]] == own
    sidecar = inits[len(added) - 1]
    user = {"runAsUser": 60092} if "redirected" in shape else {}
    assert sidecar["securityContext"] == shapes.SIDECAR["securityContext"] | user
    assert sidecar["image"] == shapes.SIDECAR["image"]
    volumes = {one["name"] for one in spec["volumes"]}
    assert {one["name"] for one in sidecar["volumeMounts"]} <= volumes
    assert after["metadata"]["labels"]["reauth-proxy"] == "reauth-proxy"
    assert after["metadata"]["annotations"]["reauth-proxy.io/injected"] == sidecar["image"]
    own_end = before["spec"].get("terminationGracePeriodSeconds", 30)
    assert spec["terminationGracePeriodSeconds"] == max(120, own_end + 55)
    del after["metadata"]["uid"], after["metadata"]["creationTimestamp"]
    twice = dry_run(cluster, namespace, after)
    assert twice.exit_status == 0, twice.stderr
    assert json.loads(twice.stdout)["spec"] == spec


def injected(cluster: Cluster, namespace: str, shape: str) -> Document:
    """The spec of a pod of a shape, as it would be stored."""
    spec: Document = json.loads(dry_run(cluster, namespace, shapes.INJECTED[shape]).stdout)["spec"]
    return spec


def test_annotations_are_followed(cluster: Cluster, namespace: str) -> None:
    named = injected(cluster, namespace, "a configuration by name")
    config = {one["name"]: one for one in named["volumes"]}["reauth-proxy-config"]["configMap"]
    assert config["name"] == "orders-proxy"
    secrets = injected(cluster, namespace, "two Secrets")
    mounts = {one["name"]: one for one in secrets["initContainers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in secrets["volumes"]}
    for number, name in enumerate("ab"):
        volume = f"reauth-proxy-secret-{number}"
        assert volumes[volume]["secret"]["secretName"] == name
        assert (mounts[volume]["mountPath"], mounts[volume]["readOnly"]) == (f"/etc/{name}", True)
    redirect = injected(cluster, namespace, "redirected from other ports")["initContainers"][0]
    assert {"name": "BROKER_PORTS", "value": "9092,9094"} in redirect["env"]
    ports = injected(cluster, namespace, "the proxy's usual port of its own")
    (port,) = (
        one for one in ports["initContainers"][0]["ports"] if one["name"] == "reauth-metrics"
    )
    assert port["containerPort"] == 9405


@pytest.mark.parametrize("shape", shapes.REFUSED)
def test_the_api_server_says_why_it_refuses(cluster: Cluster, namespace: str, shape: str) -> None:
    pod, words = shapes.REFUSED[shape]
    done = dry_run(cluster, namespace, pod)
    assert done.exit_status != 0
    assert words in done.stderr
    assert "ValidatingAdmissionPolicy '" in done.stderr


@pytest.mark.parametrize("shape", shapes.UNCHANGED)
def test_other_pods_are_let_through(cluster: Cluster, namespace: str, shape: str) -> None:
    done = dry_run(cluster, namespace, shapes.UNCHANGED[shape])
    assert done.exit_status == 0, done.stderr
    assert "initContainers" not in json.loads(done.stdout)["spec"]


def test_without_a_template_only_pods_that_ask_for_it_are_refused(
    cluster: Cluster, namespace: str
) -> None:
    template = cluster.get("sidecartemplate", "reauth-proxy")
    cluster.kubectl("delete", "sidecartemplate", "reauth-proxy")
    try:
        cluster.wait(
            lambda: dry_run(cluster, namespace, shapes.pod(shapes.EGRESS)).exit_status != 0,
            what="pods are created without the sidecar",
            namespace=namespace,
        )
        assert dry_run(cluster, namespace, shapes.pod()).exit_status == 0
    finally:
        for key in ("creationTimestamp", "generation", "resourceVersion", "uid"):
            del template["metadata"][key]
        cluster.apply(template)
    cluster.wait(
        lambda: dry_run(cluster, namespace, shapes.pod(shapes.EGRESS)).exit_status == 0,
        what="the template is not found",
        namespace=namespace,
    )


def application(mode: str, topic: str, issuer: Issuer) -> list[Document]:
    """A pod that asks for the sidecar, and the sidecar's configuration."""
    settings = yaml.safe_load(deploy.configuration(deploy.kustomized(mode)))
    pod = shapes.pod(
        {INJECT: mode, CONFIG: "orders-proxy"},
        containers=[producing.container(topic, producing.BOOTSTRAPS[mode])],
        volumes=producing.volumes("orders-proxy"),
    )
    return [producing.config_map("orders-proxy", **producing.files_of(settings, issuer)), pod]


@pytest.mark.parametrize("mode", producing.BOOTSTRAPS)
def test_an_injected_pod_works(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, mode: str
) -> None:
    """It delivers all of its messages through the sidecar."""
    topic = f"injected-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    cluster.apply(*application(mode, topic, issuer), namespace=namespace)
    took = producing.wait_ready(cluster, "pod/shape", namespace)
    line = cluster.kubectl("get", "pod", "shape", "--no-headers", f"--namespace={namespace}")
    log.info("ready after %.1f s: %s", took, line.strip())
    assert line.split()[1] == "2/2"
    debug = ("debug", "shape", "--image=docker.io/library/machine:1", f"--namespace={namespace}")
    cluster.kubectl(*debug, "--image-pull-policy=Never", "--", "/busybox/sleep", "1")
    count = producing.end(cluster, broker, namespace, topic, "shape")
    log.info("%d of %d messages", count, count)


WRONG_FILES = {
    "is not YAML": ({"proxy_yaml": "listeners: ["}, "line 1: is not YAML"),
    "has another name": ({"proxies_yaml": ""}, "/etc/reauth-proxy/proxy.yaml"),
}


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_a_wrong_file_is_told_and_the_right_one_taken_up(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, wrong: str
) -> None:
    """The application waits until the ConfigMap is fixed, then starts in the same pod."""
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
