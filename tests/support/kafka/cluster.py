"""Apache Kafka on this machine: KRaft nodes as child processes of the test.

A cluster is ready when every broker of it appears in a Metadata answer, not when a port opens.
"""

import atexit
import base64
import secrets
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self

from tests.support.kafka import java, properties
from tests.support.kafka.properties import BEHIND, CONTROLLER, PLAINTEXT
from tests.support.kafka.scram_client import salted_password
from tests.support.kafka.wire_client import Address, ask, metadata_fields
from tests.support.processes import free_ports

#: `connections.max.reauth.ms` of each SASL listener, by the listener's name.
SASL_LISTENERS: Mapping[str, int] = {"LONG": 3_600_000, "SHORT": 2_000, "NEVER": 0}

#: Iterations of test users: Kafka's minimum.
SCRAM_ITERATIONS = 4_096

#: Timeout for a busy machine; never reached when everything works.
START_DEADLINE_SECONDS = 300.0
STOP_DEADLINE_SECONDS = 60.0
DEADLINE_SECONDS = 120.0
_POLL_SECONDS = 0.1
_LIST_OFFSETS, _METADATA, _CREATE_TOPICS, _DESCRIBE_SCRAM, _ALTER_SCRAM = 2, 3, 19, 50, 51
_SCRAM_CODES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_LOG4J = Path(__file__).parent / "log4j2.properties"

#: The kernel kills programs whose test run was killed.
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") is not None else ()


class ClusterFailed(Exception):
    """A node died or did not become ready; the message includes its log."""


@dataclass(slots=True, kw_only=True)
class _Node:
    node_id: int
    directory: Path
    is_controller: bool
    ports: dict[str, int]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    def log_tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- node {self.node_id} ---\n{text[-4000:]}"


