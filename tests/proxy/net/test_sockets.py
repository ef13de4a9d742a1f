import asyncio
import os
import socket
from contextlib import ExitStack, closing, suppress

import pytest

from proxy.errors import ConfigError
from proxy.net.sockets import RECEIVE_BUFFER_BYTES, Claim, listen, peer_address
from tests.support.processes import PATIENCE_SECONDS, free_ports


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


@pytest.mark.parametrize("claimed", [False, True])
def test_the_kernel_keeps_a_bounded_part_of_what_a_client_sends(claimed: bool) -> None:
    """Or a re-authentication stands behind megabytes that a slow broker does not take."""
    sent = 0
    with ExitStack() as stack:
        if claimed:
            claim = stack.enter_context(closing(Claim("127.0.0.1", 0)))
            listening = stack.enter_context(claim.listen())
        else:
            listening = stack.enter_context(listen("127.0.0.1", 0))
        client = stack.enter_context(socket.create_connection(listening.getsockname()))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        with accepted(listening) as unread:
            client.settimeout(0.1)
            with suppress(TimeoutError):
                while True:
                    sent += client.send(bytes(4_096))
            assert 100_000 < sent < 2 * RECEIVE_BUFFER_BYTES
            assert len(unread.recv(100_000, socket.MSG_WAITALL)) == 100_000


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
