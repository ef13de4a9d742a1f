"""ZooKeeper on this machine, and Apache Kafka 3.9 that uses it."""

import atexit
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from kazoo.client import KazooClient

from tests.support.certificates import Authority
from tests.support.kafka import java
from tests.support.kafka.cluster import END_WITH_PARENT, START_DEADLINE_SECONDS, wait_until
from tests.support.kafka.wire_client import Address, ask, metadata_fields
from tests.support.processes import Namespace, free_ports, is_stopped
from tests.support.zookeeper_tree import KAFKAS

_LOG4J = "-Dlog4j.configuration=none"
CHROOT = "/kafka"
SCRAM = "SCRAM"
_ACL_TOOL = "kafka.admin.AclCommand"
_CONFIG_TOOL = "kafka.admin.ConfigCommand"
_AUTHENTICATION = "org.apache.zookeeper.server.auth"

T = TypeVar("T")


class _Servers(ABC):
    """Servers with their own directory, removed after the test."""

    def __init__(self) -> None:
        self._directory = Path()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        atexit.register(self.close)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for number in list(self._processes):
            self.kill(number)
        atexit.unregister(self.close)
        shutil.rmtree(self._directory, ignore_errors=True)

    @abstractmethod
    def _begin(self) -> None:
        """Start all servers; return when they are ready."""

    def kill(self, number: int = 0) -> None:
        """SIGKILL."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def _launch(
        self,
        number: int,
        main_class: str,
        configuration: Path,
        options: Sequence[str],
        prefix: Sequence[str] = (),
    ) -> None:
        path = java.class_path(java.ZOOKEEPER_VERSION)
        jvm = ["java", *java.FAST_START, *options, _LOG4J, "-cp", path]
        with (self._directory / "log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [*prefix, *END_WITH_PARENT, *jvm, main_class, str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


class Ensemble(_Servers):
    """ZooKeeper with one or several servers.

    `sasl` are passwords of users of DIGEST-MD5. With `authority`, `url` is that of ports with TLS,
    whose certificates are for `hosts`. With `at`, each server is in a namespace of its own, and
    what is done here is done beside the first one.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        sasl: dict[str, str] | None = None,
        authority: Authority | None = None,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        at: Sequence[Namespace] = (),
    ) -> None:
        super().__init__()
        self.nodes = nodes
        self._sasl = sasl
        self._authority = authority
        self._certified = hosts
        self._at = at
        self._ports = free_ports(nodes)
        self._secure_ports = free_ports(nodes)

    def _begin(self) -> None:
        peers = free_ports(2 * self.nodes)
        servers = [
            f"server.{node + 1}={self._host(node)}:{peers[2 * node]}:{peers[2 * node + 1]}"
            for node in range(self.nodes)
            if self.nodes > 1
        ]
        for node in range(self.nodes):
            directory = self._directory / str(node)
            (directory / "data").mkdir(parents=True)
            (directory / "data" / "myid").write_text(str(node + 1))
            lines = [*self._settings(node, directory), *servers]
            (directory / "zoo.cfg").write_text("\n".join(lines))
        if self._sasl:
            users = "".join(f' user_{name}="{password}"' for name, password in self._sasl.items())
            module = f"{_AUTHENTICATION}.DigestLoginModule"
            (self._directory / "jaas").write_text(f"Server {{ {module} required{users}; }};\n")
        if self._authority is not None:
            self._authority.write(self._directory)
            pem = self._authority.issue("zookeeper", self._certified).pem
            (self._directory / "server.pem").write_bytes(pem)
        for node in range(self.nodes):
            self._start(node)
        self.wait_ready()

    def _settings(self, node: int, directory: Path) -> Iterator[str]:
        yield from ("tickTime=500", "initLimit=40", "syncLimit=10", "admin.enableServer=false")
        yield f"dataDir={directory / 'data'}"
        yield f"clientPort={self._ports[node]}"
        yield f"clientPortAddress={self._host(node)}"
        if self._sasl:
            yield f"authProvider.1={_AUTHENTICATION}.SASLAuthenticationProvider"
        if self._authority is not None:
            yield "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
            yield f"secureClientPort={self._secure_ports[node]}"
            yield f"secureClientPortAddress={self._host(node)}"
            yield f"ssl.keyStore.location={self._directory / 'server.pem'}"
            yield f"ssl.trustStore.location={self._directory / 'ca.pem'}"
            yield "ssl.clientAuth=want"
            yield f"authProvider.x509={_AUTHENTICATION}.X509AuthenticationProvider"

    def _host(self, node: int) -> str:
        return self._at[node].address if self._at else "127.0.0.1"

    @property
    def servers(self) -> str:
        """Servers as in `zookeeper.connect`, without the chroot."""
        return self._listed(self._ports)

    @property
    def url(self) -> str:
        """As in `store.url`."""
        ports = self._ports if self._authority is None else self._secure_ports
        return f"zookeeper://{self._listed(ports)}{CHROOT}"

    def _listed(self, ports: Sequence[int]) -> str:
        return ",".join(f"{self._host(node)}:{port}" for node, port in enumerate(ports))

    def start(self, node: int = 0) -> None:
        """Restart a killed server with its data; return when there is a quorum."""
        self._start(node)
        self.wait_ready()

    def pause(self, node: int = 0) -> None:
        """SIGSTOP: the server accepts connections but answers nothing."""
        process = self._processes[node]
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), what="it goes on")

    def resume(self, node: int = 0) -> None:
        """SIGCONT."""
        self._processes[node].send_signal(signal.SIGCONT)

    def _start(self, node: int) -> None:
        options = ["-Xmx96m", "-Dzookeeper.4lw.commands.whitelist=srvr,dump"]
        if self._sasl:
            options.append(f"-Djava.security.auth.login.config={self._directory / 'jaas'}")
        self._launch(
            node,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            self._directory / str(node) / "zoo.cfg",
            options,
            self._at[node].prefix if self._at else (),
        )

    def serving(self) -> list[int]:
        """Servers that serve clients, which requires a quorum."""
        return [node for node in range(self.nodes) if "Mode:" in self._said(node, "srvr")]

    def leader(self) -> int:
        """The leader."""
        return next(n for n in range(self.nodes) if "Mode: leader" in self._said(n, "srvr"))

    def sessions(self) -> int | None:
        """Number of live sessions; None if the leader does not answer."""
        said = "".join(self._said(node, "dump") for node in range(self.nodes))
        found = re.search(r"Session Sets \(\d+\)/\((\d+)\)", said)
        return None if found is None else int(found[1])

    def wait_ready(self) -> None:
        """Wait until all running servers serve."""
        running = sorted(self._processes)
        wait_until(
            lambda: self.serving() == running,
            START_DEADLINE_SECONDS,
            what="no quorum",
            details=self.log,
        )

    def _said(self, node: int, word: str) -> str:
        """Return the answer to a four letter word, asked from the server's namespace."""

        def ask_it() -> str:
            address = (self._host(node), self._ports[node])
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(4_096), b"")).decode()

        try:
            return self.beside(node, ask_it)
        except OSError:
            return ""

    def beside(self, node: int, call: Callable[[], T]) -> T:
        """Call a function in the namespace of a server."""
        return self._at[node].inside(call) if self._at else call()

    def make_nodes(self, **more: Any) -> None:
        """Create the nodes that a broker creates at its start."""
        with self.client(**more) as client:
            for path in KAFKAS:
                client.ensure_path(path)

    @contextmanager
    def client(self, **more: Any) -> Iterator[Any]:
        """A client of the chroot, which is created if it is missing."""
        with_root = KazooClient(self.servers, **more)
        self.beside(0, with_root.start)
        with_root.ensure_path(CHROOT)
        with_root.stop()
        with_root.close()
        client = KazooClient(f"{self.servers}{CHROOT}", **more)
        self.beside(0, client.start)
        try:
            yield client
        finally:
            client.stop()
            client.close()