@dataclass(slots=True, kw_only=True)
class KafkaCluster:
    """Brokers 1 to `nodes`; the first `controllers` of them are also controllers.

    A broker-only node may be stopped without losing the quorum; so may one of three controllers.
    """

    nodes: int = 1
    controllers: int | None = None
    """None for all, or all but the last if their number is even."""
    jwks: Path | None = None
    """JWKS file; without it the SASL listeners only support SCRAM."""
    properties: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] = ()
    """For `kafka-storage format --feature`, such as `share.version=1`."""
    sasl_listeners: Mapping[str, int] = field(default_factory=lambda: SASL_LISTENERS)
    release: str = java.KAFKA_VERSION
    """Kafka release of the nodes."""
    sidecar_port: int | None = None
    """Adds the listener `properties.BEHIND`, which advertises a sidecar's port."""
    host: str = "127.0.0.1"
    """Address of all nodes."""
    jvm_options: Sequence[str] = ()
    """Further JVM options."""
    classes: Sequence[str] = ()
    """Programs of `java/` whose classes the nodes may load."""
    _nodes: dict[int, _Node] = field(init=False, default_factory=dict)
    _directory: Path = field(init=False, default_factory=Path)
    _cluster_id: str = field(init=False, default="")

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-"))
        self._cluster_id = kafka_uuid()
        atexit.register(self._end)
        try:
            self._create_nodes()
            for node in self._nodes.values():
                self._launch(node)
            self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # --- where it is

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Ids of all nodes, running or not."""
        return tuple(self._nodes)

    def address(self, node_id: int = 1, listener: str = PLAINTEXT) -> Address:
        """Address of a broker's listener."""
        return Address(self.host, self._nodes[node_id].ports[listener])

    def bootstrap(self, listener: str = PLAINTEXT) -> str:
        """`bootstrap.servers` of the running brokers."""
        return ",".join(str(self.address(node.node_id, listener)) for node in self._running())

    # --- starting and stopping

    def stop_node(self, node_id: int) -> None:
        """Stop a node with SIGTERM, which moves its leadership first."""
        node = self._nodes[node_id]
        if node.process is not None:
            node.process.terminate()
        self._reap(node)

    def kill_node(self, node_id: int) -> None:
        """Kill a node without moving its leadership."""
        node = self._nodes[node_id]
        if node.process is not None:
            node.process.kill()
        self._reap(node)

    def start_node(self, node_id: int, *, move: bool = False) -> None:
        """Starts a stopped node; `move` gives its client listeners new ports."""
        node = self._nodes[node_id]
        if move:
            node.ports |= dict(zip(self._client_listeners(), self._client_ports(), strict=True))
        self._configure(node)
        self._launch(node)
        self.wait_ready()

    def add_node(self) -> int:
        """Lets one more broker (not a controller) join; returns its id."""
        node = self._new_node(max(self._nodes) + 1, is_controller=False)
        self._nodes[node.node_id] = node
        self._configure(node)
        _format([node], self._cluster_id, (), self.release)
        self._launch(node)
        self.wait_ready()
        return node.node_id

    def wait_ready(self, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Wait until every running broker lists all running brokers with current addresses."""
        expected = {
            (node.node_id, node.ports[PLAINTEXT]) for node in self._running() if node.process
        }
        wait_until(
            lambda: all(expected <= self._seen_by(node) for node in self._running()),
            deadline_seconds,
            what="the brokers did not find each other",
            details=self.logs,
        )

    # --- administration

    def add_scram_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        """Add a user with AlterUserScramCredentials; return when the brokers know it."""
        salt = secrets.token_bytes(16)
        upsertion = {
            "name": name,
            "mechanism": _SCRAM_CODES[mechanism],
            "iterations": SCRAM_ITERATIONS,
            "salt": salt,
            "salted_password": salted_password(mechanism, password, salt, SCRAM_ITERATIONS),
        }
        self.ask(_ALTER_SCRAM, 0, deletions=[], upsertions=[upsertion])
        wait_until(
            lambda: all(self._knows_user(node, name, mechanism) for node in self._running()),
            what=f"no user {name}",
        )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; return when it is served. `replicas` are broker ids by partition."""
        assignments = [
            {"partition_index": index, "broker_ids": ids} for index, ids in (replicas or {}).items()
        ]
        topic = {
            "name": name,
            "num_partitions": -1 if assignments else partitions,
            "replication_factor": -1 if assignments else 1,
            "assignments": assignments,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        self.ask(_CREATE_TOPICS, 7, topics=[topic], timeout=60_000, validate_only=False)
        wait_until(
            lambda: self._has_leaders(name), what=f"no leaders for {name}", details=self.logs
        )

    def ask(self, api_key: int, version: int, **fields: object) -> Any:
        """Send a request to the first running broker; fail on any item's error code."""
        answer = ask(self.address(self._running()[0].node_id), api_key, version, fields)
        lists = (getattr(answer, name, ()) for name in ("results", "responses", "topics"))
        for item in chain.from_iterable(lists):
            if item.error_code != 0:
                raise ClusterFailed(f"{item}")
        return answer

    def log(self, node_id: int = 1) -> str:
        """A node's log."""
        return self._nodes[node_id].log.read_text(errors="replace")

    def logs(self) -> str:
        """The end of every node's log."""
        return "\n".join(node.log_tail() for node in self._nodes.values())

    # --- inside

    def _running(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.process is not None]

    def _client_listeners(self) -> list[str]:
        behind = [] if self.sidecar_port is None else [BEHIND]
        return [PLAINTEXT, *self.sasl_listeners, *behind]

    def _client_ports(self) -> list[int]:
        return free_ports(len(self._client_listeners()))

    def _create_nodes(self) -> None:
        controllers = self.controllers or self.nodes - (self.nodes + 1) % 2
        for node_id in range(1, self.nodes + 1):
            self._nodes[node_id] = self._new_node(node_id, is_controller=node_id <= controllers)
        for node in self._nodes.values():
            self._configure(node)
        _format(self._nodes.values(), self._cluster_id, self.features, self.release)

    def _new_node(self, node_id: int, *, is_controller: bool) -> _Node:
        directory = self._directory / str(node_id)
        directory.mkdir()
        names = [*self._client_listeners(), CONTROLLER]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        return _Node(node_id=node_id, directory=directory, is_controller=is_controller, ports=ports)

    def _configure(self, node: _Node) -> None:
        everything = {
            **properties.common(len(self._nodes)),
            "log.dirs": str(node.directory / "data"),
            **properties.of_node(
                node.node_id,
                node.ports,
                is_controller=node.is_controller,
                sidecar_port=self.sidecar_port,
                host=self.host,
            ),
            **properties.sasl(self.sasl_listeners, self.jwks),
            **self.properties,
            "controller.quorum.voters": ",".join(
                f"{other.node_id}@{self.host}:{other.ports[CONTROLLER]}"
                for other in self._nodes.values()
                if other.is_controller
            ),
        }
        text = "".join(f"{key}={value}\n" for key, value in everything.items())
        (node.directory / "server.properties").write_text(text)

    def _launch(self, node: _Node) -> None:
        options = ["-Xmx512m", *java.FAST_START, f"-Dlog4j2.configurationFile={_LOG4J}"]
        if self.jwks is not None:
            options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks.as_uri()}")
        path = ":".join(
            [java.class_path(self.release), *map(str, map(java.compiled, self.classes))]
        )
        command = ["java", *options, *self.jvm_options, "-cp", path, "kafka.Kafka"]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [*END_WITH_PARENT, *command, str(node.directory / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _seen_by(self, node: _Node) -> set[tuple[int, int]]:
        if node.process is not None and node.process.poll() is not None:
            raise ClusterFailed(f"ended with {node.process.returncode}\n{node.log_tail()}")
        try:
            answer = ask(self.address(node.node_id), _METADATA, 12, metadata_fields())
        except OSError:
            return set()
        return {(broker.node_id, broker.port) for broker in answer.brokers}

    def _knows_user(self, node: _Node, name: str, mechanism: str) -> bool:
        fields = {"users": [{"name": name}]}
        answer = ask(self.address(node.node_id), _DESCRIBE_SCRAM, 0, fields)
        infos = [info for one in answer.results for info in one.credential_infos]
        return _SCRAM_CODES[mechanism] in [int(info.mechanism) for info in infos]

    def _has_leaders(self, topic: str) -> bool:
        for node in self._running():
            answer = ask(self.address(node.node_id), _METADATA, 12, metadata_fields([topic]))
            found = answer.topics[0]
            if found.error_code != 0 or any(p.leader_id < 0 for p in found.partitions):
                return False
        return all(self._leads(p.leader_id, topic, p.partition_index) for p in found.partitions)

    def _leads(self, node_id: int, topic: str, partition: int) -> bool:
        """Whether a broker serves as leader, which is later than it is announced."""
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [wanted]}]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        answer = ask(self.address(node_id), _LIST_OFFSETS, 7, fields)
        return bool(answer.topics[0].partitions[0].error_code == 0)

    def _reap(self, node: _Node) -> None:
        if node.process is None:
            return
        try:
            node.process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
        node.process = None

    def _end(self) -> None:
        # Killed because the storage is deleted anyway.
        for node in self._running():
            if node.process is not None:
                node.process.kill()
        for node in self._running():
            self._reap(node)
        atexit.unregister(self._end)
        shutil.rmtree(self._directory, ignore_errors=True)


def wait_until(
    condition: Callable[[], bool],
    deadline_seconds: float = DEADLINE_SECONDS,
    *,
    what: str,
    details: Callable[[], str] = str,
) -> None:
    """Poll a condition; raise `ClusterFailed` with details after the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterFailed(f"{what} within {deadline_seconds} s\n{details()}")
        time.sleep(_POLL_SECONDS)


def kafka_uuid() -> str:
    """A random UUID in Kafka's notation, without a leading dash, which tools misread."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")


def _format(nodes: Iterable[_Node], cluster_id: str, features: Sequence[str], release: str) -> None:
    # In parallel, as each is a JVM that takes over a second.
    jvm = ["java", "-Xmx128m", *java.FAST_START]
    command = [java.TOOLS["kafka-storage"], "format", "--cluster-id", cluster_id]
    more = [option for feature in features for option in ("--feature", feature)]
    running = [
        (
            node,
            subprocess.Popen(
                [
                    *(*jvm, "-cp", java.class_path(release), *command),
                    *("--config", str(node.directory / "server.properties"), *more),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
        )
        for node in nodes
    ]
    for node, process in running:
        output, _ = process.communicate(timeout=START_DEADLINE_SECONDS)
        if process.returncode != 0:
            raise ClusterFailed(f"formatting node {node.node_id}:\n{output}")


StartCluster = Callable[..., KafkaCluster]
