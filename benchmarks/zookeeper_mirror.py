"""CPU time to mirror one change of ZooKeeper, beside many ACLs.

    python -m benchmarks.zookeeper_mirror [--acls 100000] [--changes 20]

Each change concerns one resource with two ACLs. ZooKeeper itself is not measured.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic, process_time

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store.zookeeper import ZookeeperMirror
from proxy.store.zookeeper.content import Content
from proxy.store.zookeeper.follower import Mirroring
from proxy.store.zookeeper.nodes import Resource, ResourceAcls


def resource(number: int) -> Resource:
    """Return a topic."""
    return Resource(ResourceType.TOPIC, PatternType.LITERAL, f"topic-{number}")


def acls_of(one: Resource, principal: str) -> ResourceAcls:
    """Return two ACLs of a principal."""
    operations = (Operation.READ, Operation.WRITE)
    return ResourceAcls(
        frozenset(Acl(*one, principal, "*", each, Permission.ALLOW) for each in operations)
    )


def changed(content: Content, number: int) -> Content:
    """Return the content with other ACLs of one resource, as the reader makes it."""
    one = resource(number)
    return replace(
        content, resources={**content.resources, one: acls_of(one, f"User:new-{number}")}
    )


def measured(acls: int, changes: int) -> list[float]:
    """Return the CPU time of each change in milliseconds."""
    content = Content(
        resources={(one := resource(n)): acls_of(one, "User:a") for n in range(acls // 2)}
    )
    took = []
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(ZookeeperMirror(Path(directory, "mirror.db"))) as mirror,
    ):
        mirror.begin()
        mirroring = Mirroring(mirror)
        mirroring.write(content, monotonic())
        for number in range(changes):
            content = changed(content, number)
            began = process_time()
            mirroring.write(content, monotonic())
            took.append((process_time() - began) * 1000)
        assert len(mirror.acl_snapshot().acls) == len(content.acls())
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acls", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=20)
    chosen = parser.parse_args()
    took = measured(chosen.acls, chosen.changes)
    sys.stdout.write(
        f"{chosen.acls:,} ACLs, CPU of one change: median {statistics.median(took):.1f} ms,"
        f" maximum {max(took):.1f} ms\n"
    )


if __name__ == "__main__":
    main()
