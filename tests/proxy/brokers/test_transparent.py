"""Redirects of the kernel, in network namespaces: clients and brokers know nothing of the proxy."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.fake_broker import running_in
from tests.support.kafka.redirected import PROXY_UID, SCRIPT, run_unprivileged
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import Address, Outcome, WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.processes import Namespace, wired
from tests.support.proxy_process import ProxyProcess, eventually
from tests.support.sasl import Issuer

BROKERS = {1: "10.99.0.2", 2: "10.99.0.3", 3: "fd00:99::2"}
FORBIDDEN = {4: "10.99.0.4"}
METADATA = 3
PORT = 9_092


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Namespace, Namespace]]:
    """Clients and proxy here, brokers there."""
    hosts = {**BROKERS, **FORBIDDEN}
    there = tuple(f"{host}/{64 if ':' in host else 24}" for host in hosts.values())
    with wired(("10.99.0.1/24", "fd00:99::1/64"), there) as (here, yonder):
        addresses = {broker_id: f"{host}:{PORT}" for broker_id, host in hosts.items()}
        with running_in(yonder, addresses):
            yield here, yonder


class Proxy(ProxyProcess):
    """In a namespace, as a user of its own that may read this tree."""

    def __init__(
        self,
        directory: Path,
        here: Namespace,
        *,
        upstream: Mapping[str, str] | None = None,
        clients: Mapping[str, str] | None = None,
    ) -> None:
        listener = {
            "name": "clients",
            "address": "[::]:9094",
            "routing": "transparent",
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
            **(clients or {}),
        }
        allowed = [
            f"[{host}]:{PORT}" if ":" in host else f"{host}:{PORT}" for host in BROKERS.values()
        ]
        config = {
            "upstream": {
                "allowed": allowed,
                "socket.connection.setup.timeout.ms": 6_000,
                **(upstream or {}),
            },
            "listeners": [listener],
            "http": {"address": "127.0.0.1:9404"},
            "workers": 2,
        }
        super().__init__(config, directory)
        self.add_user("alice", "alice-secret", "SCRAM-SHA-256")
        run_unprivileged(self, here, directory)


@contextmanager
def readable_directory() -> Iterator[Path]:
    """One that another user may enter: those of pytest are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def proxy(world: tuple[Namespace, Namespace]) -> Iterator[Proxy]:
    with readable_directory() as directory, Proxy(directory, world[0]) as process:
        yield process


@pytest.fixture(params=["iptables", "nft"])
def redirected(
    request: pytest.FixtureRequest, world: tuple[Namespace, Namespace]
) -> Iterator[Namespace]:
    here = world[0]
    settings = {"TOOL": request.param, "PROXY_UID": PROXY_UID}
    here.run(str(SCRIPT), "up", **settings)
    here.run(str(SCRIPT), "up", **settings)
    yield here
    here.run(str(SCRIPT), "down", **settings)


def broker_reached(here: Namespace, host: str, ca: str | None = None) -> int:
    """Log in at an address, and return the id of the broker that answers there."""
    with here.inside(lambda: WireClient(Address(host, PORT, ca))) as client:
        actor = Actor(client, Issuer())
        actor.scram("alice")
        answer = actor.ask(METADATA, 12, request_body(METADATA, 12, **metadata_fields()))
    assert answer is not None, actor.lines
    (broker,) = answer.brokers
    return int(broker.node_id)


def test_each_broker_is_reached_at_its_own_address(redirected: Namespace, proxy: Proxy) -> None:
    """Three brokers behind one proxy, one of them with IPv6."""
    assert {host: broker_reached(redirected, host) for host in BROKERS.values()} == {
        host: broker_id for broker_id, host in BROKERS.items()
    }
    assert "WARNING" not in proxy.log()
    assert "closed: illegal_state" not in proxy.log()


