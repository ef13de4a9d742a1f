"""Brokers of a cluster, and the addresses under which a gateway presents them; pure.

Rules:

- A broker id keeps its port forever: id N has the first port + N, or the port that a map gives it,
  in all workers. With `broker.hosts` it keeps its name, and all brokers have the same port.
- A broker that is missing from the cluster's view is kept for a grace time: Metadata lacks brokers
  that restart, and their clients return to the same port. It is not kept if another broker has its
  address: no client is sent to the wrong broker.
- The cluster's own view decides where a broker is. The address in a response to a client counts
  only if the broker is still unknown and the address is valid.
- A broker for which no listener has a port is only counted and logged: clients cannot be sent to
  it.
- No client is sent to a port that cannot be listened on: another program may use it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from proxy.config.values import BrokerHosts, PortMap, PortRange
from proxy.wire.metadata import MAX_BROKERS, BrokerAddress, ClusterView, is_address

GRACE: Final = 300.0
"""Seconds for which a vanished broker is kept: as long as Kafka's clients keep metadata
(`metadata.max.age.ms`)."""
MAX_NAMED: Final = 10
"""Largest number of broker ids in a log line."""


class BrokerChanges(NamedTuple):
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
        """Apply the cluster's view, and return the changes; `now` is in monotonic seconds."""
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
        """Add a broker from a response to a client; return False if it was known."""
        if broker_id in self._brokers:
            return False
        self._brokers[broker_id] = BrokerAddress(host=host, port=port)
        return True


def _place(broker: BrokerAddress) -> tuple[str, int]:
    return broker.host, broker.port


class Gateway:
    """Addresses under which one listener presents the brokers."""

    __slots__ = ("_brokers", "_host", "_on_moved", "_ports", "unopened", "without_port")

    def __init__(
        self,
        table: BrokerTable,
        host: str | BrokerHosts,
        ports: PortRange | PortMap | int,
        on_moved: Callable[[int, str, int], None],
    ) -> None:
        """Present the brokers of `table` at one host, or at a host each and one port.

        `on_moved` is called with a broker's id, host and port if they differ from the table's, and
        for a broker without a port that is not in `without_port`.
        """
        self._brokers = table.brokers
        self._host = host
        self._ports = ports
        self._on_moved = on_moved
        self.without_port = set[int]()
        """Ids of the cluster's brokers that have no port in `broker.ports`."""
        self.unopened: dict[int, str] = {}
        """Reasons why a broker's port cannot be listened on, by broker id; the broker need not be
        known."""

    @property
    def not_shown(self) -> int:
        """Number of the cluster's brokers that clients cannot be sent to."""
        return len(self.without_port) + len(self._brokers.keys() & self.unopened.keys())

    @property
    def why_none_is_shown(self) -> str | None:
        """Reason why clients can be sent to no broker; None if they can, or no broker is known."""
        with_port = {id_ for id_ in self._brokers if self.port_of(id_) is not None}
        if isinstance(self._ports, int) or with_port - self.unopened.keys():
            return None
        if with_port or len(self.unopened) == len(self._ports):
            return self.unopened[min(self.unopened)]
        return self.misfit if self.without_port else None

    @property
    def misfit(self) -> str:
        """Description of the brokers without a port, and of a `broker.ports` that has ports for
        them."""
        assert not isinstance(self._ports, int)
        ids = sorted(self.without_port)
        names = ", ".join(map(str, ids[:MAX_NAMED])) + ", …" * (len(ids) > MAX_NAMED)
        return (
            f"no port in broker.ports, {self._ports}, for broker {names} ({len(ids)} in all):"
            f" {self._ports.with_brokers(ids)} would fit"
        )

    def hide(self, broker_id: int) -> bool:
        """Note a broker of the cluster that has no port; return False if it has one."""
        if self.port_of(broker_id) is not None:
            return False
        if len(self.without_port) < MAX_BROKERS:
            self.without_port.add(broker_id)
        return True

    def port_of(self, broker_id: int) -> int | None:
        """Return the port of a broker; None if `broker.ports` has no port for it."""
        if isinstance(self._ports, int):
            return self._ports if broker_id >= 0 else None
        return self._ports.port_of(broker_id)

    @property
    def listens(self) -> bool:
        """True if each broker has a port to listen on."""
        return not isinstance(self._ports, int)

    def resolve(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return the address that clients are given for a broker (`proxy.wire.addresses.Resolve`).

        `host` and `port` are the broker's own in the response that is rewritten. Returns None if
        clients cannot be sent to the broker.
        """
        shown_port = self.port_of(node_id)
        known = self._brokers.get(node_id)
        moved = known is None or known.port != port or known.host != host
        if moved and node_id >= 0 and node_id not in self.without_port and is_address(host, port):
            self._on_moved(node_id, host, port)
        if shown_port is None or node_id in self.unopened:
            return None
        shown = self._host
        return shown if isinstance(shown, str) else shown.host_of(node_id), shown_port
