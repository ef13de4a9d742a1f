"""Worker: the data path of its share of the connections, and the services beside it."""

import asyncio
import gc
import logging
import os
import pickle
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from sys import maxsize
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import uvloop

from metrics import registry
from metrics.event_lines import Line
from metrics.event_log import EventLogSettings
from metrics.event_writer import EventWriter
from metrics.events import SCHEMA_VERSION, EventKind, connection_ids
from metrics.history import Cadence, Timeline, UnauthenticatedEventLimit
from metrics.process import report_process
from metrics.report.formats import count
from metrics.snapshot import Snapshot
from metrics.tally import Tally
from metrics.usage import UsageLog
from proxy import __version__, config
from proxy.acl.model import AuthorizerMode
from proxy.brokers.access import open_access
from proxy.brokers.discovery import DiscoveredBroker
from proxy.config.listener import RevokeSessions
from proxy.connection.blocks import BlockList
from proxy.connection.commands import AnswerFromStore, CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.frames import COMPILED
from proxy.connection.interfaces import NoAuthorizer
from proxy.errors import BrokerFault, ConfigError
from proxy.net.read_buffer import ReadBuffer
from proxy.net.relay import ClientSide
from proxy.net.tls_contexts import follow as follow_certificates
from proxy.net.tls_sides import MAX_HANDSHAKES, ServerTls
from proxy.ops.observer import SessionObserver
from proxy.ops.rollout_service import RolloutService
from proxy.ops.sessions import Sessions
from proxy.ops.status.recent import CounterHistory
from proxy.ops.status.session_facts import Condition
from proxy.ops.status.text import duration
from proxy.ops.worker_queries import serve_control
from proxy.rollout import Decision, Promotions
from proxy.scheduling.lifeline import heed_parent, supervised
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.scheduling.steps import in_steps, timed
from proxy.store import CachedCredentials, open_users
from proxy.store.interface import StoreError
from proxy.worker.acceptor_link import AcceptedConnections
from proxy.worker.block_service import BlockService
from proxy.worker.connection_limits import ConnectionLimits, OpenConnections
from proxy.worker.endpoints import Endpoints
from proxy.worker.listener import Listener
from proxy.worker.signals import SignalService
from proxy.worker.slots import LoginSlots, Outage, Pace
from proxy.worker.store_service import StoreService, open_store_to_share
from proxy.worker.work_queues import SLICE_SECONDS, TimeSlices, WorkQueues

if TYPE_CHECKING:
    from proxy.worker.acl_service import AclService
    from proxy.worker.inputs import WorkerInputs
    from proxy.worker.quota_service import QuotaService


log = logging.getLogger(__name__)

TICK: Final = 1.0
"""Seconds between two runs of the periodic work."""
DRAIN_CHECK_EVERY: Final = 0.05
"""Seconds between two checks during a drain whether all connections have ended."""
MAX_DRAIN_PAUSE: Final = 0.25
"""Longest pause in seconds between two connections that are drained after a take-over. A client
whose connections all end at once starts over with its bootstrap servers (KIP-899, KIP-1102), and
clients that all log in at once wait for each other."""
GATE_CHECK_EVERY: Final = 0.05
"""Seconds between two checks of a worker that waits until it is ready."""
USAGE_MINUTES: Final = 5
"""Interval in minutes at which uses are recorded (`events.usage`)."""
USES_AT_ONCE: Final = 500
"""Number of uses that are counted or recorded in one iteration of the event loop, in about two
milliseconds."""
CLIENTS_AT_ONCE: Final = 256
"""Number of connections that are informed of new quotas, or swept, in one iteration of the event
loop."""