def test_tls_above_the_redirect(redirected: Namespace, proxy: Proxy, tmp_path: Path) -> None:
    """The client verifies the broker that it dials, with the proxy's certificate for it."""
    authority = Authority()
    ca = authority.write(tmp_path)
    proxy.stop()
    secured = {"security.protocol": "SASL_SSL", "ssl.keystore.location": "server.pem"}
    try:
        with readable_directory() as directory:
            hosts = tuple(BROKERS.values())
            (directory / "server.pem").write_bytes(authority.issue(hosts=hosts).pem)
            with Proxy(directory, redirected, clients=secured):
                for broker_id, host in BROKERS.items():
                    assert broker_reached(redirected, host, str(ca)) == broker_id
    finally:
        proxy.start()


def is_closed(here: Namespace, host: str, port: int = PORT) -> bool:
    with here.inside(lambda: WireClient(Address(host, port))) as client:
        return client.receive() is Outcome.CLOSED


def test_a_destination_that_is_not_allowed_is_refused(redirected: Namespace, proxy: Proxy) -> None:
    assert is_closed(redirected, FORBIDDEN[4])
    refused = "10.99.0.4:9092 is not in upstream.allowed"
    eventually(lambda: refused in proxy.log(), "the refusal is logged")


def test_a_client_of_the_proxys_own_address_is_refused(redirected: Namespace, proxy: Proxy) -> None:
    """It was not redirected: the proxy would dial itself."""
    assert is_closed(redirected, "10.99.0.1", 9_094)
    assert is_closed(redirected, "::1", 9_094)
    eventually(lambda: "the proxy itself" in proxy.log(), "the refusal is logged")


def test_undoing_leaves_no_rule(world: tuple[Namespace, Namespace]) -> None:
    here = world[0]
    for tool in ("iptables", "nft"):
        here.run(str(SCRIPT), "up", TOOL=tool)
        assert "9094" in here.run("nft", "list", "ruleset")
        here.run(str(SCRIPT), "down", TOOL=tool)
        assert "9094" not in here.run("nft", "list", "ruleset")
        assert "REAUTH" not in here.run("iptables", "-t", "nat", "-S")


def test_a_loop_is_refused(world: tuple[Namespace, Namespace], proxy: Proxy) -> None:
    """The rules exempt another user than the proxy's, so what it dials comes back to it."""
    here = world[0]
    proxy.stop()
    proxy.start()  # it knows no broker yet
    here.run(str(SCRIPT), "up", PROXY_UID="4242")
    try:
        assert is_closed(here, BROKERS[1])
    finally:
        here.run(str(SCRIPT), "down")
    eventually(lambda: "redirect loop" in proxy.log(), "the loop is logged")


def test_a_loop_with_tls_towards_brokers_ends(
    world: tuple[Namespace, Namespace], proxy: Proxy
) -> None:
    """The proxy cannot read its own question, but each worker asks it once at a time."""
    here = world[0]
    proxy.stop()
    here.run(str(SCRIPT), "up", PROXY_UID="4242")
    try:
        with (
            readable_directory() as directory,
            Proxy(directory, here, upstream={"security.protocol": "SSL"}) as looping,
        ):
            assert is_closed(here, BROKERS[1])
            ended = "broker 10.99.0.2:9092: no answer within 6 s"
            eventually(lambda: ended in looping.log(), "the end of the loop is logged")
            refused = here.inside(
                lambda: looping.metric("connections_closed_total", reason="destination_refused")
            )
    finally:
        here.run(str(SCRIPT), "down")
        proxy.start()
    assert refused <= 1 + 2


@pytest.mark.parametrize(
    "environment",
    [{"PROXY_PORT": "1; reboot"}, {"FROM": "afar"}, {"BROKER_PORTS": "x"}, {"PROXY_UID": "root"}],
)
def test_the_script_takes_no_nonsense(
    world: tuple[Namespace, Namespace], environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [*world[0].prefix, SCRIPT, "up"],
        env={"PATH": "/usr/sbin:/usr/bin:/bin", **environment},
        check=False,
    )
    assert done.returncode == 2
