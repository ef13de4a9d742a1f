"""Endpoint of one address: accepts its clients, and is the shell of their connections."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from time import monotonic, time
from typing import Any, Final, cast

from proxy.acl.principals import ANONYMOUS, NamelessError, certified_principal
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.client_identity import ClientRefused
from proxy.brokers.discovery import DiscoveredBroker
from proxy.config.security import SecurityProtocol
from proxy.connection.commands import (
    AnswerFromStore,
    AwaitBroker,
    AwaitTurn,
    CheckPassword,
    CloseReason,
    CloseSideConnection,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    DeriveKeys,
    GetIdentity,
    MoveToSideConnection,
    OpenSideConnection,
    RefreshKeys,
    RunLongTask,
)
from proxy.connection.connection import Connection, finishing
from proxy.connection.frames import Bytes
from proxy.errors import ClientFault
from proxy.net.handshake_errors import HandshakeResult, WrongProtocol, handshake_error
from proxy.net.proxied_client import ProxiedClient
from proxy.net.read_buffer import BufferedSide
from proxy.net.relay import BrokerSide, ClientSide, NotServed, SideConnection
from proxy.net.tls_sides import ClientTls, ServerTls
from proxy.quota.model import address_group
from proxy.scheduling.steps import LongTask
from proxy.store.interface import StoreError
from proxy.worker.listener import Listener
from proxy.worker.slots import SUSPECT_SECONDS, LoginSlots, Outage, Pace
from sasl.jwt_claims import deadline_of
from sasl.login import LoginError

FIRST_RETRY: Final = 0.1
"""First pause in seconds after a broker could not be reached (`retry.backoff.ms`)."""
MAX_RETRY: Final = 1.0
"""Longest pause in seconds (`retry.backoff.max.ms`)."""

log = logging.getLogger(__name__)


class Endpoint:
    """Endpoint of one address, and the `RelayHost` of its clients."""

    def __init__(
        self,
        listener: Listener,
        broker: Callable[[], DiscoveredBroker | None],
        broker_id: int | None = None,
        named: Callable[[int], DiscoveredBroker | None] | None = None,
    ) -> None:
        """Connect each client to the broker that `broker()` returns when the client connects.

        None: no broker is known, and the client is refused. If it is not the broker of `broker_id`,
        the client only logs in there (`RelayedLogin.wanted`).

        With `named`, clients choose a broker by its name in `broker.hosts`: `named` returns the
        broker for an id, or None to refuse the client.
        """
        self._broker_id = broker_id
        self._named = named
        self._hosts = listener.settings.broker_hosts
        self._bootstrap = (listener.settings.advertised_host or "").lower()
        self._listener = listener
        self._services = listener.services
        self._broker = broker
        self.loop = listener.services.loop
        self.buffer = listener.services.buffer
        # Bound once, and not for each connection
        self._wait = listener.services.work_queues.time_slices.wait
        self._on_handshake = self._handshake_ended

    def client(self) -> ClientSide | ServerTls | ProxiedClient:
        """Return the protocol of a client that connects, perhaps through a load balancer."""
        headers = self._listener.proxy_headers
        return self._client_at("") if headers is None else ProxiedClient(headers, self._client_at)

    def _client_at(self, address: str) -> ClientSide | ServerTls:
        """Return the protocol of the client at an address; empty: the peer's."""
        side = ClientSide(self, address)
        if self._listener.tls is None:
            return side
        return ServerTls(
            side,
            self.buffer,
            self._wait,
            self._listener.tls.context if self._named is None else self._choose,
            self._services.handshakes,
            self._on_handshake,
            address,
        )

    def _choose(self, side: BufferedSide, name: str) -> ssl.SSLContext | None:
        """Point a client at the broker with this server name, before it has sent a request, and
        return the TLS context; None if no broker has the name."""
        client, tls = cast(ClientSide, side), self._listener.tls
        assert self._hosts is not None
        assert self._named is not None
        assert tls is not None
        if name != self._bootstrap:
            broker_id = self._hosts.id_of(name)
            broker = None if broker_id is None else self._named(broker_id)
            if broker is None:
                return None
            if (before := client.connection) is not None and not before.closed:
                client.connection = self._connection(
                    client, broker, broker_id, before.connection_id, before.connected_at
                )
                client.connection.telemetry = before.telemetry
        return tls.context_for(name)

    def _handshake_ended(self, side: BufferedSide, result: HandshakeResult) -> None:
        """Handle the end of a client's TLS handshake, or what came instead of it."""
        client = cast(ClientSide, side)
        if isinstance(result, ssl.SSLObject):
            if not self._listener.sasl:
                client.call(lambda connection, now: self._identify(connection, result, now))
            return
        if isinstance(result, WrongProtocol):
            self.wrong_protocol(client, result)
        else:
            problem = handshake_error(result)
            text = f"TLS handshake with {client.peer_host} failed: {problem}"
            self._listener.warn("TLS handshake", text, detail=problem)
        client.handshake_failed()

    def _identify(self, connection: Connection, client: ssl.SSLObject, now: float) -> None:
        """Authenticate a client without SASL by its certificate."""
        try:
            principal = certified_principal(client, self._listener.mapping)
        except NamelessError as error:
            text = f"the certificate of {connection.peer_host} is refused: {error.reason}"
            self._listener.warn(error.reason, text)
            connection.end(CloseReason.AUTHENTICATION_FAILED, now)
        else:
            ends_at = inf
            if expiry := (client.getpeercert() or {}).get("notAfter"):
                ends_at = deadline_of(ssl.cert_time_to_seconds(str(expiry)), time(), now)
            connection.admit(self._listener.identity_of(principal), now, ends_at)

    def wrong_protocol(self, client: ClientSide, protocol: WrongProtocol) -> None:
        """Warn of a client that began with another protocol than the listener's."""
        expected = self._listener.protocol
        text = f"{client.peer_host} speaks {protocol.value}, but the listener expects {expected}"
        self._listener.warn(protocol.name, text)

    def opened(self, client: ClientSide) -> Connection | NotServed | None:
        """Return the connection of a client that connected; None refuses it."""
        listener = self._listener
        broker = self._broker()
        if broker is None:
            listener.observer.refused(CloseReason.BROKER_UNREACHABLE)
            return None
        now = monotonic()
        delay = 0.0 if listener.quotas is None else listener.quotas.admit(client.peer_host, now)
        if delay:
            return self._keep_waiting(client, delay)
        refused = listener.admit(client, client.peer_host)
        if refused is not None:
            listener.observer.refused(refused)
            return None
        connection = self._connection(
            client, broker, self._broker_id, next(self._services.connection_ids), now
        )
        listener.observer.opened(connection, now)
        if listener.protocol is SecurityProtocol.PLAINTEXT:
            connection.admit(listener.identity_of(ANONYMOUS), now)
            listener.open_connections.authenticated(client)
            if connection.closed:  # it is blocked
                listener.open_connections.closed(client)
                return None
        listener.clients.add(client)
        return connection

    def _connection(
        self,
        client: ClientSide,
        broker: DiscoveredBroker,
        broker_id: int | None,
        connection_id: str,
        now: float,
    ) -> Connection:
        """Return a client's connection to a broker, at the address or name of `broker_id`."""
        return Connection(
            connection_id=connection_id,
            peer_host=client.peer_host,
            rules=self._listener.rules,
            target=self._listener.view(broker),
            observer=self._listener.observer,
            to_client=client.write,
            now=now,
            wanted=None if broker.broker_id == broker_id else broker_id,
        )

    def _keep_waiting(self, client: ClientSide, delay: float) -> NotServed | None:
        """Close a refused connection after `delay`, or at once where too many wait."""
        listener = self._listener
        listener.observer.refused(CloseReason.CONNECTION_RATE)
        no_room = listener.open_connections.is_full or len(listener.waiting) >= listener.max_waiting
        if no_room or listener.admit(client, client.peer_host) is not None:
            return None
        listener.waiting.add(client)
        self.loop.call_later(delay, self._turn_away, client)
        return NotServed()

    def _turn_away(self, client: ClientSide) -> None:
        """Close a connection that was kept unserved for as long as its address is throttled."""
        self._listener.waiting.discard(client)
        self._listener.open_connections.closed(client)
        client.close()

    def closed(self, client: ClientSide) -> None:
        """Forget a client whose connection has ended."""
        self._listener.clients.discard(client)
        self._listener.open_connections.closed(client)
        self._leave_outage(client)
        for pace in self._services.paces.values():
            pace.release(client)
        if self._listener.passwords is not None:
            self._listener.passwords.leave(client)
        if self._listener.relays_logins and client.connection is not None:
            for slots in self._slots(client):
                slots.release(client)
        self._listener.ended()

    def carry_out(self, client: ClientSide, command: Command) -> None:
        """Carry out a command that needs the listener, or services of the worker."""
        match command:
            case CountAuthenticated():
                self._authenticated(client)
            case AwaitTurn(principal):
                self._wait(principal, lambda: client.call(Connection.turn_came))
            case ConnectToBroker():
                self._connect_in_turn(client)
            case AwaitBroker():
                self._hold(client)
            case RefreshKeys() | CheckPassword():
                self._services.spawn(self._resume_login(client, command))
            case GetIdentity() | DeriveKeys():
                self._services.spawn(self._log_in(client, command))
            case AnswerFromStore():
                self._services.spawn(self._consult(client, command))
            case RunLongTask(long_task):
                self._services.spawn(self._run_long_task(client, long_task))
            case OpenSideConnection() | CloseSideConnection() | MoveToSideConnection():
                self._carry_out_aside(client, command)
            case _:
                raise AssertionError(f"{command} is for the relay")

    def _authenticated(self, client: ClientSide) -> None:
        self._listener.open_connections.authenticated(client)
        client.authenticated()
        if self._listener.relays_logins:
            for slots in self._slots(client):
                slots.release(client)

    async def _connect(self, client: ClientSide) -> None:
        broker = _broker_of(client)
        outage = self._services.outages.get(broker)
        if outage is not None and not outage.is_over:
            client.call(Connection.broker_is_down)
            return
        is_suspect = outage is None or not outage.resumes(client)
        client.dialled = broker.host, broker.port
        try:
            began = monotonic()
            side = BrokerSide(client, self)
            await self._dial(side, broker, *client.dialled, client=client, is_suspect=is_suspect)
        except OSError as error:  # TimeoutError and TLS errors are OSErrors
            self._listener.observer.unreachable(broker, handshake_error(error))
            client.call(Connection.broker_is_down)
        else:
            self._listener.observer.connected(monotonic() - began)
            self._leave_outage(client)

    def _hold(self, client: ClientSide) -> None:
        """Hold a client until its broker can be reached, unless too many are held."""
        broker = _broker_of(client)
        if self._listener.relays_logins:
            self._slots(client)[0].release(client)
        outage = self._services.outages.setdefault(broker, Outage())
        if outage.is_over:
            outage.begin()
            self._services.spawn(self._probe(broker, outage))
        if not outage.hold(client, client.peer_host, partial(self._go_on, client)):
            client.call(finishing(CloseReason.BROKER_UNREACHABLE))

    def _go_on(self, client: ClientSide) -> None:
        """Continue a held client; free its place if it waits for anything but the broker."""
        client.call(Connection.broker_is_back)
        assert client.connection is not None
        if not client.connection.awaits_broker:
            self._leave_outage(client)

    async def _probe(self, broker: DiscoveredBroker, outage: Outage[ClientSide]) -> None:
        """Dial a broker that is down until it can be reached, or no client waits for it."""
        pause = FIRST_RETRY
        try:
            while outage.is_awaited:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY)
                try:
                    await self._dial(_Probe(), broker, broker.host, broker.port)
                except OSError as error:
                    self._listener.observer.unreachable(broker, handshake_error(error))
                else:
                    break
        finally:
            outage.end()
            self._forget(broker, outage)

    def _leave_outage(self, client: ClientSide) -> None:
        """Give up a client's place in its broker's outage, if it has one."""
        if self._services.outages and client.connection is not None:
            broker = _broker_of(client)
            outage = self._services.outages.get(broker)
            if outage is not None:
                outage.release(client)
                self._forget(broker, outage)

    def _forget(self, broker: DiscoveredBroker, outage: Outage[ClientSide]) -> None:
        if outage.is_over and outage.is_idle:
            self._services.outages.pop(broker, None)

    async def _dial(
        self,
        side: "BrokerSide | _Probe",
        broker: DiscoveredBroker,
        host: str,
        port: int,
        *,
        client: ClientSide | None = None,
        is_suspect: bool = False,
    ) -> None:
        """Connect to an address of a broker, for `client` if given. Raises OSError.

        With `is_suspect`, the attempt ends when no client could connect for `SUSPECT_SECONDS`. If
        other clients can connect, the broker is up, and it or the worker is busy.
        """
        access, began = self._services.access, monotonic()
        source = client.peer if client is not None and access.dialler.sends_header else None
        async with asyncio.timeout(access.timeout_s) as limit:

            def give_up() -> None:
                if broker.connected_at < began:
                    limit.reschedule(self.loop.time())

            look = self.loop.call_later(SUSPECT_SECONDS, give_up) if is_suspect else None
            try:
                if access.context is None:
                    await access.dialler.open(lambda: side, host, port, source=source)
                    broker.connected_at = monotonic()
                else:
                    await self._dial_by_tls(side, broker, host, port, source, access.context)
            finally:
                if look is not None:
                    look.cancel()

    async def _dial_by_tls(
        self,
        side: "BrokerSide | _Probe",
        broker: DiscoveredBroker,
        host: str,
        port: int,
        source: tuple[str, int] | None,
        context: ssl.SSLContext,
    ) -> None:
        connected = self.loop.create_future()

        def protocol() -> ClientTls:  # the certificate must be for the broker's name
            return ClientTls(side, self.buffer, self._wait, context, broker.host, connected)

        transport = await self._services.access.dialler.open(protocol, host, port, source=source)
        broker.connected_at = monotonic()
        try:
            await connected
        except BaseException:
            transport.abort()
            raise

    # Logins that are relayed

    def _slots(self, client: ClientSide) -> tuple[LoginSlots[ClientSide], LoginSlots[ClientSide]]:
        return self._listener.login_slots(_broker_of(client))

    def _connect_in_turn(self, client: ClientSide) -> None:
        """Open the upstream connection; that of an unauthenticated client when a slot is free."""
        if not self._listener.relays_logins:
            self._at_pace(client, self._connect)
            return
        logins, _ = self._slots(client)
        owner = address_group(client.peer_host)
        logins.acquire(client, owner, lambda: self._at_pace(client, self._connect))

    def _at_pace(
        self, client: ClientSide, connect: Callable[[ClientSide], Coroutine[Any, Any, None]]
    ) -> None:
        """Connect to a client's broker when `max.connection.creation.rate` allows it."""
        rate, paces = self._services.access.max_creation_rate, self._services.paces
        if rate is None:
            self._services.spawn(connect(client))
            return
        broker = _broker_of(client)
        if (pace := paces.get(broker)) is None:
            for idle in [one for one, pace in paces.items() if pace.is_idle]:
                del paces[idle]
            workers = self._listener.open_connections.workers
            pace = paces[broker] = Pace(rate, workers, self.loop.call_later)
        owner = address_group(client.peer_host)
        pace.acquire(client, owner, lambda: self._services.spawn(connect(client)))

    def _carry_out_aside(
        self,
        client: ClientSide,
        command: OpenSideConnection | CloseSideConnection | MoveToSideConnection,
    ) -> None:
        """Open a connection for a re-authentication when a slot is free, or free the slot."""
        assert client.connection is not None
        _, renewals = self._slots(client)
        if not isinstance(command, OpenSideConnection):
            renewals.release(client)
            return
        until, owner = command.until, client.connection.principal or ""
        connect = partial(self._open_side, until=until)
        renewals.acquire(client, owner, lambda: self._at_pace(client, connect))

    async def _open_side(self, client: ClientSide, until: float) -> None:
        """Open a connection to the address that the client's own upstream connection has."""
        connection, broker = client.connection, _broker_of(client)
        assert connection is not None
        pause = FIRST_RETRY
        while not connection.closed:
            address = client.broker_address
            if address is None:  # it ends
                return
            if client.dialled != (broker.host, broker.port):  # another node is there now
                client.call(lambda connection, now: connection.relayed_login.side_unreachable(now))
                return
            host, port = address
            try:
                side = SideConnection(client, self)
                await self._dial(side, broker, host, port, client=client)
            except OSError as error:
                self._listener.observer.unreachable(broker, handshake_error(error))
            else:
                return
            if monotonic() + pause >= until:
                client.call(lambda connection, now: connection.relayed_login.side_unreachable(now))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY)

    async def _resume_login(self, client: ClientSide, awaited: RefreshKeys | CheckPassword) -> None:
        if isinstance(awaited, RefreshKeys):
            await self._listener.keys[awaited.issuer].refresh()
        else:
            assert self._listener.passwords is not None
            owner = address_group(client.peer_host)
            await self._listener.passwords.check(client, owner, awaited.check)
        client.call(lambda connection, now: connection.resume_login(now))

    async def _log_in(self, client: ClientSide, step: GetIdentity | DeriveKeys) -> None:
        try:
            if isinstance(step, GetIdentity):
                assert client.connection is not None
                established = client.connection.authentication.established
                exchange = await self._listener.exchange(established, client.dialled)
                client.call(
                    lambda connection, now: connection.upstream_login.identified(exchange, now)
                )
            else:
                token = await asyncio.to_thread(step.work)
                client.call(lambda connection, now: connection.upstream_login.derived(token, now))
        except ClientRefused as refused:
            self._listener.warn(refused.reason, refused.reason)
            client.call(finishing(CloseReason.IDENTITY_REFUSED))
        except LoginError as error:
            failure = error
            client.call(lambda connection, now: connection.upstream_login.failed(failure, now))
        except Exception:
            log.exception("a login to a broker failed")
            client.call(finishing(CloseReason.INTERNAL_ERROR))

    async def _consult(self, client: ClientSide, question: AnswerFromStore) -> None:
        try:
            body, spent_ns = await self._services.consult(question)
        except ClientFault:
            client.call(lambda connection, now: connection.end(CloseReason.MALFORMED_FRAME, now))
        except StoreError as error:
            self._listener.warn("store", f"a request to the store failed: {error}")
            client.call(finishing(CloseReason.INTERNAL_ERROR))
        except Exception:
            log.exception("a request to the store failed")
            client.call(finishing(CloseReason.INTERNAL_ERROR))
        else:
            assert client.connection is not None
            client.connection.spent(spent_ns, monotonic())
            client.call(lambda connection, now: connection.store_answered(body, now))

    async def _run_long_task(self, client: ClientSide, long_task: LongTask) -> None:
        try:
            result = await self._services.work_queues.run(long_task)
        except Exception:
            log.exception("a long request could not be processed")
            client.call(finishing(CloseReason.INTERNAL_ERROR))
        else:
            client.call(lambda connection, now: connection.long_work.done(long_task, result, now))


def _broker_of(client: ClientSide) -> DiscoveredBroker:
    assert client.connection is not None
    return cast(BrokerView, client.connection.target).broker


class _Probe(asyncio.Protocol):
    """Protocol of a connection that only shows that a broker can be reached."""

    peer_has_unsent = False

    def data_received(self, data: Bytes) -> None:
        """Ignore the bytes of the broker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection once it is open."""
        transport.close()
