"""The acceptor, step by step in this process: ports of brokers, connections beyond the limits."""

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from proxy.process.acceptor import Acceptor, Peer
from proxy.scheduling.heartbeats import Heartbeat
from proxy.worker.acceptor_link import LAST_OFFER, OFFER, OWN, RESET, WITHDRAW, EndpointId, Link

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
