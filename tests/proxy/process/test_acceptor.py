"""How workers get connections: evenly, never to a hung one, and after any of them dies."""

import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from proxy.process.acceptor import Acceptor, Peer
from proxy.scheduling.heartbeats import Heartbeat
from proxy.worker.acceptor_link import LAST_OFFER, OFFER, OWN, RESET, WITHDRAW, EndpointId, Link
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


# The acceptor, step by step in this process


OWN_ADDRESS = EndpointId(0, OWN)
BROKER = EndpointId(0, 7)


class Stage:
    """An acceptor, and workers that take their connections on the test's command."""

    def __init__(self, workers: int, stack: ExitStack) -> None:
        self._stack = stack
        self.listening = stack.enter_context(listener())
        self.port = stack.enter_context(listener())
        self.links = [Link(1) for _ in range(workers)]
        for link in self.links:
            stack.enter_context(link.acceptor_end)
            stack.enter_context(link.worker_end)
        self.heartbeats = [Heartbeat() for _ in range(workers)]
        lifeline, alive = os.pipe()
        stack.callback(os.close, lifeline)
        stack.callback(os.close, alive)
        peers = [Peer(*one) for one in zip(self.links, self.heartbeats, strict=True)]
        sockets = {OWN_ADDRESS: self.listening, BROKER: self.port}
        self.acceptor = Acceptor(sockets, peers, lifeline)
        for heartbeat in self.heartbeats:
            heartbeat.begin()
            heartbeat.beat()

    def offer(self, endpoint: EndpointId) -> None:
        for link in self.links:
            assert link.send_message(OFFER, endpoint)

    def connect(self, listening: socket.socket, count: int) -> None:
        for _ in range(count):
            self._stack.enter_context(socket.create_connection(listening.getsockname()))

    def turn(self, times: int = 5) -> None:
        for _ in range(times):
            for heartbeat in self.heartbeats:
                heartbeat.beat()
            assert self.acceptor.turn(Heartbeat())

    def taken(self, worker: int) -> list[EndpointId]:
        endpoints = []
        while (taken := self.links[worker].receive_connection()) is not None:
            endpoint, _, connection = taken
            assert connection is not None
            self._stack.enter_context(connection)
            endpoints.append(endpoint)
        return endpoints


def listener() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    listening.setblocking(False)
    return listening


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.process.acceptor.BEAT_EVERY", 0.01)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_broker_s_port_is_its_own_entrance_until_its_broker_leaves(stack: ExitStack) -> None:
    stage = Stage(2, stack)
    stage.offer(BROKER)
    stage.turn()
    stage.connect(stage.port, 4)
    stage.turn()
    assert [stage.taken(worker) for worker in (0, 1)] == [[BROKER] * 2] * 2
    for link in stage.links:
        assert link.send_message(WITHDRAW, BROKER)
    stage.turn()
    stage.connect(stage.port, 1)
    stage.turn()
    assert stage.taken(0) + stage.taken(1) == []


def test_a_worker_that_knows_the_broker_of_a_port_is_preferred(stack: ExitStack) -> None:
    """The others would have the client log in only to learn about the broker."""
    stage = Stage(2, stack)
    for link in stage.links:
        assert link.send_message(LAST_OFFER, BROKER)
    stage.turn()
    stage.connect(stage.port, 2)
    stage.turn()
    assert [stage.taken(worker) for worker in (0, 1)] == [[BROKER], [BROKER]]
    assert stage.links[1].send_message(OFFER, BROKER)
    stage.turn()
    stage.connect(stage.port, 4)
    stage.turn()
    assert [stage.taken(worker) for worker in (0, 1)] == [[], [BROKER] * 4]


def test_connections_wait_for_a_worker_that_has_not_offered_all_its_endpoints(
    stack: ExitStack,
) -> None:
    """A broker has left only if a worker serves the listener's own address, but not its port."""
    stage = Stage(1, stack)
    stage.offer(BROKER)
    stage.turn()
    stage.heartbeats[0].begin()  # the worker is replaced
    client, accepted = socket.socketpair()
    stack.enter_context(client)
    stage.acceptor._waiting.append((BROKER, accepted))
    (link,) = stage.links
    assert link.send_message(RESET, OWN_ADDRESS)
    stage.turn()
    assert stage.taken(0) == []
    stage.offer(BROKER)
    stage.offer(OWN_ADDRESS)
    stage.turn()
    assert stage.taken(0) == [BROKER]


def test_an_address_is_left_alone_until_somebody_serves_it(stack: ExitStack) -> None:
    stage = Stage(1, stack)
    stage.connect(stage.listening, 1)
    stage.turn()
    assert stage.taken(0) == []
    stage.offer(OWN_ADDRESS)
    stage.turn()
    assert stage.taken(0) == [OWN_ADDRESS]


def test_what_workers_do_not_take_stays_in_the_backlog(stack: ExitStack) -> None:
    """The first worker with time can take it from there."""
    stage = Stage(2, stack)
    stage.offer(OWN_ADDRESS)
    stage.turn()
    stage.connect(stage.listening, 600)
    stage.turn(50)
    sent = sum(link.sent[0] for link in stage.links)
    assert sent < 400
    first = len(stage.taken(0))
    stage.turn(50)
    assert sum(link.sent[0] for link in stage.links) > sent, "one who takes is sent more"
    taken = first
    for _ in range(20):
        taken += len(stage.taken(0)) + len(stage.taken(1))
        stage.turn(50)
        if taken == 600:
            break
    assert taken == 600


def test_without_file_descriptors_it_waits(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not ask the kernel again and again for a connection that it cannot have."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("proxy.process.acceptor.PAUSE", 0.1)
    stage = Stage(1, stack)
    stage.offer(OWN_ADDRESS)
    stage.turn()
    stage.connect(stage.listening, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        stage.turn(2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stage.taken(0) == []
    (record,) = caplog.records
    assert record.getMessage() == "no connection can be accepted: Too many open files"
    stage.turn(50)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert stage.links[0].receive_connection() == (OWN_ADDRESS, 1, None), (
            "a worker has none, either"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_next_one_goes_to_who_has_fewest(stack: ExitStack) -> None:
    """Also when connections have ended, and whatever a worker that died left unsaid."""
    stage = Stage(2, stack)
    stage.offer(OWN_ADDRESS)
    stage.turn()
    stage.connect(stage.listening, 4)
    stage.turn()
    assert [link.sent[0] for link in stage.links] == [2, 2]
    stage.links[1].ended[0] = 2
    stage.connect(stage.listening, 2)
    stage.turn()
    assert [link.sent[0] for link in stage.links] == [2, 4]
