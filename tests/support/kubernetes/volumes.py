"""Volumes of the node for claims, in place of a provisioner."""

from pathlib import Path

from tests.support.kubernetes import node
from tests.support.kubernetes.cluster import Cluster, Document


def provide(cluster: Cluster, namespace: str, claim: str) -> Path:
    """Create the volume of a claim; return its folder, owned by root."""
    folder = cluster.directory / f"{namespace}-{claim}"
    folder.mkdir()
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.NAME]}
    volume: Document = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": folder.name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": namespace, "name": claim},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
    cluster.apply(volume)
    return folder
