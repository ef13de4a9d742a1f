"""Discovery of brokers: their ids, addresses and versions.

Rules:

- `on_broker_joined` is called before the broker is ready, so that its port is open before clients
  are given it.
- A `DiscoveredBroker` exists as long as its broker; host, port and versions change in place, so a
  connection reads them when it is opened.
- `on_versions` is called when a broker's versions are first known, and whenever they have changed.
- In a cluster, each broker is announced with the versions that all of its brokers offer: during an
  upgrade, a client sees the same versions at every broker.
- A broker that does not answer changes only `unreachable`: its known state stays.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import Final, Protocol

from proxy.brokers.access import Access
from proxy.brokers.gateway import BrokerTable, Gateway
from proxy.brokers.service_connection import fetch_broker, fetch_metadata
from proxy.config.values import BrokerHosts, PortMap, PortRange
from proxy.errors import BrokerFault, LoginRefused, host_port
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.wire.api_versions import (
    UNKNOWN_BROKER,
    BrokerIdentity,
    UpstreamVersions,
    common_versions,
)
from proxy.wire.metadata import BrokerAddress, ClusterView

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 0.1
"""First pause after a failure in seconds, Kafka's `retry.backoff.ms`; also the shortest between two
rounds."""
MAX_BACKOFF: Final = 1.0
"""Longest pause after failures in seconds, Kafka's `retry.backoff.max.ms`."""
MAX_AFTER_REFUSAL: Final = 10.0
"""Longest pause after refused logins in seconds: many of them could lock the proxy's account."""
VERSIONS_MAX_AGE: Final = 60.0
"""Seconds after which a broker's versions are requested again: it may have been upgraded while no
client's connection failed."""
DOUBT_BACKOFF: Final = 1.0
"""Shortest time in seconds between two queries of a broker that are made because it closed a
connection, or a client expects another broker."""


