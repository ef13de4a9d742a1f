"""Acceptor of clients for one address, and the shell of their connections."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from typing import cast

from proxy.config.tls import SecurityProtocol
from proxy.connection.commands import AnswerFromStore, CloseReason, DeriveKeys, GetIdentity
from proxy.connection.connection import Connection
from proxy.connection.upstream_login import UpstreamLogin
from proxy.errors import ClientFault
from proxy.net.handshake_errors import Met, WrongProtocol, handshake_error
from proxy.net.relay import BrokerSide, ClientSide, NotServed
from proxy.net.tls_sides import ClientTls, ServerTls
from proxy.principals.builder import ANONYMOUS, certified_principal
from proxy.principals.subject import NamelessError
from proxy.routing.broker_view import BrokerView
from proxy.routing.discovery import DiscoveredBroker
from proxy.scheduling.steps import LongTask
from proxy.store.interface import StoreError
from proxy.worker.listener import Listener
from sasl.login import LoginError

log = logging.getLogger(__name__)


class Endpoint:
    """Endpoint of a broker: accepts clients, and gives connections socket, thread and store."""

    def __init__(self, listener: Listener, broker: Callable[[], DiscoveredBroker | None]) -> None:
        """Bring clients to the broker that `broker()` names when they connect."""
        self._listener = listener
        self._services = listener.office
        self._broker = broker
        self.loop = listener.office.loop
        self.buffer = listener.office.buffer

    def client(self) -> ClientSide | ServerTls:
        """Make the protocol of a client that connects."""
        side = ClientSide(self)
        if self._listener.tls is None:
            return side
        return ServerTls(
            side,
            self.buffer,
            self._services.lanes.turns.wait,
            self._listener.tls.context,
            lambda what: self._meet(side, what),
        )

    def _meet(self, client: ClientSide, what: Met) -> None:
        """Handle the end of a client's TLS handshake, or what came instead of it."""
        if isinstance(what, ssl.SSLObject):
            if not self._listener.sasl:
                client.tell(lambda connection, now: self._identify(connection, what, now))
            return
        if isinstance(what, WrongProtocol):
            text = f"{client.peer_host} speaks {what.value}; here is {self._listener.protocol}"
        else:
            text = f"TLS handshake with {client.peer_host} failed: {handshake_error(what)}"
        self._listener.warn(text.replace(client.peer_host, ""), text)
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
            connection.dialogue.admit(principal, now)

    def met_tls(self, client: ClientSide) -> None:
        """Warn of a client that began with TLS where there is none."""
        self._listener.warn(
            "TLS", f"{client.peer_host} speaks TLS; here is {self._listener.protocol}"
        )

    def opened(self, client: ClientSide) -> Connection | NotServed | None:
        """Accept a client; None refuses it."""
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
        connection = Connection(
            connection_id=self._services.next_connection_id(),
            peer_host=client.peer_host,
            rules=listener.rules,
            target=listener.view(broker),
            observer=listener.observer,
            to_client=client.write,
            now=now,
        )
        listener.observer.opened(connection, now)
        if listener.protocol is SecurityProtocol.PLAINTEXT:
            connection.dialogue.admit(ANONYMOUS, now)
            self.authenticated(client)
        listener.clients.add(client)
        return connection

    def _keep_waiting(self, client: ClientSide, delay: float) -> NotServed | None:
        """Close a refused connection after `delay`, or at once where too many wait."""
        listener = self._listener
        listener.observer.refused(CloseReason.CONNECTION_RATE)
        no_room = (
            listener.open_connections.is_full or len(listener.waiting) >= listener.most_waiting
        )
        if no_room or listener.admit(client, client.peer_host) is not None:
            return None
        listener.waiting.add(client)
        self.loop.call_later(delay, self._turn_away, client)
        return NotServed()

    def _turn_away(self, client: ClientSide) -> None:
        """Close a connection too many, which was held as long as its address is throttled."""
        self._listener.waiting.discard(client)
        self._listener.open_connections.closed(client)
        client.close()

    def authenticated(self, client: ClientSide) -> None:
        """Count a client that has logged in, or needs no login."""
        self._listener.open_connections.authenticated(client)

    def closed(self, client: ClientSide) -> None:
        """Forget a client whose connection has ended."""
        self._listener.clients.discard(client)
        self._listener.open_connections.closed(client)
        self._listener.ended()

    def connect(self, client: ClientSide) -> None:
        """Open the upstream connection of a client."""
        self._services.spawn(self._connect(client))

    async def _connect(self, client: ClientSide) -> None:
        assert client.connection is not None
        broker = cast(BrokerView, client.connection.target).broker
        try:
            async with asyncio.timeout(self._services.access.timeout_s):
                await self._dial(client, broker.host, broker.port)
        except OSError as error:  # TimeoutError and those of TLS are
            self._listener.observer.unreachable(broker, handshake_error(error))
            client.tell(Connection.broker_unreachable)

    async def _dial(self, client: ClientSide, host: str, port: int) -> None:
        context = self._services.access.context
        if context is None:
            await self.loop.create_connection(lambda: BrokerSide(client, self), host, port)
            return
        connected = self.loop.create_future()
        turns = self._services.lanes.turns
        transport, _ = await self.loop.create_connection(
            lambda: ClientTls(
                BrokerSide(client, self), self.buffer, turns.wait, context, host, connected
            ),
            host,
            port,
        )
        try:
            await connected
        except BaseException:
            transport.abort()
            raise

    def seek_keys(self, client: ClientSide) -> None:
        """Look for newer signing keys on behalf of a client."""
        self._services.spawn(self._seek_keys(client))

    async def _seek_keys(self, client: ClientSide) -> None:
        if self._listener.keys is not None:
            await self._listener.keys.refresh()
        client.tell(lambda connection, now: connection.dialogue.keys_refreshed(now))

    def log_in(self, client: ClientSide, step: GetIdentity | DeriveKeys) -> None:
        """Do what a login to the broker needs."""
        self._services.spawn(self._log_in(client, step))

    async def _log_in(self, client: ClientSide, step: GetIdentity | DeriveKeys) -> None:
        try:
            if isinstance(step, GetIdentity):
                await self._identify_us(client)
            else:
                await _derive(client, step)
        except LoginError as error:
            failure = error
            client.tell(lambda connection, now: _login(connection).failed(failure, now))
        except Exception:
            log.exception("a login to a broker failed")
            client.tell(Connection.broke)

    async def _identify_us(self, client: ClientSide) -> None:
        identity = self._services.access.identity
        assert identity is not None
        exchange = await identity.exchange()
        client.tell(lambda connection, now: _login(connection).identified(exchange, now))

    def consult(self, client: ClientSide, question: AnswerFromStore) -> None:
        """Have a request answered that needs the store."""
        self._services.spawn(self._consult(client, question))

    async def _consult(self, client: ClientSide, question: AnswerFromStore) -> None:
        try:
            body, spent_ns = await self._services.consult(question)
        except ClientFault:
            client.tell(lambda connection, now: connection.dialogue.misunderstood(now))
            return
        except StoreError as error:
            self._listener.warn("store", f"a request to the store failed: {error}")
            client.tell(Connection.broke)
            return
        except Exception:
            log.exception("a request to the store failed")
            client.tell(Connection.broke)
            return
        assert client.connection is not None
        if (stopwatch := client.connection.stopwatch) is not None:
            stopwatch.add(spent_ns, monotonic())
        client.tell(lambda connection, now: connection.dialogue.store_answered(body, now))

    def await_turn(self, client: ClientSide) -> None:
        """Have others served before a client that had much done."""
        assert client.connection is not None
        client.connection.long_work.await_turn(self._services.lanes.turns.wait, client.tell)

    def deliberate(self, client: ClientSide, long_task: LongTask) -> None:
        """Have long work done on behalf of a client."""
        self._services.spawn(self._deliberate(client, long_task))

    async def _deliberate(self, client: ClientSide, long_task: LongTask) -> None:
        try:
            result = await self._services.lanes.run(long_task)
        except Exception:
            log.exception("a long request could not be judged")
            client.tell(Connection.broke)
            return
        client.tell(lambda connection, now: connection.long_work.done(long_task, result, now))


async def _derive(client: ClientSide, step: DeriveKeys) -> None:
    token = await asyncio.to_thread(step.work)
    client.tell(lambda connection, now: _login(connection).derived(token, now))


def _login(connection: Connection) -> UpstreamLogin:
    assert connection.upstream_login is not None
    return connection.upstream_login
