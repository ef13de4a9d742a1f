"""Parent process: starts and restarts the child processes, forwards signals.

It runs no event loop and no thread, so that forking is safe at any time. It binds the listeners'
addresses itself: an address in use is one clear line before anything runs, and clients that connect
while the accepting process is restarted wait in the socket's backlog.
"""

import gc
import logging
import os
import pickle
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metrics.event_files import make_directory
from proxy.acl.model import AuthorizerMode
from proxy.brokers.own_requests import (
    OWN_CORRELATION_ID as OWN_CORRELATION_ID,  # chosen here, so that all workers share it
)
from proxy.config import Config, Listener, QuotasMode
from proxy.errors import ConfigError, ProxyError, printable
from proxy.net.ports import BrokerPorts, refuse_overlaps
from proxy.net.proxied_client import most_waiting
from proxy.net.sockets import (
    Claim,
    Inherited,
    keep_alive,
    listen,
    listen_privately,
    remove_left_over,
)
from proxy.net.sockets import of_systemd as sockets_of_systemd
from proxy.net.tls_contexts import open_tls
from proxy.ops.http_process import run as run_http
from proxy.ops.status.session_facts import Condition
from proxy.process import acceptor
from proxy.process.children import Child, Children
from proxy.process.start import (
    InvalidFile,
    ShortLived,
    Validated,
    banner,
    check_callback,
    configure_log,
    validate_change,
    without_users,
)
from proxy.process.take_over import READY_SECONDS, Answer, Predecessor, Successor, path_beside
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.scheduling.file_signature import signature_of
from proxy.scheduling.heartbeats import CHECK_EVERY, Heartbeat
from proxy.store import open_store
from proxy.store.block_file import BlockFile
from proxy.store.interface import StoreError, StoreInUse, StoreStart
from proxy.worker.acceptor_link import OWN, EndpointId, Link
from proxy.worker.connection_limits import Shared as SharedConnections
from proxy.worker.identity_services import lists_of
from proxy.worker.inputs import Gate, SharedConfiguration, WorkerInputs
from proxy.worker.worker import run as run_worker

if TYPE_CHECKING:
    from proxy.delivery.counts import DeliveryCounts

log = logging.getLogger(__name__)

SIGNALS: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM}
)
_HTTP: Final = ""
"""Name of the HTTP address among those of listeners, whose names are not empty."""
KILL_AFTER: Final = 5.0
"""Seconds beyond `shutdown.drain.ms`, or `events.deliver.drain.ms`, after which a child that still
runs is killed."""


_NOTIFY_SECONDS: Final = 1.0
"""Seconds for which the service manager may take no notification."""


class ServiceManager:
    """Service manager (systemd) that started the proxy, if it wants notifications: sd_notify(3)."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Remove the variable that names its socket, so that no child process can send
        notifications."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._is_ready = False

    def serves(self) -> None:
        """Report that the proxy serves, or that a reload is over."""
        if not self._is_ready:
            self._is_ready = True
            self._notify("READY=1")

    def reloads(self) -> None:
        """Report that a reload begins; `serves` is to be called after it."""
        if self._is_ready:
            self._is_ready = False
            self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stops(self) -> None:
        """Report that the proxy drains, and then ends."""
        self._notify("STOPPING=1")

    def is_replaced(self, pid: int) -> None:
        """Report that another process is the service's main process from now on."""
        self._notify(f"MAINPID={pid}")

    def _notify(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_NOTIFY_SECONDS)
                sock.connect(self._address)
                sock.send("\n".join(assignments).encode())
        except OSError as error:
            log.warning("systemd is not notified (%s): %s", assignments[0], error)


