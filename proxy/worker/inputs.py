"""Inputs of a worker from its parent: sockets, certificates, configuration.

Workers get the configuration from the parent: if each read the file itself, a file that is written
twice within a moment could leave workers with different settings.
"""

import hashlib
import mmap
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.net.ports import BrokerPorts
from proxy.net.tls_contexts import ProxyTls
from proxy.quota.shared_memory import UsageTable
from proxy.scheduling.heartbeats import Heartbeat
from proxy.store.interface import StoreStart
from proxy.worker.acceptor_link import Link
from proxy.worker.connection_limits import Shared as SharedConnections

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_MAX_BYTES: Final = 2**31
"""Largest shared configuration in bytes: more than any file that can be loaded."""


class SharedConfiguration:
    """Configuration in memory that the parent shares with its workers.

    It is made before the fork. For a worker that reads during a write, `take` returns None; the
    parent's signal after the write makes it read again.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("configuration", os.MFD_CLOEXEC)

    def put(self, text: bytes, *, is_stale: bool = False) -> None:
        """Write the pickled configuration that is to be in effect; `is_stale`: the newest file is
        invalid, and it is that of an older one."""
        content = bytes([is_stale]) + text
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, hashlib.sha256(content).digest() + content, 0)

    def take(self) -> tuple[bytes, bool] | None:
        """Return the last configuration, and whether it is stale; None if none was written yet, or
        a write is under way."""
        written = os.pread(self._file, _MAX_BYTES, 0)
        digest, content = written[:_DIGEST_BYTES], written[_DIGEST_BYTES:]
        if digest != hashlib.sha256(content).digest():
            return None
        return content[1:], bool(content[0])


class Gate:
    """Gate in shared memory. While it is closed, another process serves, so workers start and drain
    slowly.

    It is made before the fork, and the parent alone moves it.
    """

    def __init__(self) -> None:
        self._byte = memoryview(mmap.mmap(-1, 1))

    @property
    def is_closed(self) -> bool:
        """True if another process serves the same addresses."""
        return self._byte[0] == 1

    def close(self) -> None:
        """Workers accept clients only when they are ready, and drain them one by one."""
        self._byte[0] = 1

    def open(self) -> None:
        """Workers accept clients at once: no other process serves."""
        self._byte[0] = 0


@dataclass(slots=True)
class WorkerInputs:
    """Inputs of one worker process, from its parent."""

    number: int
    """The worker's number, from 0."""
    connections: SharedConnections
    """The counts of connections that all workers share."""
    listening: dict[str, socket.socket] = field(default_factory=dict)
    """The socket of each listener's address, by listener name; empty if the acceptor has them."""
    link: Link | None = None
    """The link to the acceptor; None if it is the only worker, and accepts by itself."""
    acceptor: Heartbeat = field(default_factory=Heartbeat)
    """The acceptor's heartbeat, the same for all workers."""
    broker_ports: Mapping[str, BrokerPorts] = field(default_factory=dict)
    """The ports of brokers by listener name; the same for all workers."""
    tls: ProxyTls = field(default_factory=lambda: ProxyTls(listeners={}))
    """The TLS contexts of all listeners, and of connections to brokers."""
    proxy_start: float | None = None
    """The start of the proxy in monotonic seconds; None if unknown."""
    shared_configuration: SharedConfiguration = field(default_factory=SharedConfiguration)
    """The configuration as of the last SIGHUP."""
    store_start: StoreStart | None = None
    """The identity of the store that the proxy started with; None if any store is accepted."""
    usage: UsageTable | None = None
    """The usage of quotas that all workers share; None if quotas are off."""
    control: socket.socket = field(init=False)
    """The worker's end of the socket pair with the HTTP process."""
    scrape: socket.socket = field(init=False)
    """The HTTP process's end of that pair."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    """The worker's own heartbeat."""
    gate: Gate = field(default_factory=Gate)
    """The gate before its clients, the same for all workers."""

    def __post_init__(self) -> None:
        self.scrape, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
