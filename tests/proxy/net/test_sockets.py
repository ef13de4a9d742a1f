import asyncio
import os
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from proxy.errors import ConfigError
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
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.proxy_process import Serving


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
