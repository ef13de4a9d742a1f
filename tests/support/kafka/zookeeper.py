"""ZooKeeper on this machine, and Apache Kafka 3.9 that keeps everything in it."""

import atexit
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from tests.support.kafka import java
from tests.support.kafka.cluster import DEADLINE_SECONDS, START_DEADLINE_SECONDS, wait_until
from tests.support.kafka.wire_client import Address, ask, metadata_fields
from tests.support.processes import free_ports, is_stopped
from tests.support.zookeeper_tree import KAFKAS

_END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
_LOG4J = "-Dlog4j.configuration=none"
CHROOT = "/kafka"
SCRAM = "SCRAM"
_ACL_TOOL = "kafka.admin.AclCommand"
_CONFIG_TOOL = "kafka.admin.ConfigCommand"


def _launch(directory: Path, main_class: str, *arguments: str, options: Sequence[str] = ()) -> Any:
    path = java.class_path(java.ZOOKEEPER_VERSION)
    command = ["java", *java.FAST_START, *options, "-cp", path, main_class, *arguments]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [*_END_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _end(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        process.kill()
        process.wait()


class Ensemble:
    """ZooKeeper of one server, or of three; `sasl` are passwords of users of DIGEST-MD5."""

    def __init__(self, nodes: int = 1, *, sasl: dict[str, str] | None = None) -> None:
        self.nodes = nodes
        self._sasl = sasl
        self._directory = Path()
        self._ports = free_ports(nodes)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * nodes

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        atexit.register(self.close)
        peers = free_ports(2 * self.nodes)
        servers = "".join(
            f"server.{node + 1}=127.0.0.1:{peers[2 * node]}:{peers[2 * node + 1]}\n"
            for node in range(self.nodes)
            if self.nodes > 1
        )
        for node, port in enumerate(self._ports):
            directory = self._directory / str(node)
            (directory / "data").mkdir(parents=True)
            (directory / "data" / "myid").write_text(str(node + 1))
            provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            (directory / "zoo.cfg").write_text(
                f"tickTime=500\ninitLimit=40\nsyncLimit=10\ndataDir={directory / 'data'}\n"
                f"clientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
                + (f"authProvider.1={provider}\n" if self._sasl else "")
                + servers
            )
        if self._sasl:
            users = "".join(f' user_{name}="{password}"' for name, password in self._sasl.items())
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            (self._directory / "jaas").write_text(f"Server {{ {module} required{users}; }};\n")
        try:
            for node in range(self.nodes):
                self._start(node)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes:
            _end(process)
        atexit.unregister(self.close)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def servers(self) -> str:
        """As in `zookeeper.connect`, without the chroot."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def url(self) -> str:
        """As in `store.url`."""
        return f"zookeeper://{self.servers}{CHROOT}"

    def kill(self, node: int = 0) -> None:
        """SIGKILL."""
        _end(self._processes[node])
        self._processes[node] = None

    def start(self, node: int = 0) -> None:
        """Starts one that was killed, with its data; returns when there is a quorum."""
        self._start(node)
        self.wait_ready()

    def pause(self, node: int = 0) -> None:
        """SIGSTOP: accepts connections and answers nothing, as behind a broken network."""
        process = self._processes[node]
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), what="it goes on")

    def resume(self, node: int = 0) -> None:
        """SIGCONT."""
        process = self._processes[node]
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def _start(self, node: int) -> None:
        directory = self._directory / str(node)
        options = ["-Xmx96m", "-Dzookeeper.4lw.commands.whitelist=srvr", _LOG4J]
        if self._sasl:
            options.append(f"-Djava.security.auth.login.config={self._directory / 'jaas'}")
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        configuration = str(directory / "zoo.cfg")
        self._processes[node] = _launch(directory, main_class, configuration, options=options)

    def serving(self) -> list[int]:
        """Those that serve clients: they have a quorum."""
        return [node for node, port in enumerate(self._ports) if _serves(port)]

    def wait_ready(self) -> None:
        """Until all that run serve."""
        running = [node for node, process in enumerate(self._processes) if process is not None]
        wait_until(lambda: self.serving() == running, START_DEADLINE_SECONDS, what="no quorum")

    def make_nodes(self, **more: Any) -> None:
        """Make what a broker makes when it starts."""
        with self.client(**more) as client:
            for path in KAFKAS:
                client.ensure_path(path)

    @contextmanager
    def client(self, **more: Any) -> Iterator[Any]:
        """A client of the chroot, which is made if there is none."""
        with_root = KazooClient(self.servers, **more)
        with_root.start(timeout=DEADLINE_SECONDS)
        with_root.ensure_path(CHROOT)
        with_root.stop()
        with_root.close()
        client = KazooClient(f"{self.servers}{CHROOT}", **more)
        client.start(timeout=DEADLINE_SECONDS)
        try:
            yield client
        finally:
            client.stop()
            client.close()


def _serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(4_096)
    except OSError:
        return False


class ZookeeperKafka:
    """One broker of Kafka 3.9, with a listener for SCRAM beside the plain one."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._directory = Path()
        plain, scram = free_ports(2)
        self._ports = {"PLAINTEXT": plain, SCRAM: scram}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-"))
        atexit.register(self.close)
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items())
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        settings = {
            "broker.id": "1",
            "listeners": listeners,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{SCRAM}:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{module} required;",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{module} required;",
            "zookeeper.connect": f"{self._ensemble.servers}{CHROOT}",
            "zookeeper.session.timeout.ms": "6000",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "log.dirs": str(self._directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.enable": "false",
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / "server.properties").write_text(text)
        try:
            self._process = _launch(
                self._directory,
                "kafka.Kafka",
                str(self._directory / "server.properties"),
                options=["-Xmx384m", _LOG4J],
            )
            wait_until(self._is_ready, START_DEADLINE_SECONDS, what="no broker", details=self.log)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        _end(self._process)
        atexit.unregister(self.close)
        shutil.rmtree(self._directory, ignore_errors=True)

    def address(self, listener: str = "PLAINTEXT") -> Address:
        return Address("127.0.0.1", self._ports[listener])

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return len(ask(self.address(), 3, 12, metadata_fields()).brokers) == 1
        except OSError:
            return False

    # Its tools, and those of a Kafka that had `--zookeeper`

    def configs(self, *arguments: str) -> None:
        """kafka-configs.sh, to the broker."""
        self._tool(_CONFIG_TOOL, "--bootstrap-server", str(self.address()), "--alter", *arguments)

    def acls(self, *arguments: str) -> None:
        """kafka-acls.sh, to the broker."""
        self._tool(_ACL_TOOL, "--bootstrap-server", str(self.address()), *arguments)

    def old_configs(self, *arguments: str) -> None:
        """kafka-configs.sh of 2.8, to ZooKeeper."""
        servers = f"{self._ensemble.servers}{CHROOT}"
        self._tool(_CONFIG_TOOL, "--zookeeper", servers, "--alter", *arguments, is_old=True)

    def old_acls(self, *arguments: str) -> None:
        """kafka-acls.sh of 2.8, to ZooKeeper."""
        servers = f"zookeeper.connect={self._ensemble.servers}{CHROOT}"
        options = ("--authorizer-properties", servers)
        self._tool(_ACL_TOOL, *options, *arguments, is_old=True)

    def _tool(self, tool: str, *arguments: str, is_old: bool = False) -> None:
        release = java.OLD_TOOLS_VERSION if is_old else java.ZOOKEEPER_VERSION
        done = java.run_java(tool, arguments, release=release, jvm_options=[_LOG4J])
        assert done.exit_status == 0, done.stdout + done.stderr
        assert "Error while" not in done.stdout, done.stdout
