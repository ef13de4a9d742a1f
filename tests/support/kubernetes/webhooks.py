"""The webhook as it is shipped, and pods that it is asked about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from tests.support import deploy
from tests.support.deploy import DEPLOY
from tests.support.kubernetes import producing, shapes
from tests.support.kubernetes.cluster import Cluster, Document, Finished

SYSTEM: Final = "reauth-proxy-system"
WEBHOOK: Final = "deployment/reauth-proxy-webhook"


def shipped(directory: str) -> list[Document]:
    """What `kubectl apply -k` would send."""
    return deploy.of_text(deploy.run("kustomize", "build", DEPLOY / "kustomize" / directory))


@contextmanager
def applied(cluster: Cluster, directory: str) -> Iterator[list[Document]]:
    """Send it; at the end nothing is left of it, so that the other variant may come."""
    documents = shipped(directory)
    cluster.apply(*documents, namespace=SYSTEM)
    try:
        yield documents
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfiguration", "reauth-proxy")
        cluster.kubectl("delete", "namespace", SYSTEM)


def wait_asked(cluster: Cluster) -> float:
    """Wait until the API server asks it; return the seconds that it took.

    A pod that is ready is known to the Service a moment later.
    """
    took = producing.wait_ready(cluster, WEBHOOK, SYSTEM)
    return took + cluster.wait(
        lambda: dry_run(cluster, "default", shapes.pod(shapes.EGRESS)).exit_status == 0,
        what="the webhook is not asked",
        namespace=SYSTEM,
    )


def dry_run(cluster: Cluster, namespace: str, pod: Document) -> Finished:
    """What the API server would store, or why it refuses."""
    options = ("--dry-run=server", "--output=json", "--filename=-", f"--namespace={namespace}")
    return cluster.try_kubectl("create", *options, stdin=yaml.safe_dump(pod))


def pods(cluster: Cluster) -> dict[str, Any]:
    """The webhook's own pods by name."""
    found = cluster.get("pods", f"--namespace={SYSTEM}")["items"]
    return {one["metadata"]["name"]: one for one in found}