class Server:
    """State of the parent."""

    def __init__(
        self,
        path: Path,
        validated: Validated,
        heartbeat: Heartbeat,
        *,
        follow: bool,
        take_over: bool,
        begun: float,
    ) -> None:
        config: Config = pickle.loads(validated.config)  # noqa: S301 - from our own child
        self._path = path
        self._follow = follow
        self._validated = validated
        self._latest = validated.config
        """The configuration as of the last reload, pickled; what needs a restart is not in
        effect."""
        self._seen = signature_of(path)
        """The signature of the file when it was last read."""
        self._config = config
        self._take_over = take_over
        self._predecessor: Predecessor | None = None
        """The running proxy that this one takes over from; None if this one serves."""
        self._successor: Successor | None = None
        """The process that may take over from this one; None if none can."""
        self._give_up_at = 0.0
        """The time at which this process gives up taking over, in monotonic seconds."""
        self._gate = Gate()
        self._service_manager = ServiceManager()
        tls = open_tls(config, time.time())
        usage = _usage_table(config)
        max_connections = [listener.max_connections for listener in config.listeners]
        connections = SharedConnections.of_processes(config.workers, max_connections)
        self._broker_ports: dict[str, BrokerPorts] = {}
        self._acceptor_heartbeat = Heartbeat()
        self._listening: dict[str, socket.socket] = {}
        """The sockets of the listeners' addresses, by listener name."""
        self._shared_configuration = SharedConfiguration()
        self._workers = [
            WorkerInputs(
                number,
                connections,
                broker_ports=self._broker_ports,
                tls=tls,
                shared_configuration=self._shared_configuration,
                usage=usage,
                link=Link(len(config.listeners)) if config.workers > 1 else None,
                acceptor=self._acceptor_heartbeat,
                gate=self._gate,
                proxy_start=begun,
            )
            for number in range(config.workers)
        ]
        # Children read one end of the pipe; it reaches its end when the parent ends, however.
        self._lifeline, self._lifeline_writer = os.pipe()
        self._http_socket: socket.socket | None = None
        self._admin_socket: socket.socket | None = None
        self._store_start: StoreStart
        self._heartbeat = heartbeat
        self._delivery = _delivery_counts(config)
        self._children = Children((), self._leave_to_parent, SIGNALS)

    def run(self) -> int:
        """Serve until a signal stops it; return the exit status.

        Raises ProxyError if the configuration cannot be used.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        configure_log(self._config.log)
        store = self._config.store.path()
        is_new = not store.exists()
        self._bind()
        try:
            mechanisms = self._open_store()
        except StoreError as error:
            raise ConfigError("store.url", str(error)) from error
        self._make_events_directory()
        self._try_lists()
        check_callback(self._config.quotas)
        if self._predecessor is not None:
            self._gate.close()
            self._give_up_at = time.monotonic() + READY_SECONDS
        for line in banner(self._config):
            log.info("%s", line)
        for line in (
            *self._validated.exposures,
            *without_users(self._config, mechanisms),
            *_too_few_files(self._config),
        ):
            log.warning("%s", line)
        if is_new:
            log.warning("%s: the store was missing, an empty one was created", store)
        self._load()
        self._children = Children(self._make_children(), self._leave_to_parent, SIGNALS)
        self._heartbeat.begin()
        gc.freeze()  # collections pass over what all processes share, and do not copy it
        self._children.start()
        gc.enable()
        return self._watch()

    def _load(self) -> None:
        """Import the modules that children need with this configuration.

        Imports in a child would copy shared memory.
        """
        signals = self._config.block.signals.endpoint_url
        if signals or any(listener.token_issuers() for listener in self._config.listeners):
            import sasl.signatures  # noqa: F401
        if self._config.authorizer.mode is not AuthorizerMode.OFF:
            import proxy.worker.acl_service
        if self._config.quotas.mode is not QuotasMode.OFF:
            import proxy.worker.quota_service
        if self._config.store.at_brokers:
            import proxy.store.brokers  # noqa: F401

    def _bind(self) -> None:
        config = self._config
        refuse_overlaps(config)
        of_systemd = sockets_of_systemd(os.environ)
        inherited = Inherited([*self._inherit(), *of_systemd])
        self._bind_addresses(inherited)
        if unused := inherited.left_of(of_systemd):
            problem = f"systemd passes {', '.join(unused)}, which is not the address of a listener"
            raise ConfigError("LISTEN_FDS", problem)
        for number, listener in enumerate(config.listeners):
            if listener.broker_ports is not None:
                ports = _claim_broker_ports(number, listener, config.workers, inherited)
                ports.share(self._predecessor is not None)
                self._broker_ports[listener.name] = ports
        path = config.admin_socket()
        try:
            self._admin_socket = inherited.take_private(path) or listen_privately(path)
        except ConfigError as error:
            if config.admin.socket is not None:
                raise ConfigError("admin.socket", str(error)) from error
            log.warning("`reauth-proxy sessions` will not work: %s", error)
        path = path_beside(path)
        try:
            self._successor = Successor(inherited.take_private(path) or listen_privately(path))
        except ConfigError as error:
            log.warning("`serve --take-over` will not work: %s", error)
        inherited.close()

    def _inherit(self) -> list[socket.socket]:
        """Return the sockets of the proxy that this one takes over from; empty if no proxy runs."""
        if not self._take_over:
            return []
        path = path_beside(self._config.admin_socket())
        self._predecessor = Predecessor.find(path)
        if self._predecessor is None:
            log.info("no proxy listens on %s: there is nothing to take over", path)
            return []
        return self._predecessor.sockets()

    def _bind_addresses(self, inherited: Inherited) -> None:
        addresses = [
            (one.name, f"listeners[{number}].address", one.address)
            for number, one in enumerate(self._config.listeners)
        ]
        http = self._config.http.address
        if http is not None:
            addresses.append((_HTTP, "http.address", http))
        bound = {}
        for name, _, address in addresses:
            sock = inherited.take_listening(address.host, address.port)
            if sock is not None:
                bound[name] = sock
        to_bind = [each for each in addresses if each[0] not in bound]
        with ExitStack() as claims:
            for _, key, address in to_bind:
                try:
                    claims.enter_context(closing(Claim(address.host, address.port))).take()
                except ConfigError as error:
                    raise ConfigError(key, error.problem) from error
            for name, _, address in to_bind:
                bound[name] = listen(address.host, address.port)
        for one in self._config.listeners:
            keep_alive(bound[one.name], one.socket_keepalive_idle_ms)
        self._http_socket = bound.pop(_HTTP, None)
        self._listening |= bound

    def _open_store(self) -> frozenset[str]:
        """Begin with the store, and return the mechanisms of its users."""
        settings = self._config.store
        store = open_store(settings.url)
        try:
            self._store_start = store.begin() if self._predecessor is None else store.join()
            for worker in self._workers:
                worker.store_start = self._store_start
            mechanisms = store.mechanisms()
            if settings.users_file is None:
                return mechanisms
            from proxy.store.users_file import Users

            if mechanisms:
                log.warning("store.users.file is set: SCRAM users of %s do not count", settings.url)
            users = Users.checked(settings.users_file).credentials
            return frozenset(mechanism.value for _, mechanism in users)
        finally:
            store.close()

    def _make_events_directory(self) -> None:
        directory = self._config.events.directory
        if directory is None:
            return
        try:
            make_directory(directory)
        except OSError as error:
            problem = f"{directory}: cannot be written to: {error.strerror}"
            raise ConfigError("events.directory", problem) from error

    def _try_lists(self) -> None:
        BlockFile(self._config).read()
        for number, listener in enumerate(self._config.listeners):
            for read in lists_of(listener, f"listeners[{number}]"):
                read()

    # Children

    def _make_children(self) -> list[Child]:
        children = [
            Child(
                name=f"worker {worker.number}",
                main=partial(self._worker_main, worker),
                is_worker=True,
                heartbeat=worker.heartbeat,
            )
            for worker in self._workers
        ]
        if len(self._workers) > 1:
            own, main = self._acceptor_heartbeat, self._acceptor_main
            children.append(Child(name="acceptor", main=main, heartbeat=own))
        if self._http_sockets:
            waits = self._predecessor is not None  # which answers probes and scrapes meanwhile
            children.append(Child(name="http", main=self._http_main, waits=waits))
        if self._config.store.at_brokers:
            children.append(Child(name="follower of the brokers", main=self._follower_main))
        if self._delivery is not None:
            main = partial(self._deliverer_main, self._delivery)
            children.append(Child(name="deliverer", main=main, ends_last=True))
        return children

    def _worker_main(self, worker: WorkerInputs, _own: Heartbeat) -> int:
        self._close_http()
        for ports in self._broker_ports.values():
            ports.begin(worker.number)
        if worker.link is None:
            worker.listening = self._listening
        else:
            self._close_addresses()
        return run_worker(self._config, worker, self._lifeline)

    def _acceptor_main(self, own: Heartbeat) -> int:
        links = [worker.link for worker in self._workers if worker.link is not None]
        heartbeats = [worker.heartbeat for worker in self._workers]
        listening = dict(self._endpoint_sockets())
        return acceptor.run(listening, links, heartbeats, own, self._lifeline)

    def _endpoint_sockets(self) -> Iterator[tuple[EndpointId, socket.socket]]:
        for number, listener in enumerate(self._config.listeners):
            yield EndpointId(number, OWN), self._listening[listener.name]
            if listener.broker_ports is not None:
                ports = self._broker_ports[listener.name]
                for broker_id, port in listener.broker_ports.by_broker():
                    yield EndpointId(number, broker_id), ports.socket_of(port)

    def _http_main(self, own: Heartbeat) -> int:
        self._close_listening()
        scrapes = [worker.scrape for worker in self._workers]
        store = partial(StoreInUse.of, self._config.store.path(), self._store_start)
        watched = {"the parent": self._heartbeat}
        watched |= {child.name: child.heartbeat for child in self._children}
        return run_http(
            self._http_socket,
            self._admin_socket,
            scrapes,
            store,
            self._lifeline,
            own,
            watched,
            self._config.http,
            None if self._delivery is None else self._delivery.report,
            self._conditions,
            self._jwks(),
        )

    def _jwks(self) -> "Callable[[], dict[str, Any]] | None":
        """Return what reads the published keys of minted tokens; None if none are minted."""
        listeners = self._config.listeners
        files = [path for one in listeners for path in one.upstream_identity_signing_key_files]
        if not files:
            return None
        from proxy.brokers.signed_tokens import read_jwks

        return partial(read_jwks, files)

    def _conditions(self, wall: float) -> list[Condition]:
        """Return the condition of the delivery for the status page, if events are delivered."""
        if self._delivery is None:
            return []
        return [self._delivery.condition(str(self._config.events.deliver.to), wall)]

    def _follower_main(self, own: Heartbeat) -> int:
        from proxy.store.brokers.follower import run

        self._close_listening()
        tls = self._workers[0].tls.upstream
        return run(self._config, tls, self._store_start, self._lifeline, own)

    def _deliverer_main(self, counts: "DeliveryCounts", own: Heartbeat) -> int:
        from proxy.delivery.loop import run

        self._close_http()
        self._close_listening()
        return run(self._config, counts, self._lifeline, own)

    def _close_listening(self) -> None:
        """Close the listeners' sockets: while one process has them open, clients can connect."""
        self._close_addresses()
        for ports in self._broker_ports.values():
            ports.close()

    def _close_addresses(self) -> None:
        for listening in self._listening.values():
            listening.close()

    @property
    def _http_sockets(self) -> list[socket.socket]:
        """The sockets of the HTTP process."""
        return [one for one in (self._http_socket, self._admin_socket) if one is not None]

    def _close_http(self) -> None:
        """Close, in a child that may outlive a killed parent, what the next proxy listens on."""
        for sock in self._http_sockets:
            sock.close()

    # Take-over

    @property
    def _serves(self) -> bool:
        """True if all workers serve."""
        return all(worker.heartbeat.serves for worker in self._workers)

    def _leave_to_parent(self) -> None:
        """Close, in a child, the descriptors that signal a living parent."""
        os.close(self._lifeline_writer)
        if self._successor is not None:
            self._successor.close()
        if self._predecessor is not None:
            self._predecessor.close()

    def _may_serve_on(self) -> bool:
        """Return whether no other process has taken over."""
        if self._successor is None or self._predecessor is not None:
            return True
        has_begun = self._successor.poll(self._sockets, time.monotonic())
        self._share_broker_ports(self._successor.is_starting or has_begun)
        if has_begun:
            self._gate.close()
            self._service_manager.is_replaced(self._successor.pid)
        return not has_begun

    def _sockets(self) -> list[socket.socket]:
        """Return all sockets that another process may take over."""
        own = [] if self._successor is None else [self._successor.listening]
        ports = [sock for one in self._broker_ports.values() for sock in one.sockets()]
        return [*self._listening.values(), *self._http_sockets, *own, *ports]

    def _share_broker_ports(self, shared: bool) -> None:
        for ports in self._broker_ports.values():
            ports.share(shared)

    def _may_take_over(self) -> bool:
        """Replace the running proxy as soon as all workers serve; False if it keeps serving."""
        predecessor = self._predecessor
        if predecessor is None:
            return True
        match predecessor.answer():
            case Answer.NONE if predecessor.is_told:
                return True
            case Answer.NONE:
                return self._is_starting(predecessor)
            case Answer.TOO_LATE:
                log.error("take-over: too late, process %d keeps serving", predecessor.pid)
                return False
            case Answer.ENDED:
                log.error("take-over: process %d has ended meanwhile", predecessor.pid)
            case Answer.DRAINS:
                log.info("take-over: process %d is replaced", predecessor.pid)
        predecessor.close()
        self._predecessor = None
        self._share_broker_ports(False)
        if self._successor is not None:
            self._successor.begin()
        self._serve_alone()
        return True

    def _is_starting(self, predecessor: Predecessor) -> bool:
        """Inform the running proxy as soon as all workers serve; False if that takes too long."""
        if self._serves:
            predecessor.replace()
            self._serve_alone()
        elif time.monotonic() >= self._give_up_at:
            text = "take-over: not ready within %.0f s, process %d keeps serving"
            log.error(text, READY_SECONDS, predecessor.pid)
            return False
        return True

    def _serve_alone(self) -> None:
        self._gate.open()
        for child in self._children:
            child.waits = False  # `check` starts it

    # Signals

    def _watch(self) -> int:
        # Not `sigtimedwait`: interrupted for longer than its timeout, CPython's returns garbage.
        self._heartbeat.beat()  # or it would count as starting until the first check
        signal.setitimer(signal.ITIMER_REAL, CHECK_EVERY, CHECK_EVERY)
        while True:
            others = signal.sigpending() & SIGNALS - {signal.SIGHUP}
            match signal.sigwait(others or SIGNALS):  # or many reloads would delay the rest
                case signal.SIGALRM:
                    self._heartbeat.beat()
                    if not self._may_serve_on():
                        return self._stop(0)
                    if not self._may_take_over():
                        return self._stop(1)
                    if self._serves:
                        self._service_manager.serves()
                    self._children.check()
                    if self._follow and signature_of(self._path) != self._seen:
                        self._reload()
                case signal.SIGCHLD:
                    if not self._children.restart_dead():
                        return self._stop(1)
                case signal.SIGHUP:
                    self._reload()
                case _:
                    self._service_manager.stops()
                    return self._stop(0)

    def _reload(self) -> None:
        self._service_manager.reloads()
        self._apply_file()
        if self._serves:
            self._service_manager.serves()

    def _apply_file(self) -> None:
        self._seen = signature_of(self._path)
        work = partial(validate_change, self._path, self._validated.config, self._latest)
        try:
            changed = ShortLived(work).result()
        except ProxyError as error:
            for problem in error.problems if isinstance(error, InvalidFile) else (str(error),):
                log.error("not reloaded, the old configuration stays: %s", printable(problem))
            self._shared_configuration.put(self._latest, is_stale=True)
            self._children.signal(signal.SIGHUP)  # workers set `configuration_stale`
            return
        for key in changed.needs_restart:
            log.warning("not reloaded, needs a restart: %s", key)
        for key in changed.reloadable:
            log.info("reloaded: %s", key)
        if not changed.needs_restart and not changed.reloadable:
            log.info("reloaded: nothing has changed")
        for line in changed.exposures:
            log.warning("%s", line)
        self._latest = changed.config
        self._shared_configuration.put(changed.config)
        self._children.signal(signal.SIGHUP)

    def _stop(self, status: int) -> int:
        """Drain the workers, wait for the delivery of their events, end all children; return
        `status`."""
        log.info("draining for up to %d ms (shutdown.drain.ms)", self._config.shutdown_drain_ms)
        self._close_listening()
        if self._predecessor is not None:
            self._predecessor.close()
        self._children.stop(
            self._config.shutdown_drain_ms / 1000 + KILL_AFTER,
            self._config.events.deliver.drain_ms / 1000 + KILL_AFTER,
        )
        path = self._config.admin_socket()
        if self._admin_socket is not None:
            self._admin_socket.close()
            remove_left_over(path)
        if self._successor is not None:
            self._successor.close()
            remove_left_over(path_beside(path))
        log.info("stopped")
        return status


