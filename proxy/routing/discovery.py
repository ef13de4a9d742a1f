"""Discovery of brokers: which there are, where, and what they offer.

Rules:

- `on_broker_joined` comes before the target is ready: its port can be open before clients know it.
- A target object lives as long as its broker; host, port and versions change in place, so a
  connection reads them when it begins.
- `on_versions` comes exactly when what a broker offers is first known or has changed.
- The broker's silence changes nothing but `unreachable`: what was known stays until something else
  is known.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from proxy.errors import BrokerFault, LoginRefused
from proxy.log_rate_limit import LogRateLimit
from proxy.routing.brokers import BrokerTable, Gateway, Ports
from proxy.upstream.access import Access
from proxy.upstream.service_connection import fetch_api_versions, fetch_metadata
from proxy.wire.api_versions import UpstreamVersions
from proxy.wire.metadata import ClusterView

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 0.1
"""First wait after a failure in seconds, Kafka's `retry.backoff.ms`; also the least between two
rounds."""
MAX_BACKOFF: Final = 1.0
"""Longest wait after failures in seconds, Kafka's `retry.backoff.max.ms`."""
MAX_AFTER_REFUSAL: Final = 10.0
"""Longest wait after refused logins in seconds: where many of them lock an account, there must be
few."""
VERSIONS_MAX_AGE: Final = 60.0
"""Seconds after which a broker's versions are requested again: it may have been upgraded without a
client's connection failing in between."""
MAX_NAMED: Final = 10
"""Largest number of ids in one line of the log."""


