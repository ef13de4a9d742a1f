"""Brokers of a cluster, and the addresses under which a gateway shows them; pure.

Rules:

- A broker id keeps its port for ever: id N has the first port + N, in all workers.
- A broker that is missing from the cluster's view is kept for a grace time: Metadata lacks brokers
  that restart, and their clients return to the same port. It is not kept if another broker is at
  its address: nobody is sent to that one in its place.
- The cluster's own view decides where a broker is. The address in a response to a client counts
  only for a broker that is not known yet, and only if it is valid.
- A broker that no listener has a port for is ignored, however many there are: no client could be
  sent to it.
- No client is sent to a port that cannot be listened on: another program may use it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from proxy.config.values import PortRange
from proxy.wire.metadata import BrokerAddress, ClusterView, is_address

GRACE: Final = 300.0
"""Seconds for which a vanished broker is kept: as long as Kafka's clients keep metadata
(`metadata.max.age.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanges:
    """Ids of brokers that were added, removed or moved."""

    joined: tuple[int, ...] = ()
    """The ids of brokers that were not known before."""
    moved: tuple[int, ...] = ()
    """The ids of brokers whose host or port changed."""
    left: tuple[int, ...] = ()
    """The ids of brokers that have been missing for the grace time, or were replaced."""


class BrokerTable:
    """Brokers of the cluster, including those that are missing for less than the grace time."""

    __slots__ = ("_brokers", "_grace", "_missing_since")

    def __init__(self, grace: float = GRACE) -> None:
        self._brokers: dict[int, BrokerAddress] = {}
        self._missing_since: dict[int, float] = {}
        self._grace = grace

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        """The host and port of each broker, by id."""
        return self._brokers

    @property
    def missing(self) -> Collection[int]:
        """Ids of the brokers that the cluster's last view lacks, within the grace time."""
        return self._missing_since.keys()

    def apply(self, view: ClusterView, now: float) -> BrokerChanges:
        """Apply the cluster's view, and return what changed; `now` is monotonic seconds."""
        joined = tuple(id_ for id_ in view.brokers if id_ not in self._brokers)
        moved = tuple(
            id_
            for id_, broker in view.brokers.items()
            if id_ in self._brokers and _place(broker) != _place(self._brokers[id_])
        )
        for id_ in self._brokers.keys() - view.brokers.keys():
            self._missing_since.setdefault(id_, now)
        for id_ in view.brokers:
            self._missing_since.pop(id_, None)
        taken = {_place(broker) for broker in view.brokers.values()}
        left = tuple(
            id_
            for id_, since in self._missing_since.items()
            if now - since >= self._grace or _place(self._brokers[id_]) in taken
        )
        self._brokers.update(view.brokers)
        for id_ in left:
            del self._brokers[id_], self._missing_since[id_]
        return BrokerChanges(joined=joined, moved=moved, left=left)

    def learn(self, broker_id: int, host: str, port: int) -> bool:
        """Add a broker that a response to a client named; False: it was known."""
        if broker_id in self._brokers:
            return False
        self._brokers[broker_id] = BrokerAddress(host=host, port=port)
        return True


def _place(broker: BrokerAddress) -> tuple[str, int]:
    return broker.host, broker.port


class Gateway:
    """Addresses under which one listener presents the brokers."""

    __slots__ = (
        "_advertised_host",
        "_brokers",
        "_on_moved",
        "_ports",
        "unopened",
        "without_port",
    )

    def __init__(
        self,
        table: BrokerTable,
        advertised_host: str,
        ports: PortRange,
        on_moved: Callable[[int, str, int], None],
    ) -> None:
        """Show the brokers of `table` at `advertised_host`.

        `on_moved` is called with a broker's id, host and port if they differ from the table's.
        """
        self._brokers = table.brokers
        self._advertised_host = advertised_host
        self._ports = ports
        self._on_moved = on_moved
        self.without_port = 0
        """Number of brokers of the cluster that have no port in the listener's range."""
        self.unopened: dict[int, str] = {}
        """Reasons why a broker's port cannot be listened on, by broker id."""

    @property
    def not_shown(self) -> int:
        """Number of brokers that clients cannot be sent to."""
        return self.without_port + len(self.unopened)

    def port_of(self, broker_id: int) -> int | None:
        """Return the port of a broker; None: it has none in the listener's range."""
        return self._ports.port_of(broker_id)

    def resolve(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return the address that clients are given for a broker (`proxy.wire.addresses.Resolve`).

        `host` and `port` are the broker's own in the response that is rewritten; None: no address.
        """
        shown_port = self.port_of(node_id)
        if shown_port is None:
            return None
        known = self._brokers.get(node_id)
        moved = known is None or known.port != port or known.host != host
        if moved and is_address(host, port):
            self._on_moved(node_id, host, port)
        return None if node_id in self.unopened else (self._advertised_host, shown_port)
