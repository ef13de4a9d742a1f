"""Pod Security levels of the manifests, checked by the API server."""

import pytest
import yaml

from tests.support import deploy
from tests.support.kubernetes.cluster import Cluster

pytestmark = pytest.mark.cluster


def warnings(cluster: Cluster, namespace: str, level: str, overlay: str) -> str:
    """Warnings of the API server about the workload in a namespace with this level."""
    label = f"pod-security.kubernetes.io/warn={level}"
    cluster.kubectl("label", "namespace", namespace, label, "--overwrite")
    documents = deploy.kustomized(overlay)
    workloads = [one for one in documents if one["kind"] in {*deploy.WORKLOADS, "CronJob"}]
    for workload in workloads:
        workload["metadata"].pop("namespace", None)
    options = ("--dry-run=server", "--filename=-", f"--namespace={namespace}")
    done = cluster.try_kubectl("create", *options, stdin=yaml.safe_dump_all(workloads))
    assert done.exit_status == 0, done.stderr
    return done.stderr


RESTRICTED = ("gateway", "ingress", "egress", "report")


@pytest.mark.parametrize("overlay", RESTRICTED)
def test_what_needs_no_capability_passes_restricted(
    cluster: Cluster, namespace: str, overlay: str
) -> None:
    assert warnings(cluster, namespace, "restricted", overlay) == ""


def test_redirection_needs_a_privileged_namespace(cluster: Cluster, namespace: str) -> None:
    """Only because of NET_ADMIN in one init container."""
    said = warnings(cluster, namespace, "baseline", "transparent")
    assert 'container "reauth-redirect" must not include "NET_ADMIN"' in said
    assert said.count("container ") == 1
    assert warnings(cluster, namespace, "privileged", "transparent") == ""
