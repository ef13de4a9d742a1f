"""The shipped admission policies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import yaml

from tests.support import deploy
from tests.support.deploy import DEPLOY

if TYPE_CHECKING:
    from tests.support.kubernetes.cluster import Cluster, Document, Finished

DEFINITION = "CustomResourceDefinition"


def shipped() -> list["Document"]:
    """Return the folder's documents, which `kubectl apply -k` sends unchanged."""
    folder = DEPLOY / "kustomize/injection"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in deploy.of_text((folder / name).read_text())]


@contextmanager
def applied(cluster: "Cluster", pod: "Document") -> Iterator[None]:
    """Apply the policies, wait until they refuse `pod`, and remove them at the end."""
    documents = shipped()
    definition = deploy.of_kind(documents, DEFINITION)
    cluster.apply(definition)
    name = f"crd/{definition['metadata']['name']}"
    cluster.kubectl("wait", name, "--for=condition=Established", "--timeout=60s")
    cluster.apply(*(one for one in documents if one is not definition))
    try:
        cluster.wait(
            lambda: dry_run(cluster, "default", pod).exit_status != 0,
            what="the policies are not in force",
            namespace="default",
        )
        yield
    finally:
        text = yaml.safe_dump_all(documents)
        cluster.kubectl("delete", "--filename=-", "--ignore-not-found", stdin=text)


def dry_run(cluster: "Cluster", namespace: str, pod: "Document") -> "Finished":
    """Return what the API server would store, or its refusal."""
    options = ("--dry-run=server", "--output=json", "--filename=-", f"--namespace={namespace}")
    return cluster.try_kubectl("create", *options, stdin=yaml.safe_dump(pod))