class ZookeeperKafka(_Servers):
    """One broker of Kafka 3.9, with a listener for SCRAM beside the plain one."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self._ensemble = ensemble
        plain, scram = free_ports(2)
        self._ports = {"PLAINTEXT": plain, SCRAM: scram}

    def _begin(self) -> None:
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
        configuration = self._directory / "server.properties"
        configuration.write_text(text)
        self._launch(0, "kafka.Kafka", configuration, ["-Xmx384m"])
        wait_until(self._is_ready, START_DEADLINE_SECONDS, what="no broker", details=self.log)

    def address(self, listener: str = "PLAINTEXT") -> Address:
        return Address("127.0.0.1", self._ports[listener])

    def _is_ready(self) -> bool:
        try:
            return len(ask(self.address(), 3, 12, metadata_fields()).brokers) == 1
        except OSError:
            return False

    # Its tools, and those of a release with `--zookeeper`

    def configs(self, *arguments: str) -> None:
        """Run kafka-configs.sh against the broker."""
        self._tool(_CONFIG_TOOL, "--bootstrap-server", str(self.address()), "--alter", *arguments)

    def acls(self, *arguments: str) -> None:
        """Run kafka-acls.sh against the broker."""
        self._tool(_ACL_TOOL, "--bootstrap-server", str(self.address()), *arguments)

    def old_configs(self, *arguments: str) -> None:
        """Run kafka-configs.sh of 2.8 against ZooKeeper."""
        servers = f"{self._ensemble.servers}{CHROOT}"
        self._tool(_CONFIG_TOOL, "--zookeeper", servers, "--alter", *arguments, is_old=True)

    def old_acls(self, *arguments: str) -> None:
        """Run kafka-acls.sh of 2.8 against ZooKeeper."""
        servers = f"zookeeper.connect={self._ensemble.servers}{CHROOT}"
        options = ("--authorizer-properties", servers)
        self._tool(_ACL_TOOL, *options, *arguments, is_old=True)

    def _tool(self, tool: str, *arguments: str, is_old: bool = False) -> None:
        release = java.OLD_TOOLS_VERSION if is_old else java.ZOOKEEPER_VERSION
        done = java.run_java(tool, arguments, release=release, jvm_options=[_LOG4J])
        assert done.exit_status == 0, done.stdout + done.stderr
        assert "Error while" not in done.stdout, done.stdout
