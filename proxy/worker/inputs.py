"""Inputs of a worker from its parent: sockets, certificates, configuration.

Workers get the configuration from the parent: a file that is written twice within a moment
would be another one for each who reads it, and some would enforce what others do not.
"""

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.child_process.heartbeats import Heartbeat
from proxy.net.ports import BrokerPorts
from proxy.quota.shared_memory import UsageTable
from proxy.store import Begun
from proxy.tls.contexts import TlsOfAll
from proxy.worker.acceptor_link import Link
from proxy.worker.connection_limits import Shared as SharedConnections

_DIGEST: Final = hashlib.sha256().digest_size
_LONGEST: Final = 2**31


class SharedConfiguration:
    """Memory that the parent shares with its workers; to be made before they are started.

    Whoever reads during a write gets nothing, and another signal follows.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("configuration", os.MFD_CLOEXEC)

    def put(self, text: bytes) -> None:
        """Leave what is to be in effect; nothing: what the file held was refused."""
        content = hashlib.sha256(text).digest() + text
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)

    def take(self) -> bytes | None:
        """Return what was left last; None: nothing yet, or it is just being put."""
        content = os.pread(self._file, _LONGEST, 0)
        digest, text = content[:_DIGEST], content[_DIGEST:]
        return text if digest == hashlib.sha256(text).digest() else None


@dataclass(slots=True)
class WorkerInputs:
    """Inputs of one worker process, from its parent."""

    number: int
    connections: SharedConnections
    """The counts of connections that all workers share."""
    listening: dict[str, socket.socket] = field(default_factory=dict)
    """The socket of each listener's address, by listener name; empty: the acceptor has them."""
    link: Link | None = None
    """The link to the acceptor; None: it is the only worker, and accepts by itself."""
    acceptor: Heartbeat = field(default_factory=Heartbeat)
    """The acceptor's heartbeat, the same for all workers."""
    broker_ports: Mapping[str, BrokerPorts] = field(default_factory=dict)
    """The ports of brokers by listener name; the same for all workers."""
    tls: TlsOfAll = field(default_factory=lambda: TlsOfAll(listeners={}))
    shared_configuration: SharedConfiguration = field(default_factory=SharedConfiguration)
    """The configuration as of the last SIGHUP."""
    begun: Begun | None = None
    """The store that the proxy began with; None: it has not begun yet."""
    usage: UsageTable | None = None
    """The usage of quotas that all workers share; None: quotas are off."""
    control: socket.socket = field(init=False)
    """The worker's end of the pair with the HTTP process."""
    scrape: socket.socket = field(init=False)
    """The HTTP process's end of that pair."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

    def __post_init__(self) -> None:
        self.scrape, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
