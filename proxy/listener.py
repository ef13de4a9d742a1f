"""One listener of one worker: who may enter, by which rules, and the doors it has."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol, cast

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.bulk import ReadBuffer
from proxy.commands import CloseReason, Consult
from proxy.config.tls import SecurityProtocol
from proxy.connection import Connection
from proxy.errors import ClientFault
from proxy.keys import KeyService
from proxy.lanes import Lanes
from proxy.observer import SessionObserver
from proxy.quota_service import QuotaService
from proxy.relay import BrokerSide, ClientSide, Refused
from proxy.repeats import Repeats
from proxy.room import MOST_BYTES_OF_STRANGERS, Room
from proxy.routing.brokers import Gateway
from proxy.routing.discovery import Target
from proxy.rules import Rights, Rules
from proxy.steps import Deliberation
from proxy.target import BrokerView
from proxy.tls.contexts import Tls
from proxy.tls.identity import ANONYMOUS, certified_principal
from proxy.tls.principal_mapping import PrincipalMapping
from proxy.tls.strangers import Met, Stranger, why
from proxy.tls.subject import NamelessError
from proxy.tls.transport import ClientTls, ServerTls
from proxy.wire.apis import APIS
from sasl.credentials import CredentialSource, ScramMechanism
from sasl.jwks import KeyCache, KeyCacheSettings
from sasl.jwt_claims import OAuthBearerSettings
from sasl.mechanism import Mechanism
from sasl.oauthbearer import OAuthBearerServer
from sasl.scram import ScramServer
from sasl.states import Enforcement

log = logging.getLogger(__name__)

SHARE_OF_WAITING: Final = 10
"""One connection in so many may be kept unserved for its address connecting too often; further ones
are closed at once, or a storm from one address would leave no room for others."""


class Office(Protocol):
    """What a listener needs of its worker."""

    loop: asyncio.AbstractEventLoop
    buffer: ReadBuffer
    connect_timeout: float
    room: Room
    lanes: Lanes
    upstream_tls: Tls | None
    """None: brokers are spoken to without TLS."""

    def next_connection_id(self) -> str:
        """A name for a connection, unique in the world."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the data path."""
        ...

    async def consult(self, question: Consult) -> bytes:
        """Body of the answer to a request that needs the store."""
        ...

    def upstream_failed(self, listener: str, broker: Target) -> None:
        """A connection to a broker could not be opened."""
        ...


