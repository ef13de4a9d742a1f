"""How workers get connections: evenly, never to a hung one, and after any of them dies."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.processes import is_stopped
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually

CONNECTIONS = 16

PATIENT = """
from proxy.process import acceptor
acceptor.STALE_CHECKS = 10_000
from proxy.cli import main
main()
"""
"""A proxy whose acceptor leaves out no worker that the machine is too busy to run for a moment."""


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(pid), "it stands still")


def connected(serving: Serving) -> list[socket.socket]:
    address = ("127.0.0.1", serving.port)
    return [socket.create_connection(address, PATIENCE_SECONDS) for _ in range(CONNECTIONS)]


def connected_evenly(serving: Serving, workers: list[int]) -> list[socket.socket]:
    """Connect until the workers have equal shares. A worker publishes its count a moment after a
    socket was opened or closed: one that is not run in between is sent one too many, or too few."""
    share = CONNECTIONS // len(workers)
    clients: list[socket.socket] = []

    def are_even() -> bool:
        for client in clients:
            client.close()
        eventually(lambda: not any(serving.connections(workers)), "nobody is there")
        clients[:] = connected(serving)
        eventually(lambda: sum(serving.connections(workers)) == CONNECTIONS, "all are there")
        return serving.connections(workers) == [share] * len(workers)

    eventually(are_even, "each has its share")
    return clients


def until_all_accept(serving: Serving, workers: list[int]) -> None:
    """Connect until each worker has been sent a connection: it has fewest as soon as it can take
    one. A worker that answers the HTTP process may not be able to yet."""
    before = serving.connections(workers)
    clients = []

    def have_all_more() -> bool:
        clients.append(socket.create_connection(("127.0.0.1", serving.port), PATIENCE_SECONDS))
        now = serving.connections(workers)
        return all(more > fewer for more, fewer in zip(now, before, strict=True))

    eventually(have_all_more, "all accept")
    for client in clients:
        client.close()
    eventually(lambda: serving.connections(workers) == before, "they are gone again")


def test_nobody_waits_for_a_worker_that_hangs(serving: Serving) -> None:
    """What it was sent before that was noticed, it has not taken: another one does."""
    serving.replace_nobody()
    serving.start()
    until_all_accept(serving, serving.children()[:2])
    hung = serving.children()[0]
    stop(hung)
    try:
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(lambda _: serving.handshake_error(), range(10)))
        assert answers == [0] * 10
        assert {serving.handshake_error() for _ in range(10)} == {0}, "none is sent to it now"
        assert is_stopped(hung)
    finally:
        os.kill(hung, signal.SIGCONT)


def test_nobody_waits_for_a_worker_that_died(serving: Serving) -> None:
    serving.program = ["-c", PATIENT]
    serving.start()
    dying, other, *_ = serving.children()
    until_all_accept(serving, [dying, other])
    stop(dying)
    clients = connected(serving)
    os.kill(dying, signal.SIGKILL)
    try:
        assert {serving.handshake_error() for _ in range(10)} == {0}
    finally:
        for client in clients:
            client.close()
    eventually(
        lambda: dying not in serving.children() and len(serving.children()) == 4,
        "it was started anew",
    )
    workers = [other, serving.children()[-1]]
    eventually(lambda: not any(serving.connections(workers)), "nobody is there")
    until_all_accept(serving, workers)
    for client in connected_evenly(serving, workers):
        client.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_acceptor_is_replaced(serving: Serving, how: signal.Signals) -> None:
    """Connections that it had sent on live on, and those that came meanwhile are accepted."""
    serving.check_often()
    serving.start()
    workers = serving.children()[:2]
    until_all_accept(serving, workers)
    clients = connected_evenly(serving, workers)
    share = CONNECTIONS // 2
    acceptor = serving.children()[2]
    os.kill(acceptor, how)
    assert serving.handshake_error() == 0
    assert not alive(acceptor)
    assert "acceptor was ended by SIGKILL, restarting it" in serving.log()
    for client in clients:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
    eventually(lambda: serving.connections(workers) == [share, share], "the handshake's is gone")
    until_all_accept(serving, workers)
    clients += connected(serving)
    eventually(lambda: sum(serving.connections(workers)) == len(clients), "all are there, too")
    assert min(serving.connections(workers)) > share, "both workers have more"
    for client in clients:
        client.close()


def test_a_proxy_that_drains_accepts_nobody(serving: Serving) -> None:
    """Neither do other processes of it, which would leave clients waiting."""
    serving.start()
    serving.until_up()
    http = serving.children()[3]
    stop(http)  # so that it takes its time
    try:
        serving.process.terminate()
        eventually(lambda: is_refused(serving.port), "nobody listens")
        assert serving.process.poll() is None
    finally:
        os.kill(http, signal.SIGCONT)


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in the queue of a socket that was just closed
        return False
    return False
