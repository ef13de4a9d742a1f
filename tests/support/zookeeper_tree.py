"""An in-memory tree like ZooKeeper's, with versions, sequences and transactions."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from proxy.store.zookeeper.changes import Create, Delete, Operation, Overtaken, Replace
from proxy.store.zookeeper.content import Node, Unanswered
from proxy.store.zookeeper.nodes import Notification

KAFKAS = (
    "/config",
    "/config/users",
    "/config/clients",
    "/config/changes",
    "/kafka-acl",
    "/kafka-acl/Topic",
    "/kafka-acl/Group",
    "/kafka-acl-extended",
    "/kafka-acl-extended/prefixed",
    "/kafka-acl-extended/prefixed/Topic",
    "/kafka-acl-changes",
    "/kafka-acl-extended-changes",
)
"""Nodes that a broker creates at its start."""


class FakeTree:
    """A `WritableTree` that records reads and has hooks before calls."""

    def __init__(self, *paths: str) -> None:
        self.data: dict[str, tuple[bytes, int]] = dict.fromkeys(paths or KAFKAS, (b"", 0))
        self.sequence = 0
        self.reads: list[str] = []
        """Paths of nodes that were read."""
        self.commits: list[Sequence[Operation]] = []
        self.before: dict[str, list[Callable[[], Any]]] = {}
        """Hooks for the next calls of a method, one per call."""
        self.is_away = False

    def _call(self, name: str) -> None:
        if waiting := self.before.get(name):
            waiting.pop(0)()
        if self.is_away:
            raise Unanswered("ZooKeeper does not answer")

    def put(self, path: str, content: object) -> None:
        """Set a node without a transaction."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        _, version = self.data.get(path, (b"", -1))
        self.data[path] = (data, version + 1)

    def notify(self, directory: str, content: object) -> str:
        """Add a notification; return its path."""
        self.sequence += 1
        path = f"{directory}/change_{self.sequence:010}"
        self.put(path, content)
        return path

    def content(self, path: str) -> Any:
        return json.loads(self.data[path][0])

    # A WritableTree

    def sync(self) -> None:
        self._call("sync")

    def nodes(self, paths: Collection[str]) -> Mapping[str, Node]:
        self._call("nodes")
        self.reads += paths
        return {path: Node(*self.data[path]) for path in paths if path in self.data}

    def children(
        self,
        paths: Collection[str],
        *,
        watched: bool = False,  # noqa: ARG002
    ) -> Mapping[str, Collection[str]]:
        self._call("children")
        return {
            path: [one.rpartition("/")[2] for one in self.data if one.rpartition("/")[0] == path]
            for path in paths
            if path in self.data
        }

    def commit(self, operations: Sequence[Operation]) -> None:
        self._call("commit")
        before = dict(self.data)
        try:
            for one in operations:
                self._do(one)
        except Overtaken:
            self.data = before
            raise
        self.commits.append(operations)

    def _do(self, operation: Operation) -> None:
        match operation:
            case Create(path, data):
                if path in self.data or path.rpartition("/")[0] not in ("", *self.data):
                    raise Overtaken
                self.data[path] = (data, 0)
            case Replace(path, data, version):
                if self.data.get(path, (b"", -1))[1] != version:
                    raise Overtaken
                self.data[path] = (data, version + 1)
            case Delete(path, version):
                if self.data.get(path, (b"", -1))[1] != version:
                    raise Overtaken
                del self.data[path]
            case Notification(prefix, data):
                self.sequence += 1
                self.data[f"{prefix}{self.sequence:010}"] = (data, 0)
