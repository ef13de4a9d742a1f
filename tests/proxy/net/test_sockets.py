"""Sockets: those that processes share, that systemd passes, and the ports of brokers."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from proxy.config import from_mapping
from proxy.config.values import PortRange
from proxy.errors import ConfigError
from proxy.net.ports import BrokerPorts, refuse_overlaps
from proxy.net.sockets import (
    RECEIVE_BUFFER_BYTES,
    Claim,
    Inherited,
    bound_receive_buffer,
    listen,
    of_systemd,
    peer_address,
)
from tests.support.frames import handshake
from tests.support.keepalive import options
from tests.support.processes import PATIENCE_SECONDS, free_port_range, free_ports
from tests.support.proxy_process import Serving
from tests.support.tables import table


@pytest.mark.parametrize(
    ("peername", "address"),
    [
        (("192.0.2.1", 50_000), "192.0.2.1"),
        (("::ffff:192.0.2.1", 50_000, 0, 0), "192.0.2.1"),  # of a socket on [::]
        (("2001:db8::1", 50_000, 0, 0), "2001:db8::1"),
        (("fe80::1", 50_000, 0, 4), "fe80::1%4"),  # 4: the interface, as Java writes it
        (None, None),
    ],
)
def test_an_address_has_one_spelling(peername: object, address: str | None) -> None:
    assert peer_address(asyncio.Transport({"peername": peername})) == address


def test_an_address_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            listen("127.0.0.1", port)
    assert str(refused.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_processes_share_an_address() -> None:
    """Every worker has a socket of its own on it (SO_REUSEPORT)."""
    first = listen("127.0.0.1", 0)
    second = listen("127.0.0.1", first.getsockname()[1])
    assert first.getsockname() == second.getsockname()
    first.close()
    second.close()


def is_free(port: int) -> bool:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def accepted(listening: socket.socket) -> socket.socket:
    """Accept a client, which may be connected a moment before the kernel has it to accept."""
    listening.settimeout(PATIENCE_SECONDS)
    return listening.accept()[0]


@pytest.mark.parametrize("logged_in", [False, True])
def test_the_kernel_keeps_a_bounded_part_of_what_a_client_sends(logged_in: bool) -> None:
    """Little before the login, and later not so much that a re-authentication waits for long."""
    sent = 0
    with closing(listen("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        with client, accepted(listening) as unread:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            if logged_in:
                bound_receive_buffer(unread)
            client.settimeout(0.1)
            with suppress(TimeoutError):
                while True:
                    sent += client.send(bytes(4_096))
            least, most = (RECEIVE_BUFFER_BYTES // 2, 3 * RECEIVE_BUFFER_BYTES)
            assert least < sent < most if logged_in else sent < least


def test_a_claimed_port_is_ours_alone_and_meets_no_client_of_ours() -> None:
    (port,) = free_ports(1)
    with closing(Claim("127.0.0.1", port)) as ours:
        ours.take()
        assert not is_free(port)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        with closing(Claim("127.0.0.1", port)) as second, pytest.raises(ConfigError):
            second.take()
        one, two = ours.listen(), ours.listen()
        with one, socket.create_connection(("127.0.0.1", port)):
            one.close()
            with two, accepted(two):  # the queue is that of all processes
                assert not is_free(port)
    assert is_free(port)


def test_a_claimed_port_listens_again_while_clients_of_before_are_connected() -> None:
    (port,) = free_ports(1)
    with (
        closing(Claim("127.0.0.1", port)) as ours,
        ours.listen() as listening,
        socket.create_connection(("127.0.0.1", port)),
        accepted(listening),
    ):
        ours.stop_listening()
        assert not is_free(port)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        with ours.listen(), socket.create_connection(("127.0.0.1", port)):
            assert not is_free(port)


def test_of_two_who_claim_a_port_at_once_one_has_it() -> None:
    """As two proxies do that a machine starts: each may have come as far as `bind`."""
    (port,) = free_ports(1)
    with socket.socket() as other, closing(Claim("127.0.0.1", port)) as ours:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        ours.take()
        with pytest.raises(OSError, match="in use"):
            other.listen()


def test_what_one_process_takes_its_siblings_have() -> None:
    """A port that another program had at the start is claimed by the first worker that can."""
    (port,) = free_ports(1)
    with closing(Claim("127.0.0.1", port)) as ours:
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(ConfigError):
                ours.take()
            assert not ours.would_be_shared()
        child = os.fork()
        if not child:
            try:
                ours.take()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert not is_free(port)
        assert ours.would_be_shared()
        ours.listen().close()


def test_a_socket_is_taken_once_by_any_name_of_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        inherited = Inherited([sock])
        assert inherited.left_of([sock]) == [f"127.0.0.1:{port}"]
        assert inherited.take("127.0.0.1", port + 1) is None
        assert inherited.take("localhost", port) is sock
        assert inherited.take("localhost", port) is None
        assert inherited.left_of([sock]) == []


def test_what_systemd_passed_to_another_process_is_left_alone() -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDNAMES": "x"}
    assert of_systemd(environment) == []
    assert not environment, "nor is it passed on"


def test_a_count_that_is_none_is_refused() -> None:
    environment = {"LISTEN_FDS": "-1", "LISTEN_PID": str(os.getpid())}
    with pytest.raises(ConfigError, match="LISTEN_FDS: '-1' is not a number of sockets"):
        of_systemd(environment)


AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "proxy", "serve", sys.argv[2]])
"""


class Activated(Serving):
    """A proxy that is started as by systemd, with sockets from 3 on."""

    passed: socket.socket

    def launch(self) -> None:
        passed = str(self.passed.fileno())
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", AS_SYSTEMD, passed, str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=[self.passed.fileno()],
            )