@dataclass(slots=True, eq=False)
class DiscoveredBroker:
    """Broker that clients are connected to."""

    broker_id: int | None
    """The broker's id; None: `sidecar`, where it is not needed."""
    host: str
    port: int
    versions: UpstreamVersions | None = field(default=None, repr=False)
    """The versions that it offers; None: not known yet."""
    _asked_at: float | None = field(default=None, repr=False)
    """The time of the last response in monotonic seconds; None: it is queried in the next round."""
    fault: BrokerFault | None = field(default=None, repr=False)
    """The failure of the last query; None: it was answered, or there was none."""

    @property
    def ready(self) -> bool:
        """True if ApiVersions can be answered for it."""
        return self.versions is not None

    @property
    def refusal(self) -> str | None:
        """Why it does not let the proxy in; None: it does, or was not reached."""
        return self.fault.reason if isinstance(self.fault, LoginRefused) else None

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query failed; None: it was answered, or there was none."""
        return None if self.fault is None or self.refusal is not None else self.fault.reason

    def suspect(self) -> None:
        """Query it again in the next round: it may come back as another version."""
        self._asked_at = None

    def is_due(self, now: float) -> bool:
        """Return whether it is time to query its versions."""
        return self._asked_at is None or now - self._asked_at >= VERSIONS_MAX_AGE

    async def refresh(
        self, now: float, access: Access, repeats: LogRateLimit
    ) -> UpstreamVersions | None:
        """Ask what it offers; None: it did not answer, which the log says as often as `repeats`."""
        self._asked_at = now  # first, so that a `suspect` in the meantime is not forgotten
        try:
            upstream = await fetch_api_versions(self.host, self.port, access)
        except BrokerFault as fault:
            self._asked_at = None
            cause = f"versions of {self.host}:{self.port}"
            line = repeats.line(cause, f"API versions unknown: {fault.reason}", now)
            if line is not None:
                log.warning("%s", line)
            self.fault = fault
            return None
        self.fault = None
        return upstream


class Discovery(ABC):
    """Rounds of queries: at an interval, sooner when woken or after a failure."""

    def __init__(
        self,
        interval: float,
        access: Access,
        on_versions: Callable[[DiscoveredBroker], None],
    ) -> None:
        self._interval = interval
        self._access = access
        self._on_versions = on_versions
        self._woken = asyncio.Event()
        self._repeats = LogRateLimit()
        """The log's rate limit, shared by all targets: those that clients dial in vain are always
        new ones."""
        self._logged_unreachable = False
        """True if the log's last line says that no broker can be reached."""

    async def run(self) -> None:
        """Ask until cancelled."""
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
        """Seconds until the next round, after so many in a row in which something failed."""
        if not failures:
            return self._interval
        longest = MAX_BACKOFF if self.refusal is None else MAX_AFTER_REFUSAL
        return min(FIRST_BACKOFF * 2.0 ** min(failures, 10), longest, self._interval)

    @property
    def refusal(self) -> str | None:
        """Why brokers do not let the proxy in; None: they do, or were not reached."""
        return None

    @property
    @abstractmethod
    def unreachable(self) -> str | None:
        """Reason why the last query of every broker failed.

        None: one answered, if only to refuse the proxy's login, or there was none to query.
        """

    async def look(self, now: float) -> bool:
        """Make a round, and log when the brokers can no longer be reached, and when again."""
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

    @abstractmethod
    async def round(self, now: float) -> bool:
        """Ask once whatever is due at `now`; False: something did not answer."""

    @abstractmethod
    def knows(self, target: DiscoveredBroker) -> bool:
        """Return whether a host is where a broker's connections come from."""

    def wake(self, target: DiscoveredBroker | None = None) -> None:
        """Ask soon, because something is not as known: `target` could not be reached, say."""
        if target is not None:
            target.suspect()
        self._woken.set()

    async def _refresh(self, targets: Iterable[DiscoveredBroker], now: float) -> bool:
        due = [target for target in targets if target.is_due(now)]
        queries: list[asyncio.Task[UpstreamVersions | None]] = []
        async with asyncio.TaskGroup() as group:
            for target in due:
                question = target.refresh(now, self._access, self._repeats)
                queries.append(group.create_task(question))
                await asyncio.sleep(0)  # each begins in its own iteration of the loop
        answers = [one.result() for one in queries]
        for target, versions in zip(due, answers, strict=True):
            if versions is not None and versions != target.versions:
                target.versions = versions
                self._on_versions(target)
        return None not in answers


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
        """`on_versions` is called with what the broker offers."""
        super().__init__(VERSIONS_MAX_AGE, access, on_versions)
        self.target = DiscoveredBroker(None, host, port)

    def knows(self, target: DiscoveredBroker) -> bool:
        """Return whether a host is the broker's."""
        return target is self.target

    @property
    def refusal(self) -> str | None:
        """Why the broker does not let the proxy in."""
        return self.target.refusal

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query of the broker failed; None: it did not."""
        return self.target.unreachable

    async def round(self, now: float) -> bool:
        """Ask the broker what it offers, if that is due."""
        return await self._refresh((self.target,), now)


class ClusterDiscovery(Discovery):
    """Discovery of all brokers of a cluster, from a few addresses."""

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
    ) -> None:
        """`metadata_max_age`: seconds between two queries; `on_round` is called before each."""
        super().__init__(metadata_max_age, access, on_versions)
        self._bootstrap_servers = tuple(bootstrap_servers)
        self._on_broker_joined = on_broker_joined
        self._on_broker_left = on_broker_left
        self._on_round = on_round
        self._table = table or BrokerTable()
        self._gateways: list[Gateway] = []
        self._not_shown: list[int] = []
        """The ids of brokers without a port, as they were last logged."""
        self._turns = count()
        self._refusal: str | None = None
        self._unreachable: str | None = None
        self.targets: dict[int, DiscoveredBroker] = {}
        """The brokers by id."""

    def knows(self, target: DiscoveredBroker) -> bool:
        """Return whether a host is a broker's of the cluster."""
        return target.broker_id is not None

    @property
    def refusal(self) -> str | None:
        """Reason why every broker refuses the proxy's login; None: one does not."""
        return self._refusal

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query of the cluster failed; None: it did not."""
        return self._unreachable

    def gateway(self, advertised_host: str, ports: Ports) -> Gateway:
        """Return what one listener shows of this cluster."""
        gateway = Gateway(self._table, advertised_host, ports, self._learn)
        self._gateways.append(gateway)
        return gateway

    def bootstrap_target(self) -> DiscoveredBroker | None:
        """Return a broker for a bootstrap connection, in rotation; None: none is ready."""
        ready = [target for target in self.targets.values() if target.ready]
        return ready[next(self._turns) % len(ready)] if ready else None

    async def round(self, now: float) -> bool:
        """Look at the cluster, and ask the brokers what they offer where that is due."""
        self._on_round()
        view = await self._view(now)
        if view is not None:
            self._apply(self._shown(view, now), now)
        missing = self._table.missing  # down, most likely: not worth a round's time
        present = [one for id_, one in self.targets.items() if id_ not in missing]
        answered = await self._refresh(present, now)
        return answered and view is not None

    async def _view(self, now: float) -> ClusterView | None:
        """Ask the brokers one after the other, each round beginning with the next one."""
        known = [(target.host, target.port) for target in self.targets.values()]
        if known:
            index = next(self._turns) % len(known)
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
            else:
                self._refusal = self._unreachable = None
                answered = True
                if view.brokers:
                    return view
                reason = f"broker {host}:{port} knows of none"
            line = self._repeats.line(f"{host}:{port}", f"brokers unknown: {reason}", now)
            if line is not None:
                log.warning("%s", line)
        self._unreachable = None if answered else unreachable
        return None

    def _shown(self, view: ClusterView, now: float) -> ClusterView:
        """Return the view without the brokers that no listener has a port for."""
        not_shown, nowhere = set[int](), set(view.brokers)
        for gateway in self._gateways:
            without = {id_ for id_ in view.brokers if gateway.port_of(id_) is None}
            gateway.without_port = len(without)
            not_shown |= without
            nowhere &= without
        self._log_not_shown(sorted(not_shown), now)
        shown = {id_: broker for id_, broker in view.brokers.items() if id_ not in nowhere}
        return replace(view, brokers=shown)

    def _log_not_shown(self, ids: list[int], now: float) -> None:
        """Say once which brokers a listener's range of ports is too short for."""
        if ids == self._not_shown:
            return
        names = ", ".join(map(str, ids[:MAX_NAMED])) + ", …" * (len(ids) > MAX_NAMED)
        text = f"no port in broker.ports, and so not shown: broker {names} ({len(ids)} in all)"
        line = self._repeats.line("broker.ports", text, now) if ids else None
        if line is not None:
            log.warning("%s", line)
        if line is not None or not ids:
            self._not_shown = ids

    def _apply(self, view: ClusterView, now: float) -> None:
        changes = self._table.apply(view, now)
        for broker_id in changes.joined:
            self._join(broker_id)
        for broker_id in changes.moved:
            broker, target = self._table.brokers[broker_id], self.targets[broker_id]
            target.host, target.port = broker.host, broker.port
            target.suspect()
            log.info("broker %d moved to %s:%d", broker_id, broker.host, broker.port)
        for broker_id in changes.left:
            log.info("broker %d left", broker_id)
            self._on_broker_left(self.targets.pop(broker_id))

    def _join(self, broker_id: int) -> None:
        broker = self._table.brokers[broker_id]
        target = self.targets[broker_id] = DiscoveredBroker(broker_id, broker.host, broker.port)
        log.info("broker %d is at %s:%d", broker_id, broker.host, broker.port)
        self._on_broker_joined(target)

    def _learn(self, broker_id: int, host: str, port: int) -> None:
        """Follow up what a client's response says of a broker."""
        if self._table.learn(broker_id, host, port):
            self._join(broker_id)
        self.wake()