class Listener:
    """The state that the connections of one listener share."""

    def __init__(
        self,
        settings: config.Listener,
        *,
        office: Office,
        credentials: CredentialSource,
        fake_secret: bytes,
        rights: Rights,
        most_connections: int,
        tls: Tls | None = None,
        quotas: QuotaService | None = None,
    ) -> None:
        """`tls`: what clients are met with; None: they speak without. `quotas`: None: none."""
        self.tls = tls
        self.repeats = Repeats()
        self.protocol = settings.security_protocol
        """As the proxy was started: no reload lets anybody in who was to log in."""
        self.sasl = settings.sasl
        self._mechanisms = settings.sasl_enabled_mechanisms
        """As the proxy was started: a reload brings no keys for OAUTHBEARER."""
        self.mapping = PrincipalMapping(settings.ssl_principal_mapping_rules)
        """From certificates to principals, where there is no SASL."""
        self.settings = settings
        self.office = office
        self.clients: set[ClientSide] = set()
        self.draining = False
        self.most_connections = most_connections
        self.keys = _key_service(settings)
        self.views: dict[int | tuple[str, int], BrokerView] = {}
        """What its connections see of each broker, by broker id, or by address without one."""
        self.waiting: set[object] = set()
        """Connections that are not let in yet, but count."""
        self.gateway: Gateway | None = None
        """The addresses that clients are told; None: addresses are left as they are."""
        self.observer: SessionObserver
        self.rules: Rules
        self._credentials = credentials
        self._fake_secret = fake_secret
        self._rights = rights
        self._strangers = Room(MOST_BYTES_OF_STRANGERS)
        self.quotas = quotas
        self.apply(settings)

    @property
    def name(self) -> str:
        """As the configuration names it."""
        return self.settings.name

    def enforcement(self) -> Enforcement:
        """What holds for a principal that no override names."""
        return self.settings.enforcement_in_effect()

    def apply(self, settings: config.Listener) -> None:
        """Take settings into effect for authentications and connections that come after."""
        self.settings = settings
        self.rules = Rules(
            listener=settings.name,
            mechanisms={name: self._mechanism(name, settings) for name in self._mechanisms},
            terms=settings.enforcement_policy().terms_for,
            rights=self._rights,
            sasl_max_receive_size=settings.sasl_server_max_receive_size,
            request_max_bytes=settings.socket_request_max_bytes,
            authentication_timeout=settings.sasl_authentication_timeout_ms / 1000,
            max_idle=settings.connections_max_idle_ms / 1000,
            failed_authentication_delay=settings.connection_failed_authentication_delay_ms / 1000,
            quotas=self.quotas,
            room=self.office.room,
            strangers=self._strangers,
        )

    def _mechanism(self, name: str, settings: config.Listener) -> Mechanism:
        if name == "OAUTHBEARER":
            assert self.keys is not None
            return OAuthBearerServer(settings=_token_settings(settings), keys=self.keys.cache)
        return ScramServer(
            mechanism=ScramMechanism(name),
            credentials=self._credentials,
            fake_secret=self._fake_secret,
        )

    def view(self, broker: Target) -> BrokerView:
        """What this listener's connections see of a broker."""
        key = (broker.host, broker.port) if broker.broker_id is None else broker.broker_id
        view = self.views.get(key)
        if view is None or view.broker is not broker:
            resolve = None if self.gateway is None else self.gateway.resolve
            view = self.views[key] = BrokerView(broker, resolve, metered=self.quotas is not None)
        return view

    @property
    def is_full(self) -> bool:
        """Whether it has as many connections as it may have."""
        return len(self.clients) + len(self.waiting) >= self.most_connections

    def warn(self, cause: str, text: str) -> None:
        """Log what strangers can cause: once a minute for each cause."""
        line = self.repeats.line(cause, text, monotonic())
        if line is not None:
            log.warning("listener %s: %s", self.name, line)

    def not_ready(self) -> list[str]:
        """Why clients cannot be served by this listener now; empty: they can."""
        if self.keys is not None and self.keys.cache.age_seconds(self.office.loop.time()) is None:
            return [f"listener {self.name}: signing keys were never read"]
        return []

    def collect(self, snapshot: Snapshot, now: float) -> None:
        """Add what is counted for all its connections; `Sessions.survey` goes through them."""
        snapshot.gauge(registry.CONNECTIONS, len(self.clients), self.name)
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            snapshot.gauge(registry.CERTIFICATE_EXPIRY, expiry, self.name)
        if self.gateway is not None:
            snapshot.gauge(registry.BROKERS_NOT_SHOWN, self.gateway.not_shown, self.name)
        if self.keys is not None:
            cache = self.keys.cache
            snapshot.count(registry.JWKS_REFRESH_FAILURES, cache.refresh_failures, self.name)
            if (age := cache.age_seconds(now)) is not None:
                snapshot.gauge(registry.JWKS_AGE, age, self.name)
        for view in self.views.values():
            for route in view.made.values():
                labels = (self.name, APIS[route.api_key].name)
                snapshot.count(registry.REQUESTS, route.requests, *labels)
                snapshot.count(registry.REQUEST_BYTES, route.request_bytes, *labels)
                snapshot.count(registry.RESPONSE_BYTES, route.response_bytes, *labels)


def _token_settings(settings: config.Listener) -> OAuthBearerSettings:
    return OAuthBearerSettings(
        expected_audience=frozenset(settings.sasl_oauthbearer_expected_audience),
        expected_issuer=settings.sasl_oauthbearer_expected_issuer,
        clock_skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
        scope_claim_name=settings.sasl_oauthbearer_scope_claim_name,
        sub_claim_name=settings.sasl_oauthbearer_sub_claim_name,
    )


def _key_service(settings: config.Listener) -> KeyService | None:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        return None
    cache = KeyCache(
        KeyCacheSettings(
            refresh_ms=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            retry_backoff_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            retry_backoff_max_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
            max_age_ms=settings.sasl_oauthbearer_jwks_max_stale_ms,
        )
    )
    source: Path | str = settings.jwks_file() or url
    return KeyService(cache, source)