def test_clients_of_an_activated_proxy_wait_while_it_is_restarted(tmp_path: Path) -> None:
    """They are in the queue of a socket that systemd keeps."""
    proxy = Activated(tmp_path, workers=1)
    with socket.create_server(("127.0.0.1", proxy.port), backlog=64) as proxy.passed:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_SECONDS) as early:
                assert proxy.start(), proxy.log()
                early.sendall(handshake(1, "SCRAM-SHA-256"))
                answered = early.recv(1000)
            proxy.stop()
            assert answered
            assert "Traceback" not in proxy.log()


def test_a_socket_for_no_listener_is_a_mistake(tmp_path: Path) -> None:
    """Its clients would wait forever."""
    proxy = Activated(tmp_path, workers=1)
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as proxy.passed, closing(proxy.passed):
        refusal = "".join(proxy.refusal())
        proxy.stop()
    text = f"LISTEN_FDS: systemd passes 127.0.0.1:{port}, which is not the address of a listener"
    assert text in refusal


def test_a_socket_of_another_kind_is_a_mistake(tmp_path: Path) -> None:
    proxy = Activated(tmp_path, workers=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as proxy.passed:
        refusal = "".join(proxy.refusal())
        proxy.stop()
    assert "file descriptor 3 of systemd is not a listening TCP socket" in refusal


# Ports of brokers: one port, one key, whatever names a configuration has for an address


def refusal(first: str, second: str, ports: str, http: str | None = None) -> str:
    """The error about two gateways; empty if they are valid."""
    listeners = [
        {
            "name": name,
            "address": address,
            "routing": "gateway",
            "advertised.host": "gate",
            "broker.ports": broker_ports,
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        }
        for name, address, broker_ports in (("a", first, "9100-9199"), ("b", second, ports))
    ]
    config = from_mapping(
        {
            "upstream": {"bootstrap.servers": "127.0.0.1:9"},
            "listeners": listeners,
            "http": {"address": http},
        },
        base_dir=Path(),
    )
    try:
        refuse_overlaps(config)
    except ConfigError as error:
        return str(error)
    return ""


A, B = "listeners[0].broker.ports", "listeners[1].broker.ports"


@pytest.mark.parametrize(
    ("first", "second", "ports", "http", "problem"),
    table(__file__, "port_keys"),
)
def test_a_port_is_meant_by_one_key(
    first: str, second: str, ports: str, http: str | None, problem: str
) -> None:
    assert refusal(first, second, ports, http) == problem


def ports_of(workers: int) -> tuple[BrokerPorts, int]:
    """Two broker ports, and the first of them."""
    first = free_port_range(2)
    ports = PortRange(first, first + 1)
    return BrokerPorts("broker.ports", "127.0.0.1", ports, workers, Inherited()), first


def is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_clients_of_a_port_are_probed() -> None:
    """From the listening socket, without a system call for each client."""
    first = free_port_range(1)
    range_ = PortRange(first, first)
    with (
        closing(BrokerPorts("key", "127.0.0.1", range_, 1, Inherited(), 50_000)) as ports,
        ports.listen(first) as listening,
        socket.create_connection(("127.0.0.1", first)),
    ):
        listening.settimeout(PATIENCE_SECONDS)
        accepted, _ = listening.accept()
        with accepted:
            # Without TCP_USER_TIMEOUT: consumers may leave a response unread for minutes
            assert options(accepted) == (1, 50, 10, 3, 0)


def test_a_port_listens_for_as_long_as_a_worker_wants_it() -> None:
    """Workers learn at different times that a broker has left, or is back."""
    ports, first = ports_of(workers=2)
    with closing(ports):
        assert ports.take() == []
        for worker in (0, 1):
            ports.begin(worker)
            ports.listen(first).close()
        ports.leave(first)
        assert is_served(first), "worker 0 has not left it"
        ports.begin(0)
        ports.leave(first)
        assert not is_served(first)
        ports.listen(first).close()
        assert is_served(first), "the broker is back"


def test_a_restarted_worker_leaves_the_ports_of_brokers_that_have_left() -> None:
    ports, first = ports_of(workers=1)
    with closing(ports):
        child = os.fork()
        if not child:
            ports.listen(first)
            ports.listen(first + 1)
            os._exit(0)
        os.waitpid(child, 0)
        assert is_served(first), "clients wait for the next worker"
        ports.listen(first + 1).close()
        ports.settle()
        assert (is_served(first), is_served(first + 1)) == (False, True)


def test_a_port_that_another_process_may_use_is_not_closed_for_it() -> None:
    ports, first = ports_of(workers=1)
    with closing(ports):
        ports.listen(first).close()
        ports.share(True)
        ports.leave(first)
        assert is_served(first)
        ports.settle()
        assert is_served(first)
        ports.share(False)
        ports.settle()
        assert not is_served(first), "nobody would accept its clients"


def test_inherited_ports_listen_until_it_is_known_which_brokers_there_are() -> None:
    """A port that was only claimed stays closed; one that listened keeps its clients waiting."""
    old, first = ports_of(workers=2)
    with closing(old):
        old.take()
        with old.listen(first), socket.create_connection(("127.0.0.1", first)):
            sockets = [one.dup() for one in old.sockets()]
            old.close()
            inherited = Inherited(sockets)
            range_ = PortRange(first, first + 1)
            with closing(BrokerPorts("key", "127.0.0.1", range_, 1, inherited)) as new:
                assert new.take() == []
                assert (is_served(first), is_served(first + 1)) == (True, False)
                with new.listen(first) as listening, listening.accept()[0]:
                    pass
                new.settle()
                assert is_served(first)
                new.leave(first)
                assert not is_served(first)
