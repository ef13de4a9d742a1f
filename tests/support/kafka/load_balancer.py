"""A load balancer that forwards its ports to configurable targets."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from tests.support.kafka.wire_client import Address

#: A separate address, so that it can use the same ports as its targets.
HOST = "127.0.0.2"


class LoadBalancer:
    """A load balancer that listens on each port of `targets`."""

    def __init__(self, targets: Mapping[int, Address]) -> None:
        self._targets = dict(targets)
        self._listening = [socket.create_server((HOST, port)) for port in targets]
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        for listening in self._listening:
            threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for listening in self._listening:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self.cut()

    def route(self, targets: Mapping[int, Address]) -> None:
        """Change targets and cut existing connections."""
        self.route_others(targets)
        self.cut()

    def route_others(self, targets: Mapping[int, Address]) -> None:
        """Change targets of new connections."""
        self._targets |= targets

    def swap(self, one: int, other: int) -> None:
        """Swap the targets of two ports."""
        self.route({one: self._targets[other], other: self._targets[one]})

    def cut(self) -> None:
        """Cut existing connections."""
        with self._lock:
            connections, self._connections = self._connections, set()
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening: socket.socket) -> None:
        port = listening.getsockname()[1]
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._targets[port][:2])
            except OSError:
                near.close()
                continue
            with self._lock:
                self._connections |= {near, far}
            ended = threading.Event()
            for one, other in ((near, far), (far, near)):
                arguments = (one, other, ended)
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(
        self, source: socket.socket, target: socket.socket, ended: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if ended.is_set():  # both directions have ended
            with self._lock:
                self._connections -= {source, target}
            source.close()
            target.close()
        ended.set()