class Door:
    """A listener's address in front of one broker, or of any: what the relay calls a shell."""

    def __init__(self, listener: Listener, broker: Callable[[], Target | None]) -> None:
        """Bring clients to the broker that `broker()` names when they connect."""
        self._listener = listener
        self._office = listener.office
        self._broker = broker
        self.loop = listener.office.loop
        self.buffer = listener.office.buffer

    def client(self) -> ClientSide | ServerTls:
        """Make the protocol of a client that connects."""
        side = ClientSide(self)
        if self._listener.tls is None:
            return side
        return ServerTls(
            side, self.buffer, self._listener.tls.context, lambda what: self._meet(side, what)
        )

    def _meet(self, client: ClientSide, what: Met) -> None:
        """A client's TLS handshake is done; or it does not speak TLS, or not as it has to."""
        if isinstance(what, ssl.SSLObject):
            if not self._listener.sasl:
                client.tell(lambda connection, now: self._identify(connection, what, now))
            return
        if isinstance(what, Stranger):
            text = f"{client.peer_host} speaks {what.value}; here is {self._listener.protocol}"
        else:
            text = f"TLS handshake with {client.peer_host} failed: {why(what)}"
        self._listener.warn(text.replace(client.peer_host, ""), text)
        client.handshake_failed()

    def _identify(self, connection: Connection, client: ssl.SSLObject, now: float) -> None:
        """Without SASL, a client's certificate says who it is."""
        try:
            principal = certified_principal(client, self._listener.mapping)
        except NamelessError as error:
            text = f"the certificate of {connection.peer_host} is refused: {error.reason}"
            self._listener.warn(error.reason, text)
            connection.end(CloseReason.AUTHENTICATION_FAILED, now)
        else:
            connection.dialogue.admit(principal, now)

    def met_tls(self, client: ClientSide) -> None:
        """A client began with TLS where none is spoken."""
        self._listener.warn(
            "TLS", f"{client.peer_host} speaks TLS; here is {self._listener.protocol}"
        )

    def opened(self, client: ClientSide) -> Connection | Refused | None:
        """A client connected; None refuses it."""
        listener = self._listener
        if listener.is_full:
            listener.observer.refused(CloseReason.TOO_MANY_CONNECTIONS)
            return None
        broker = self._broker()
        if broker is None:
            listener.observer.refused(CloseReason.BROKER_UNREACHABLE)
            return None
        now = monotonic()
        if listener.quotas is not None:
            delay = listener.quotas.admit(client.peer_host, now)
            if delay:
                listener.observer.refused(CloseReason.CONNECTION_RATE)
                if len(listener.waiting) >= listener.most_connections // SHARE_OF_WAITING:
                    return None
                listener.waiting.add(client)
                self.loop.call_later(delay, self._turn_away, client)
                return Refused()
        connection = Connection(
            connection_id=self._office.next_connection_id(),
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
        listener.clients.add(client)
        return connection

    def _turn_away(self, client: ClientSide) -> None:
        """Close a connection too many, which was held as long as its address is throttled."""
        self._listener.waiting.discard(client)
        client.close()

    def closed(self, client: ClientSide) -> None:
        """A client's connection is over."""
        self._listener.clients.discard(client)

    def connect(self, client: ClientSide) -> None:
        """Open the upstream connection of a client."""
        self._office.spawn(self._connect(client))

    async def _connect(self, client: ClientSide) -> None:
        assert client.connection is not None
        broker = cast(BrokerView, client.connection.target).broker
        try:
            async with asyncio.timeout(self._office.connect_timeout):
                await self._dial(client, broker.host, broker.port)
        except OSError as error:  # TimeoutError and those of TLS are
            text = f"broker {broker.host}:{broker.port}: {why(error)}"
            self._listener.warn(text, text)
            self._office.upstream_failed(self._listener.name, broker)
            client.tell(Connection.broker_unreachable)

    async def _dial(self, client: ClientSide, host: str, port: int) -> None:
        tls = self._office.upstream_tls
        if tls is None:
            await self.loop.create_connection(lambda: BrokerSide(client, self), host, port)
            return
        connected = self.loop.create_future()
        context = tls.context
        transport, _ = await self.loop.create_connection(
            lambda: ClientTls(BrokerSide(client, self), self.buffer, context, host, connected),
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
        self._office.spawn(self._seek_keys(client))

    async def _seek_keys(self, client: ClientSide) -> None:
        if self._listener.keys is not None:
            await self._listener.keys.refresh()
        client.tell(Connection.keys_sought)

    def consult(self, client: ClientSide, question: Consult) -> None:
        """Have a request answered that needs the store."""
        self._office.spawn(self._consult(client, question))

    async def _consult(self, client: ClientSide, question: Consult) -> None:
        try:
            body = await self._office.consult(question)
        except ClientFault:
            client.tell(Connection.misunderstood)
            return
        except Exception:
            log.exception("a request to the store failed")
            client.tell(Connection.broke)
            return
        client.tell(lambda connection, now: connection.consulted(body, now))

    def deliberate(self, client: ClientSide, deliberation: Deliberation) -> None:
        """Have long work done on behalf of a client."""
        self._office.spawn(self._deliberate(client, deliberation))

    async def _deliberate(self, client: ClientSide, deliberation: Deliberation) -> None:
        try:
            result = await self._office.lanes.run(deliberation)
        except Exception:
            log.exception("a long request could not be judged")
            client.tell(Connection.broke)
            return
        client.tell(lambda connection, now: connection.long_work.done(deliberation, result, now))
