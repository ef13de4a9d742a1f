"""Brokers of a cluster, and the addresses under which a gateway shows them; pure.

Rules:

- A broker id keeps its port for ever: id N is at the first port + N, in every worker alike.
- A broker that is missing from the cluster's view is kept for a grace time: a restart takes a
  broker out of Metadata, and its clients come back to the same port.
- The cluster's own view decides where a broker is; what a client's response says of it is only
  believed of brokers not known so far, and only if it is an address.
- A broker that no listener has a port for is passed over, however many there are: nobody could be
  sent to it.
- Nor is anybody sent to a port that cannot be listened on: another program may be there.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.wire.metadata import BrokerAddress, ClusterView, is_address

GRACE: Final = 300.0
"""Seconds for which a vanished broker is kept: as long as Kafka's clients keep metadata
(`metadata.max.age.ms`)."""


class Ports(Protocol):
    """Ports of a listener's `broker.ports`."""

    def port_of(self, broker_id: int) -> int | None:
        """Return the port of a broker; None: it has none in this range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanges:
    """Ids of brokers that were added, removed or moved."""

    joined: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    """The ids of brokers whose host or port changed."""
    left: tuple[int, ...] = ()


class BrokerTable:
    """Brokers of the cluster, and those that left it lately."""

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
        """Ids of the brokers that the cluster's last view lacks, in their time of grace."""
        return self._missing_since.keys()

    def apply(self, view: ClusterView, now: float) -> BrokerChanges:
        """Take over the cluster's view, and return what changed. `now` is monotonic seconds."""
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
        left = tuple(
            id_ for id_, since in self._missing_since.items() if now - since >= self._grace
        )
        self._brokers.update(view.brokers)
        for id_ in left:
            del self._brokers[id_], self._missing_since[id_]
        return BrokerChanges(joined=joined, moved=moved, left=left)

    def learn(self, broker_id: int, host: str, port: int) -> bool:
        """Add a broker first seen in a client's response; False if it was known."""
        if broker_id in self._brokers:
            return False
        self._brokers[broker_id] = BrokerAddress(host=host, port=port)
        return True


def _place(broker: BrokerAddress) -> tuple[str, int]:
    return broker.host, broker.port


class Gateway:
    """Addresses under which one listener presents the brokers."""

    __slots__ = ("_advertised_host", "_brokers", "_on_news", "_ports", "unopened", "without_port")

    def __init__(
        self,
        table: BrokerTable,
        advertised_host: str,
        ports: Ports,
        on_news: Callable[[int, str, int], None],
    ) -> None:
        """`on_news` is called with a broker's id, host and port if they differ from the table's."""
        self._brokers = table.brokers
        self._advertised_host = advertised_host
        self._ports = ports
        self._on_news = on_news
        self.without_port = 0
        """Number of brokers of the cluster that have no port in the listener's range."""
        self.unopened: dict[int, str] = {}
        """Reasons why a broker's port cannot be listened on, by broker id."""

    @property
    def not_shown(self) -> int:
        """Return how many brokers clients cannot be sent to."""
        return self.without_port + len(self.unopened)

    def port_of(self, broker_id: int) -> int | None:
        """Return the port that is a broker's; None: it has none."""
        return self._ports.port_of(broker_id)

    def resolve(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return the address that clients are given for a broker's own: `addresses.Resolve`."""
        shown_port = self.port_of(node_id)
        if shown_port is None:
            return None
        known = self._brokers.get(node_id)
        moved = known is None or known.port != port or known.host != host
        if moved and is_address(host, port):
            self._on_news(node_id, host, port)
        return None if node_id in self.unopened else (self._advertised_host, shown_port)