@dataclass(slots=True, eq=False)
class DiscoveredBroker:
    """Broker that clients are connected to."""

    broker_id: int | None
    """The broker's id; None if it is unknown, as in `sidecar` and `transparent`."""
    host: str
    port: int
    versions: UpstreamVersions | None = field(default=None, repr=False)
    """The versions that it offers; None until they are known."""
    common: Mapping[int, tuple[int, int]] | None = field(default=None, repr=False)
    """The versions by API key that all brokers of its cluster offer; None if only its own count."""
    identity: BrokerIdentity = field(default=UNKNOWN_BROKER, repr=False)
    """The broker that answered the last query."""
    _asked_at: float | None = field(default=None, repr=False)
    """Time of the last query in monotonic seconds; None if it is queried in the next round."""
    fault: BrokerFault | None = field(default=None, repr=False)
    """The failure of the last query; None if the query was answered, or before the first one."""
    reachable_since: float | None = None
    """Time in monotonic seconds since when all queries were answered; None if the last one was
    not."""
    connected_at: float = -inf
    """Time at which it last accepted a connection, in monotonic seconds."""

    @property
    def ready(self) -> bool:
        """True if its versions are known, so that clients can be served."""
        return self.versions is not None

    @property
    def refusal(self) -> str | None:
        """Reason why it refuses the proxy's login; None if it does not, or was not reached."""
        return self.fault.reason if isinstance(self.fault, LoginRefused) else None

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query failed; None if it was answered, or before the first query."""
        return None if self.fault is None or self.refusal is not None else self.fault.reason

    @property
    def announced(self) -> UpstreamVersions | None:
        """Versions that its clients are offered; they may use all that it offers."""
        if self.versions is None or self.common is None:
            return self.versions
        return replace(self.versions, apis=self.common)

    def query_soon(self) -> None:
        """Query it in the next round: it may have been upgraded."""
        self._asked_at = None

    def is_due(self, now: float) -> bool:
        """Return whether it is time to query its versions."""
        return self._asked_at is None or now - self._asked_at >= VERSIONS_MAX_AGE

    def was_queried_lately(self, now: float) -> bool:
        """Return whether it was queried so recently that another query can wait."""
        return self._asked_at is None or now - self._asked_at < DOUBT_BACKOFF

    async def refresh(
        self, now: float, access: Access, repeats: LogRateLimit
    ) -> UpstreamVersions | None:
        """Query its versions; return None if it did not answer, which is logged (`repeats` limits
        the rate)."""
        self._asked_at = now  # before the query, so that `query_soon` during it has an effect
        probable_id = self.broker_id
        if probable_id is None:
            probable_id = next(iter(self.identity.node_ids), None)
        try:
            upstream, self.identity = await fetch_broker(self.host, self.port, access, probable_id)
        except BrokerFault as fault:
            self._asked_at = None
            cause = f"versions of {host_port(self.host, self.port)}"
            repeats.warn(log, f"API versions unknown: {fault.reason}", now, cause=cause)
            self.fault, self.reachable_since = fault, None
            return None
        if self.reachable_since is None:
            self.reachable_since = now
        self.fault = None
        return upstream


class Discovery(ABC):
    """Rounds of queries: at an interval, and sooner when woken or after a failure."""

    def __init__(
        self, interval: float, access: Access, on_versions: Callable[[DiscoveredBroker], None]
    ) -> None:
        self._interval = interval
        self._access = access
        self._on_versions = on_versions
        self._woken = asyncio.Event()
        self._repeats = LogRateLimit()
        """The rate limit of log lines, shared by all brokers: with transparent routing, clients may
        name any number of them."""
        self._logged_unreachable = False
        """True if it was logged that no broker can be reached."""

    async def run(self) -> None:
        """Make rounds until cancelled."""
        failures = 0
        now = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            failures = 0 if await self.look(now()) else failures + 1
            await asyncio.sleep(FIRST_BACKOFF)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pause(failures)):
                    await self._woken.wait()

    def pause(self, failures: int) -> float:
        """Return the seconds until the next round, after `failures` failed ones in a row."""
        if not failures:
            return self._interval
        longest = MAX_BACKOFF if self.refusal is None else MAX_AFTER_REFUSAL
        return min(FIRST_BACKOFF * 2.0 ** min(failures, 10), longest, self._interval)

    @property
    def refusal(self) -> str | None:
        """Reason why brokers refuse the proxy's login; None if they do not, or were not reached."""
        return None

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query of every broker failed.

        None if a broker answered, if only to refuse the proxy's login, or has not been queried yet.
        """
        reasons = [broker.unreachable for broker in self._known()]
        return reasons[0] if reasons and None not in reasons else None

    @abstractmethod
    def _known(self) -> Collection[DiscoveredBroker]:
        """Return the brokers that were discovered so far."""

    async def look(self, now: float) -> bool:
        """Make a round; log when all brokers became unreachable, and when one is reachable
        again."""
        answered = await self.round(now)
        why = self.unreachable
        if why is None and self._logged_unreachable:
            self._logged_unreachable = False
            log.info("brokers can be reached again")
        elif why is not None and not self._logged_unreachable:
            line = self._repeats.line("unreachable", f"no broker can be reached: {why}", now)
            if line is not None:
                self._logged_unreachable = True
                log.error("%s", line)
        return answered

    async def round(self, now: float) -> bool:
        """Make the queries that are due at `now`; return False if one of them failed."""
        return await self._refresh(self._known(), now)

    def knows(self, broker: DiscoveredBroker) -> bool:
        """Return whether a broker is one of this discovery's."""
        return broker in self._known()

    def wake(self, broker: DiscoveredBroker | None = None) -> None:
        """Start the next round soon; it queries `broker`, which could not be reached."""
        if broker is not None:
            broker.query_soon()
        self._woken.set()

    async def _refresh(self, brokers: Iterable[DiscoveredBroker], now: float) -> bool:
        due = [broker for broker in brokers if broker.is_due(now)]
        queries: list[asyncio.Task[UpstreamVersions | None]] = []
        async with asyncio.TaskGroup() as group:
            for broker in due:
                question = broker.refresh(now, self._access, self._repeats)
                queries.append(group.create_task(question))
                await asyncio.sleep(0)  # each begins in its own iteration of the loop
        answers = [one.result() for one in queries]
        changed = []
        for broker, versions in zip(due, answers, strict=True):
            if versions is not None and versions != broker.versions:
                broker.versions = versions
                changed.append(broker)
        for broker in self._to_announce(changed):
            self._on_versions(broker)
        return None not in answers

    def _to_announce(self, changed: Collection[DiscoveredBroker]) -> Collection[DiscoveredBroker]:
        """Return the brokers whose announced versions change with those in `changed`."""
        return changed


class SidecarDiscovery(Discovery):
    """Discovery of one broker, whose address is configured."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        access: Access,
        on_versions: Callable[[DiscoveredBroker], None],
    ) -> None:
        """Query the broker at `host` and `port`; `on_versions` is called with changed versions."""
        super().__init__(VERSIONS_MAX_AGE, access, on_versions)
        self.broker = DiscoveredBroker(None, host, port)

    def _known(self) -> Collection[DiscoveredBroker]:
        return (self.broker,)

    @property
    def refusal(self) -> str | None:
        """Reason why the broker refuses the proxy's login; None if it does not."""
        return self.broker.refusal


class BrokerMemory(Protocol):
    """Store of the brokers that responses to clients named, shared by all workers."""

    async def exchange(self, learned: Mapping[int, BrokerAddress]) -> dict[int, BrokerAddress]:
        """Add the learned brokers, and return all. Raises BrokerFault."""