def _delivery_counts(config: Config) -> "DeliveryCounts | None":
    if config.events.deliver.to is None:
        return None
    from proxy.delivery.counts import DeliveryCounts

    return DeliveryCounts()


def _usage_table(config: Config) -> UsageTable | None:
    quotas = config.quotas
    if quotas.mode is QuotasMode.OFF:
        return None
    window = WindowConfig(
        num=quotas.quota_window_num, size_seconds=quotas.quota_window_size_seconds
    )
    return UsageTable(config.workers, window)


def raise_file_limit() -> None:
    """Raise the soft limit of file descriptors to the hard one, as Java does (`MaxFDLimit`).

    The soft limit is 1,024 in a shell and under systemd: unauthenticated clients can use that up.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _too_few_files(config: Config) -> tuple[str, ...]:
    """Return a warning if a worker may have fewer file descriptors than its clients need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * sum(one.max_connections for one in config.listeners) // config.workers
    for one in config.listeners:
        needed += len(one.broker_ports or ())
        if one.proxy_protocol_trusted:
            needed += most_waiting(one.max_connections)
    if limit == resource.RLIM_INFINITY or needed <= limit:
        return ()
    return (
        f"connections and broker.ports take up to {needed} file descriptors in each worker, which"
        f" may have {limit} (ulimit -Hn)",
    )


def _claim_broker_ports(
    number: int, listener: Listener, workers: int, inherited: Inherited
) -> BrokerPorts:
    """Claim a listener's ports of brokers, and warn about those that another program uses."""
    assert listener.broker_ports is not None
    key = f"listeners[{number}].broker.ports"
    ports = BrokerPorts(
        key,
        listener.address.host,
        listener.broker_ports,
        workers,
        inherited,
        listener.socket_keepalive_idle_ms,
    )
    in_use = ports.take()
    if in_use:
        shown = ", ".join(map(str, in_use[:10])) + (", …" if len(in_use) > 10 else "")
        log.warning(
            "%s: another program uses ports, %s; their brokers are not shown to clients", key, shown
        )
    return ports