class Worker:
    """State of one worker."""

    def __init__(self, settings: config.Config, inputs: "WorkerInputs") -> None:
        self.loop = asyncio.get_running_loop()
        self.buffer = ReadBuffer()
        """The read buffer that all connections share."""
        self.memory_budget = MemoryBudget()
        """The memory of authenticated clients' long requests."""
        self.access = open_access(settings.upstream, inputs.tls.upstream)
        """The settings of connections to brokers."""
        self.number = inputs.number
        self.proxy_id = socket.gethostname()
        self.cadence = Cadence(checkpoint=settings.events.checkpoint_ms / 1000)
        self._settings = settings
        self._inputs = inputs
        self._started = time.time()
        self.connection_ids = connection_ids()
        """The source of globally unique ids for connections."""
        self.timeline = Timeline(wall=time.time(), now=self.loop.time())
        self._store = open_store_to_share(settings, inputs.tls, inputs.store_start)
        self._users = open_users(settings.store.users_file, self._store)
        self._credentials = CachedCredentials(self._users)
        self._is_configuration_stale = False
        """True if the last configuration file that was to be loaded was invalid."""
        self._configured_at = self._started
        """Unix time at which the configuration was taken over."""
        self._usage: UsageLog | None = None
        if settings.events.usage:
            stream_id = next(self.connection_ids)
            self._usage = UsageLog(stream_id, self.proxy_id, self.number, self.timeline)
        self._authorization = self._make_authorization()
        self._quotas = self._make_quotas()
        self._rights = self._authorization or NoAuthorizer(settings.authorizer.super_users)
        self._store_service = StoreService(
            self._store,
            self._users,
            self._credentials,
            self._authorization,
            self._quotas,
            rights_changed=self._rights_changed,
            quotas_changed=self._quotas_changed,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._time_slices = TimeSlices(self.loop)
        self.work_queues = WorkQueues(self._time_slices)
        """The queues of long work."""
        self.handshakes = LoginSlots[ServerTls](
            MAX_HANDSHAKES,
            silence=lambda client: client.age,
            displace=ServerTls.displaced,
            call_later=self.loop.call_later,
        )
        """The slots for TLS handshakes of clients."""
        self._revoked: list[object] = []
        """Versions of users and keys for which sessions were revoked."""
        self.blocks = BlockList()
        """The block list in force."""
        self._block_service = BlockService(
            settings, self.blocks, inputs.number, self._enforce_blocks
        )
        self._signals: SignalService | None = None
        if inputs.number == 0 and settings.block.signals.endpoint_url is not None:
            self._signals = SignalService(settings)
        self.outages: dict[DiscoveredBroker, Outage[ClientSide]] = {}
        """The brokers that cannot be reached, and the clients that are held for them."""
        self.paces: dict[DiscoveredBroker, Pace] = {}
        """The turns to connect to each broker; empty without `max.connection.creation.rate`."""
        self._stopping = asyncio.Event()  # until `run`
        self.tally = Tally(
            run=next(self.connection_ids),
            sessions=[
                (listener.name, mechanism)
                for listener in settings.listeners
                for mechanism in listener.sasl_enabled_mechanisms
            ],
            listeners=[listener.name for listener in settings.listeners],
            collect=self._collect,
        )
        self._events = self._event_writer()
        self.event_limit = UnauthenticatedEventLimit(workers=settings.workers)
        self._limits = ConnectionLimits(inputs.connections, inputs.number)
        self._limits.apply(settings.max_connections_per_ip, settings.address_limits())
        self._sessions = Sessions(
            inputs.number,
            lambda: self._listeners,
            self._not_ready,
            self._conditions,
            lambda: self._recent.since(self.tally.snapshot(), monotonic()),
        )
        self.incidents = self._sessions.incidents
        self._recent = CounterHistory(monotonic())
        self.rollout = RolloutService(
            settings, self._store, self.number, self._promote, self._record
        )
        self._listeners = [self._listener(one) for one in settings.listeners]
        accepted = None
        if inputs.link is not None:
            accepted = AcceptedConnections(inputs.link, self._listeners, inputs.acceptor)
        self._endpoints = Endpoints(
            self.spawn,
            settings,
            self._listeners,
            self.access,
            inputs.broker_ports,
            accepted,
            self._store,
        )

    # Parts

    def _event_writer(self) -> EventWriter | None:
        events = self._settings.events
        if events.directory is None:
            return None
        return EventWriter(
            EventLogSettings(
                directory=events.directory,
                proxy_id=self.proxy_id,
                worker=self._inputs.number,
                rotate_bytes=events.rotate_bytes,
                rotate_seconds=events.rotate_ms / 1000,
                retention_bytes=events.retention_bytes,
                delivered=events.deliver.to is not None,
                chained=events.hash_chain,
            )
        )

    def _listener(self, settings: config.Listener) -> Listener:
        listener = Listener(
            settings,
            services=self,
            credentials=self._credentials,
            fake_secret=self._users.scram_fake_secret(),
            rights=self._rights,
            open_connections=OpenConnections(
                self._limits, self._settings.listeners.index(settings)
            ),
            enforces_acls=self._settings.authorizer.mode is AuthorizerMode.ENFORCE,
            tls=self._inputs.tls.listeners.get(settings.name),
            quotas=self._quotas,
        )
        listener.observer = SessionObserver(listener, self)
        return listener

    def _make_quotas(self) -> "QuotaService | None":
        if self._inputs.usage is None:
            return None
        from proxy.worker.quota_service import QuotaService

        return QuotaService(
            self._settings.quotas, self._store, self._inputs.usage, self._inputs.number
        )

    def _make_authorization(self) -> "AclService | None":
        settings = self._settings.authorizer
        if settings.mode is AuthorizerMode.OFF:
            return None
        from proxy.worker.acl_service import AclService

        return AclService(settings, self._store, observer=self._observer_of, usage=self._usage)

    def _observer_of(self, connection: Connection) -> SessionObserver:
        name = connection.rules.listener
        return next(one.observer for one in self._listeners if one.name == name)

    def emit(self, line: str) -> None:
        """Write a line to the event log, if there is one."""
        if self._events is not None:
            self._events.emit(line)

    def _record(self, principal: str, decision: Decision) -> None:
        line = Line()
        line.number("schema_version", SCHEMA_VERSION)
        line.text("proxy_id", self.proxy_id)
        line.number("worker", self.number)
        line.unique_text("connection_id", next(self.connection_ids))
        line.text("kind", EventKind.DEMOTED if decision.probes else EventKind.PROMOTED)
        line.number("timestamp_ms", decision.at_ms)
        line.number("sequence", 0)
        line.text("principal", principal)
        line.text("decided_by", decision.author)
        line.unique_text("decision_reason", decision.reason)
        self.emit(line.finish())

    # Running

    async def run(self, lifeline: int) -> int:
        """Serve until it is stopped, then drain; return the exit status."""
        self._stopping = heed_parent(lifeline, self._inputs.heartbeat, reload=self._reload)
        self._reload()  # of before the fork, or since: until now, SIGHUP was ignored
        control = await serve_control(self._inputs.control, self._answer)
        self.loop.add_reader(self._inputs.connections.wakes[self._inputs.number], self._make_room)
        if self._events is not None:
            self._events.start()
        for listener in self._listeners:
            for keys in listener.keys.values():
                self.spawn(supervised(keys.run))
            for file in (listener.memberships, listener.password_file):
                if file is not None:
                    self.spawn(supervised(file.run))
        await self._open_until_stopped()
        await self._drain()
        if self._authorization is not None:
            self._authorization.close()
        await self._write_usage()
        if self._quotas is not None:
            self._quotas.close()
        control.close()
        if self._events is not None:
            await asyncio.to_thread(self._events.close)
        for task in self._tasks:
            task.cancel()  # before the store is closed
        self._block_service.close()
        self._store.close()
        return 0

    async def _open_until_stopped(self) -> None:
        opening = self.loop.create_task(self._open())
        stopping = self.loop.create_task(self._stopping.wait())
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            await opening
        await stopping
        opening.cancel()

    async def _open(self) -> None:
        """Accept clients, as soon as ACLs, quotas and users are known."""
        await self._store_service.known()
        await self.rollout.exchange()
        for listener in self._listeners:
            listener.fake_secret = self._store_service.fake_secret
        await self._endpoints.open(self._inputs.listening, self._may_accept)
        self._inputs.heartbeat.serve()
        self.spawn(supervised(self._tick))
        self.spawn(supervised(self._store_service.follow))
        self.spawn(supervised(self.rollout.run))
        self.spawn(supervised(self._block_service.run))
        if self._signals is not None:
            self.spawn(supervised(self._signals.run))
            self.spawn(supervised(self._signals.keys.run))
        if self._quotas is not None:
            pause_s = self._settings.upstream.metadata_max_age_ms / 1000
            follow = partial(self._quotas.follow, self._endpoints, self.access, pause_s)
            self.spawn(supervised(follow))
        if self._inputs.tls.all:
            self.spawn(follow_certificates(self._inputs.tls.all))
        if self._inputs.number == 0:
            for listener in self._listeners:
                line = f"listener {listener.name}: accepting on {listener.settings.address}"
                print(line, flush=True)  # noqa: T201 - scripts wait for it
            if self._inputs.proxy_start is not None and self._inputs.heartbeat.life == 1:
                log.info("started in %.2f s", monotonic() - self._inputs.proxy_start)

    async def _may_accept(self) -> None:
        """Wait until this worker is ready, if another process serves meanwhile."""
        logged: list[str] = []
        while self._inputs.gate.is_closed and (reasons := self._not_ready()):
            if reasons != logged:
                logged = reasons
                log.info("worker %d is not ready: %s", self._inputs.number, "; ".join(reasons))
            await asyncio.sleep(GATE_CHECK_EVERY)

    async def _drain(self) -> None:
        """Accept no clients, and let requests in flight finish, within `shutdown.drain.ms`."""
        self._endpoints.close()
        for listener in self._listeners:
            if listener.proxy_headers is not None:
                listener.proxy_headers.close()
        patience = self._settings.shutdown_drain_ms / 1000
        deadline = self.loop.time() + patience
        clients = self._clients()
        pause = 0.0
        if self._inputs.gate.is_closed:  # another process serves: those that wait lose nothing
            pause = min(MAX_DRAIN_PAUSE, patience / 2 / max(1, len(clients)))
            random.shuffle(clients)
        for client in clients:
            client.call(Connection.drain)
            if pause:
                await asyncio.sleep(pause)
        while self._clients() and self.loop.time() < deadline:  # noqa: ASYNC110 - no such event
            await asyncio.sleep(DRAIN_CHECK_EVERY)
        for client in self._clients():
            client.call(finishing(CloseReason.DRAINED))

    def _clients(self) -> list[ClientSide]:
        return [client for listener in self._listeners for client in listener.clients]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; an exception that ends it is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    async def _tick(self) -> None:
        minute = time.time() // 60
        while True:
            due = self.loop.time() + TICK
            await asyncio.sleep(TICK)
            self.tally.observe(registry.EVENT_LOOP_LAG, max(0.0, self.loop.time() - due))
            if time.time() // 60 != minute:
                minute = time.time() // 60
                await self._sweep(with_usage=minute % USAGE_MINUTES == 0)
            if self._authorization is not None:
                self._authorization.sweep()
            await self._revoke()

    async def _sweep(self, *, with_usage: bool) -> None:
        """Write the checkpoints and summaries that are due, at the end of a minute, and the uses of
        the last interval."""
        self._recent.remember(self.tally.snapshot(), monotonic())
        self.timeline.adjust(wall=time.time(), now=self.loop.time())
        uses = 0
        for listener in self._listeners:
            for number, client in enumerate(list(listener.clients)):
                if client.connection is not None and not client.connection.closed:
                    listener.observer.sweep(client.connection, monotonic())
                    if with_usage:
                        uses += client.connection.stages.flush_uses()
                if number % CLIENTS_AT_ONCE == CLIENTS_AT_ONCE - 1 or uses > USES_AT_ONCE:
                    uses = 0
                    await asyncio.sleep(0)
        if with_usage:
            await self._write_usage()

    async def _write_usage(self) -> None:
        if self._usage is None:
            return
        for number, line in enumerate(self._usage.lines(monotonic())):
            self.emit(line)
            if number % USES_AT_ONCE == USES_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _make_room(self) -> None:
        """Close connections in favour of those that other workers have accepted."""
        os.eventfd_read(self._inputs.connections.wakes[self._inputs.number])
        for listener in self._listeners:
            for connection in listener.open_connections.to_evict():
                connection.evict()

    def _promote(self, promotions: Promotions, first_lifetime_ms: int | None) -> None:
        for listener in self._listeners:
            listener.promote(promotions, first_lifetime_ms)

    def _rights_changed(self) -> None:
        """Apply changed rights to open connections."""
        for client in self._clients():
            client.call(Connection.rights_changed)

    async def _quotas_changed(self) -> None:
        """Apply changed quotas to open connections."""
        await self._call_all(Connection.apply_quotas, self._clients())

    async def _enforce_blocks(self) -> None:
        """Close the sessions that are blocked."""
        await self._end_sessions(Connection.end_if_blocked, self._clients())

    async def _revoke(self) -> None:
        """Close sessions whose user, password or key is gone, where that is configured."""
        keys = [one.cache.loaded_at for each in self._listeners for one in each.keys.values()]
        at_once = [
            one for one in self._listeners if one.settings.revoke_sessions is RevokeSessions.AT_ONCE
        ]
        before, self._revoked = self._revoked, [self._credentials.version, *keys, at_once]
        if before != self._revoked:
            clients = [client for one in at_once for client in one.clients]
            await self._end_sessions(Connection.end_if_revoked, clients)

    async def _end_sessions(
        self, end: Callable[[Connection, float], None], clients: Sequence[ClientSide]
    ) -> None:
        """Call `end` for clients, and expire the tokens of those that have no session here then."""
        connections = [one.connection for one in clients]
        open_before = {one for one in connections if one is not None and not one.closed}
        await self._call_all(end, clients)
        ended = {one.principal for one in open_before if one.closed and one.principal is not None}
        ended -= {one.principal for one in open_before if not one.closed}
        for principal in sorted(filter(None, ended)):
            try:
                await self.expire_tokens(principal)
            except BrokerFault as error:
                log.warning("the delegation tokens of %a were not expired: %s", principal, error)

    @staticmethod
    async def _call_all(
        what: Callable[[Connection, float], None], clients: Sequence[ClientSide]
    ) -> None:
        for number, client in enumerate(clients):
            client.call(what)
            if number % CLIENTS_AT_ONCE == CLIENTS_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _reload(self) -> None:
        taken = self._inputs.shared_configuration.take()
        if taken is None:
            return
        text, self._is_configuration_stale = taken  # the parent has logged why
        if not self._is_configuration_stale:
            self._configured_at = time.time()
        self.apply(pickle.loads(text))  # noqa: S301 - written by the parent

    def apply(self, settings: config.Config) -> None:
        """Put settings into effect that can be changed without a restart."""
        by_name = {one.name: one for one in settings.listeners}
        for listener in self._listeners:
            if listener.name in by_name:
                listener.apply(by_name[listener.name])
        self.rollout.apply(settings)
        self._limits.apply(settings.max_connections_per_ip, settings.address_limits())
        self._rights.replace_super_users(settings.authorizer.super_users)
        self._rights_changed()

    # Requests that need the store

    async def consult(self, question: AnswerFromStore) -> tuple[bytes, int]:
        """Answer a request about ACLs, quotas or SCRAM users; return body and time spent in ns."""
        answer, asking_ns = await self._store_service.consult(question)
        if isinstance(answer, bytes):
            return answer, asking_ns
        steps_ns: list[int] = []
        steps = in_steps(answer, max_values=maxsize, seconds=SLICE_SECONDS)
        body = await self._time_slices.run(timed(steps, steps_ns.append))
        return body, asking_ns + sum(steps_ns)

    async def expire_tokens(self, principal: str) -> int:
        """Expire the delegation tokens with which a client's principal logs in to brokers.

        That includes tokens of other workers and proxies; returns the number of tokens. Open
        sessions stay: close them before. Raises BrokerFault.
        """
        found = self._endpoints.any_broker()
        broker = None if found is None else found[0]
        return sum([await one.expire_tokens(principal, broker) for one in self._listeners])

    def query_soon(self, broker: DiscoveredBroker) -> None:
        """Query a broker soon that could not be reached, or refused the proxy's login."""
        self._endpoints.query_soon(broker)

    # Requests of the HTTP process

    def _answer(self, kind: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | Iterator[Any]:
        match kind:
            case "snapshot":
                return self._snapshot()
            case "ready":
                return {"reasons": self._not_ready()}
        return self._sessions.answer(kind, arguments)

    def _snapshot(self) -> Iterator[Mapping[str, Any] | None]:
        surveyed = Snapshot()
        yield from self._sessions.survey(surveyed)
        snapshot = self.tally.snapshot()
        snapshot.merge(surveyed)
        yield snapshot.to_json()

    def _not_ready(self) -> list[str]:
        reasons = [reason for one in self._listeners for reason in one.not_ready()]
        if self._stopping.is_set():
            reasons.append("draining")
        reasons += self._block_service.not_ready()
        # Brokers are not discovered before the store is known.
        return reasons + (self._store_service.not_ready() or self._endpoints.not_ready())

    def _conditions(self) -> list[Condition]:
        settings = self._settings
        modes = {"authorizer.mode": settings.authorizer.mode, "quotas.mode": settings.quotas.mode}
        found = [Condition("mode", name, str(mode), good=True) for name, mode in modes.items()]
        now, wall = monotonic(), time.time()
        loaded = f"loaded {duration(wall - self._configured_at)} ago"
        stale = self._is_configuration_stale
        state = f"{loaded}; the last reload was refused, see the log" if stale else loaded
        found.append(Condition("configuration", "last reload", state, good=not stale))
        if self._events is not None:
            lost, directory = self._events.lost, str(settings.events.directory)
            state = f"{count(lost, 'event')} lost since the start" if lost else "no event lost"
            where = f"{directory}, worker {self.number}" if lost else directory
            found.append(Condition("event log", where, state, good=not lost))
        for listener in self._listeners:
            found += listener.conditions(now, wall)
        found += self.rollout.conditions()
        found.append(self._block_service.condition())
        if self._signals is not None:
            found.append(self._signals.condition())
        return list(dict.fromkeys(found))

    def _collect(self, snapshot: Snapshot) -> None:
        """Add the values that are counted outside the tally."""
        report_process(
            snapshot,
            worker=self._inputs.number,
            version=__version__,
            compiled=COMPILED,
            started=self._started,
        )
        snapshot.gauge(registry.READY, not self._not_ready(), str(self._inputs.number))
        self.access.collect(snapshot)
        self._endpoints.collect(snapshot)
        if self._events is not None:
            self._events.report(snapshot, rate_limited=self.event_limit.dropped)
        snapshot.gauge(registry.CONFIGURATION_STALE, self._is_configuration_stale)
        snapshot.gauge(registry.CONFIGURATION_LOADED, self._configured_at)
        self._store_service.collect(snapshot)
        self.rollout.collect(snapshot)
        self._block_service.collect(snapshot)
        if self._signals is not None:
            self._signals.collect(snapshot)
        if self._authorization is not None:
            self._authorization.collect(snapshot)
        if self._quotas is not None:
            self._quotas.collect(snapshot, monotonic())
        for listener in self._listeners:
            listener.collect(snapshot, self.loop.time())


COLLECTOR_THRESHOLD: Final = 1_500
"""Number of allocations between two runs of the cycle collector. A closed connection is a cycle:
with more allocations, a run may find thousands of them, and block the event loop for tens of
milliseconds."""
SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which another thread, which may be making a response about 100,000 ACLs, must let
the event loop run. Python's default, five milliseconds, would be added to every iteration of the
loop."""
CHECK_EVERY: Final = 1.0
"""Seconds between two attempts to read the inputs of the start."""


def run(settings: config.Config, inputs: "WorkerInputs", lifeline: int) -> int:
    """Run a worker process until it is stopped; return its exit status.

    `settings` are those that the proxy was started with. `lifeline` ends with the parent.
    """

    async def main() -> int:
        worker = _made(settings, inputs, lifeline)
        if worker is None:
            return 0
        gc.freeze()  # the collector passes over what the worker has loaded, such as ACLs
        return await worker.run(lifeline)

    gc.set_threshold(COLLECTOR_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _made(settings: config.Config, inputs: "WorkerInputs", lifeline: int) -> Worker | None:
    """Make the worker as soon as its store and files can be read; None if the parent ended before.

    They could be read when the proxy started, so this worker waits for them: if it gave up, the
    proxy might end, and with it the connections of other workers.
    """
    logged = ""
    while True:
        try:
            return Worker(settings, inputs)
        except (StoreError, ConfigError) as error:
            if str(error) != logged:
                logged = str(error)
                log.error("worker %d waits to start: %s", inputs.number, logged)
            inputs.heartbeat.begin()  # a worker that waits does not hang
        if select.select([lifeline], [], [], CHECK_EVERY)[0]:
            return None