class ClusterDiscovery(Discovery):
    """Discovery of all brokers of a cluster, from a few addresses.

    Without a login, brokers cannot be asked for the others: they are learned from the responses
    that pass to clients, and kept in a `BrokerMemory`.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[tuple[str, int]],
        *,
        metadata_max_age: float,
        access: Access,
        on_broker_joined: Callable[[DiscoveredBroker], None],
        on_broker_left: Callable[[DiscoveredBroker], None],
        on_versions: Callable[[DiscoveredBroker], None],
        on_round: Callable[[], None] = lambda: None,
        table: BrokerTable | None = None,
        memory: BrokerMemory | None = None,
    ) -> None:
        """Query the cluster every `metadata_max_age` seconds; `on_round` is called before that.

        `memory` keeps the brokers that responses named; without it, brokers are asked.
        """
        super().__init__(metadata_max_age, access, on_versions)
        self._bootstrap_servers = tuple(bootstrap_servers)
        self._on_broker_joined = on_broker_joined
        self._on_broker_left = on_broker_left
        self._on_round = on_round
        self._table = table or BrokerTable()
        self._gateways: list[Gateway] = []
        self._misfits = ""
        """The text last logged about brokers without a port."""
        self._common: Mapping[int, tuple[int, int]] = {}
        """The versions that all brokers offer; empty before one is known."""
        self._rotation = count()
        self._refusal: str | None = None
        self._unreachable: str | None = None
        self.brokers: dict[int, DiscoveredBroker] = {}
        """The brokers by id."""
        self._memory = memory
        self._learned: dict[int, BrokerAddress] = {}
        """Addresses that responses named, and that the memory does not have yet."""
        self._bootstrap = [
            DiscoveredBroker(None, host, port) for host, port in self._bootstrap_servers if memory
        ]
        """Broker behind each bootstrap address, if brokers cannot be asked for their ids."""

    def _known(self) -> Collection[DiscoveredBroker]:
        return [*self._bootstrap, *self.brokers.values()]

    def knows(self, broker: DiscoveredBroker) -> bool:
        """Return whether `broker` is or was a broker of the cluster."""
        return broker.broker_id is not None or broker in self._bootstrap

    @property
    def is_reached(self) -> bool:
        """True if a broker of the cluster was ever reached."""
        hidden = any(gateway.without_port for gateway in self._gateways)
        return hidden or any(broker.ready for broker in self._known())

    @property
    def refusal(self) -> str | None:
        """Reason why every broker refuses the proxy's login; None if one does not."""
        return self._refusal

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query of the cluster failed; None if it succeeded."""
        return self._unreachable if self._memory is None else super().unreachable

    def gateway(self, host: str | BrokerHosts, ports: PortRange | PortMap | int) -> Gateway:
        """Make the gateway of one listener."""
        gateway = Gateway(self._table, host, ports, self._learn)
        self._gateways.append(gateway)
        return gateway

    def bootstrap_broker(self) -> DiscoveredBroker | None:
        """Return a broker for a bootstrap connection, in rotation; None if no broker is ready."""
        known = self._bootstrap or self.brokers.values()
        ready = [broker for broker in known if broker.ready]
        ready = [broker for broker in ready if broker.fault is None] or ready
        return ready[next(self._rotation) % len(ready)] if ready else None

    def broker_at_port_of(self, broker_id: int) -> DiscoveredBroker | None:
        """Return the broker for a connection to the port or the name of `broker_id`.

        If that broker is unknown and only a login can find it, it is another broker, where the
        client logs in (`proxy.connection.logins`). None if no broker is ready.
        """
        known = self.brokers.get(broker_id)
        return self.bootstrap_broker() if known is None and self._bootstrap else known

    async def round(self, now: float) -> bool:
        """Query the cluster, and the versions of its brokers where that is due."""
        self._on_round()
        memory = self._memory
        view = await (self._view(now) if memory is None else self._remembered(memory, now))
        if view is not None:
            self._apply(self._shown(view, now), now)
        missing = self._table.missing  # mostly down: a timeout would delay the round
        present = [one for id_, one in self.brokers.items() if id_ not in missing]
        answered = await self._refresh([*self._bootstrap, *present], now)
        return answered and view is not None

    async def _remembered(self, memory: BrokerMemory, now: float) -> ClusterView | None:
        """Return the brokers that this worker or another has learned, now or earlier."""
        learned = dict(self._learned)
        try:
            brokers = await memory.exchange(learned)
        except BrokerFault as fault:
            text = f"brokers are not kept: {fault.reason}"
            self._repeats.warn(log, text, now, cause="memory")
            return None
        self._learned = {
            id_: address for id_, address in self._learned.items() if learned.get(id_) != address
        }
        brokers |= self._learned
        return ClusterView(brokers=brokers, controller_id=-1, cluster_id=None)

    def _to_announce(self, changed: Collection[DiscoveredBroker]) -> Collection[DiscoveredBroker]:
        """Announce the versions that all brokers offer, missing ones included: they may come
        back."""
        ready = [broker for broker in self.brokers.values() if broker.ready]
        if not ready:
            return changed
        common = common_versions(one.versions for one in ready if one.versions is not None)
        announced = changed
        if common != self._common:
            self._common = common
            announced = [*ready, *(one for one in self._bootstrap if one.ready)]
        for broker in announced:
            broker.common = common
        return announced

    async def _view(self, now: float) -> ClusterView | None:
        """Query brokers in turn until one answers; each round begins with the next broker."""
        known = [(broker.host, broker.port) for broker in self.brokers.values()]
        if known:
            index = next(self._rotation) % len(known)
            known = known[index:] + known[:index]
        unreachable: str | None = None
        answered = False
        for host, port in dict.fromkeys((*known, *self._bootstrap_servers)):
            try:
                view = await fetch_metadata(host, port, self._access)
            except LoginRefused as fault:
                self._refusal = reason = fault.reason
                answered = True
            except BrokerFault as fault:
                unreachable = reason = fault.reason
                for broker in self.brokers.values():
                    if (broker.host, broker.port) == (host, port):
                        broker.query_soon()  # in this round
            else:
                self._refusal = self._unreachable = None
                answered = True
                if view.brokers:
                    return view
                reason = f"broker {host_port(host, port)} lists no brokers"
            text = f"brokers unknown: {reason}"
            self._repeats.warn(log, text, now, cause=host_port(host, port))
        self._unreachable = None if answered else unreachable
        return None

    def _shown(self, view: ClusterView, now: float) -> ClusterView:
        """Return the view without the brokers for which no listener has a port."""
        nowhere = set(view.brokers)
        for gateway in self._gateways:
            if self._memory is None:  # else the view has only the learned brokers
                gateway.without_port.clear()
            nowhere &= {id_ for id_ in view.brokers if gateway.hide(id_)}
        self._log_misfits(now)
        shown = {id_: broker for id_, broker in view.brokers.items() if id_ not in nowhere}
        return view._replace(brokers=shown)

    def _log_misfits(self, now: float) -> None:
        """Log once which brokers have no port at a listener."""
        texts = {gateway.misfit for gateway in self._gateways if gateway.without_port}
        misfits = "; ".join(sorted(texts))
        if misfits == self._misfits:
            return
        line = self._repeats.line("broker.ports", misfits, now) if misfits else None
        if line is not None:
            log.warning("brokers are not shown to clients: %s", line)
        if line is not None or not misfits:
            self._misfits = misfits

    def _apply(self, view: ClusterView, now: float) -> None:
        changes = self._table.apply(view, now)
        for broker_id in changes.joined:
            self._join(broker_id)
        for broker_id in changes.moved:
            address, broker = self._table.brokers[broker_id], self.brokers[broker_id]
            broker.host, broker.port = address.host, address.port
            broker.query_soon()
            log.info("broker %d moved to %s", broker_id, host_port(broker.host, broker.port))
        for broker_id in changes.left:
            log.info("broker %d left", broker_id)
            self._on_broker_left(self.brokers.pop(broker_id))

    def _join(self, broker_id: int) -> None:
        address = self._table.brokers[broker_id]
        broker = DiscoveredBroker(broker_id, address.host, address.port)
        self.brokers[broker_id] = broker
        log.info("broker %d is at %s", broker_id, host_port(broker.host, broker.port))
        self._on_broker_joined(broker)

    def _learn(self, broker_id: int, host: str, port: int) -> None:
        """Handle a broker's address in a response to a client that differs from the known one."""
        if all(gateway.hide(broker_id) for gateway in self._gateways):
            if self._memory is not None:
                self.wake()  # to log it; otherwise the cluster's own view decides
            return
        if self._memory is not None:
            self._learned[broker_id] = BrokerAddress(host=host, port=port)
        if self._table.learn(broker_id, host, port):
            self._join(broker_id)
            self._lend_versions(self.brokers[broker_id])
        self.wake()

    def _lend_versions(self, broker: DiscoveredBroker) -> None:
        """Assume another broker's versions for a new one until it is queried: clients connect as
        soon as they have its address."""
        lender = next((one for one in self._bootstrap if one.ready), None)
        if lender is not None:
            broker.versions, broker.common = lender.versions, lender.common
            self._on_versions(broker)
