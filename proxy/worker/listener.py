"""Listener of one worker: its rules, limits and shared state."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.acl.memberships import Memberships
from proxy.acl.principals import OpaqueNames, PrincipalMapping
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.client_identity import ClientLogins
from proxy.brokers.discovery import DiscoveredBroker
from proxy.brokers.gateway import Gateway
from proxy.config.listener import SessionSettings
from proxy.config.security import UpstreamIdentity
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from proxy.connection.inflight import LatencySampler
from proxy.connection.interfaces import ConnectionRights, ConnectionRules, NoAuthorizer
from proxy.errors import host_port
from proxy.net.proxied_client import AwaitedHeaders, most_waiting
from proxy.net.relay import ClientSide
from proxy.net.tls_contexts import Tls
from proxy.ops.observer import SessionObserver
from proxy.ops.status.session_facts import Condition
from proxy.ops.status.text import duration
from proxy.rollout import ANY_CLIENT, Claimed, Promotions
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.scheduling.memory_budget import MAX_BYTES_UNAUTHENTICATED, MemoryBudget
from proxy.wire.apis import ACL_APIS, APIS, CREDENTIAL_APIS, QUOTA_APIS, SCRAM_APIS
from proxy.worker.connection_limits import Evictable, OpenConnections
from proxy.worker.directory import MAX_BINDS, Directory
from proxy.worker.identity_services import (
    FileService,
    key_services,
    name_of,
    read_memberships,
    read_passwords,
    trusted_issuers,
)
from proxy.worker.passwords import THREADS, PasswordService, Verify, htpasswd
from proxy.worker.slots import LoginSlots
from sasl.credentials import CredentialSource, ScramMechanism
from sasl.identity import USER_TYPE, Identity
from sasl.login import ClientExchange
from sasl.mechanism import FailureReason, Mechanism
from sasl.oauthbearer import NAME as OAUTHBEARER
from sasl.oauthbearer import OAuthBearerServer
from sasl.plain import NAME as PLAIN
from sasl.plain import PasswordFile, PlainServer
from sasl.relayed import RelaySettings
from sasl.scram import ScramServer
from sasl.states import Authenticated, Enforcement, Terms

if TYPE_CHECKING:
    from proxy.worker.quota_service import QuotaService
    from proxy.worker.worker import Worker

log = logging.getLogger(__name__)

SHARE_OF_WAITING: Final = 10
"""Divisor of `max.connections` for delayed refusals: one connection in so many may be kept unserved
because its address connects too often; further ones are closed at once, or one address could use up
the limit."""


_TERMS: Final = tuple(SessionSettings.__annotations__)
"""Settings that decide the terms of sessions."""
REGROUPED_AT_ONCE: Final = 16
"""Number of connections whose groups are changed in one iteration of the event loop: quotas of
groups make it most of a millisecond for each."""

_LoginSlots = tuple[LoginSlots[ClientSide], LoginSlots[ClientSide]]


def _silence(client: ClientSide) -> float:
    assert client.connection is not None
    return client.connection.relayed_login.silence(monotonic())


def _displaced(connection: Connection, now: float) -> None:
    connection.relayed_login.failed(FailureReason.DISPLACED, now)


SOON_SECONDS: Final = 7 * 86_400.0
"""Seconds before the expiry of a certificate from which the status page marks it: a week, as the
alert."""


class Listener:
    """State that the connections of one listener share."""

    def __init__(
        self,
        settings: config.Listener,
        *,
        services: "Worker",
        credentials: CredentialSource,
        fake_secret: bytes,
        rights: ConnectionRights,
        open_connections: OpenConnections[Evictable],
        enforces_acls: bool = True,
        tls: Tls | None = None,
        quotas: "QuotaService | None" = None,
    ) -> None:
        """Make a listener of the worker `services`.

        `enforces_acls`: only versions of APIs pass that can be judged by ACLs. Without TLS
        or quotas, `tls` or `quotas` is not given.
        """
        self.tls = tls
        self.log_limit = LogRateLimit()
        """The rate limit of log lines that unauthenticated clients can cause."""
        self.protocol = settings.security_protocol
        """The security protocol as of the start: no reload changes it."""
        self.sasl = settings.sasl
        """True if clients authenticate by SASL."""
        self.relays_logins = settings.relays_logins
        """True if brokers authenticate the clients, and their logins are relayed."""
        self._login_slots: dict[DiscoveredBroker, _LoginSlots] = {}
        self._mechanism_names = settings.mechanisms_of_proxy()
        """The mechanisms as of the start: a reload cannot load keys for OAUTHBEARER."""
        self._mechanisms: dict[str, Mechanism] = {}
        """The mechanisms by name with the current settings, also for open connections: those that
        authenticate clients, and those whose messages the proxy verifies in addition to the
        broker."""
        self.memberships: FileService[Memberships] | None = None
        if (groups := settings.groups_file) is not None:
            read = partial(read_memberships, groups)
            self.memberships = FileService(groups, read, self._memberships_changed)
        """The groups of SCRAM users and certificates; None if not configured."""
        self.mapping = PrincipalMapping(settings.ssl_principal_mapping_rules)
        """The mapping from certificates to principals, where there is no SASL."""
        self.settings = settings
        """The settings as of the last reload."""
        self.terms_changed_at = monotonic()
        """When a reload last changed the terms of sessions, in monotonic seconds; before that, the
        start."""
        self.services = services
        self.clients: set[ClientSide] = set()
        """The clients that are connected, authenticated or not."""
        self.open_connections = open_connections
        """The counts of open connections, in all workers together."""
        self.max_connections = open_connections.max_connections
        """The listener's `max.connections`, of all workers together."""
        self.max_waiting = self.max_connections // open_connections.workers // SHARE_OF_WAITING
        """The number of connections that may be kept unserved because their addresses connect too
        often."""
        self.keys = key_services(settings)
        """The services that read signing keys, by `config.Listener.issuers_by_name`; empty if the
        listener takes no tokens."""
        self.views: dict[int | tuple[str, int], BrokerView] = {}
        """The view of each broker, by broker id, or by address if the id is unknown."""
        self.waiting: set[object] = set()
        """The connections that are kept unserved."""
        self.proxy_headers: AwaitedHeaders | None = None
        if trusted := settings.proxy_protocol_trusted:
            waiting, refused = most_waiting(self.max_connections), self._header_refused
            self.proxy_headers = AwaitedHeaders(trusted, waiting, refused, lambda: self.ended())
        """The connections that wait for their PROXY protocol header; None without that protocol."""
        self.ended: Callable[[], None] = lambda: None
        """Callback for the end of a connection."""
        self.gateway: Gateway | None = None
        """The addresses that clients are given; None if addresses are left as they are."""
        self.observer: SessionObserver
        """The observer of all connections."""
        self.rules: ConnectionRules
        """The rules of connections that are opened now."""
        self._credentials = credentials
        self.fake_secret = fake_secret
        """The secret from which salts of users that do not exist are derived."""
        self._rights = rights
        self._enforces_acls = enforces_acls
        self._latency = LatencySampler(monotonic, lambda *took: self.observer.responded(*took))
        self._unauthenticated_memory = MemoryBudget(MAX_BYTES_UNAUTHENTICATED)
        self.quotas = quotas
        self._client_logins: ClientLogins | None = None
        if settings.presents_clients:
            self._client_logins = ClientLogins(settings, services.access, open_connections.workers)
        """Logins to brokers as the client; None if the proxy logs in as itself."""
        self._promoted: tuple[Promotions, int | None] = {}, None
        self.passwords: PasswordService | None = None
        """The checks of PLAIN's passwords; None without PLAIN."""
        self.password_file: FileService[PasswordFile] | None = None
        """The users of PLAIN in a file; None if not configured."""
        if settings.sasl_plain_htpasswd_file is not None:
            self.passwords = self._passwords_in_file(settings.sasl_plain_htpasswd_file)
        elif settings.sasl_plain_ldap_url is not None:
            directory = Directory(settings, lambda text: self.warn("directory", text))
            self.passwords = self._password_service(directory.verify, MAX_BINDS)
        self.apply(settings)

    def _passwords_in_file(self, path: Path) -> PasswordService:
        async def forget() -> None:
            service.forget()

        self.password_file = FileService(path, partial(read_passwords, path), forget)
        service = self._password_service(htpasswd(self.password_file, self.fake_secret), THREADS)
        return service

    def _password_service(self, verify: Verify, limit: int) -> PasswordService:
        return PasswordService(
            verify,
            self._identity_of_plain,
            lambda identity: (self.terms(identity, PLAIN).max_reauth_ms or inf) / 1000,
            limit,
        )

    @property
    def name(self) -> str:
        """Name of the listener in the configuration."""
        return self.settings.name

    def enforcement(self) -> Enforcement:
        """Return the enforcement for principals without an override."""
        found = self.settings.enforcement_in_effect()
        return Enforcement.PROBE if found is Enforcement.AUTO else found

    def terms(self, identity: Identity, mechanism: str, claimed: Claimed = ANY_CLIENT) -> Terms:
        """Return the terms of a session that begins, or is renewed, now."""
        return self._policy.terms_for(identity, mechanism, claimed)

    def promote(self, promotions: Promotions, first_lifetime_ms: int | None) -> None:
        """Apply promotions to later authentications; see `EnforcementPolicy`."""
        self._promoted = promotions, first_lifetime_ms
        self._policy = self.settings.enforcement_policy(*self._promoted)

    def is_automatic(self, identity: Identity) -> bool:
        """Return whether `reauth.enforcement: auto` applies to a client."""
        return self._has_auto and self._policy.is_automatic(identity)

    def apply(self, settings: config.Listener) -> None:
        """Apply settings to later connections, and to later authentications.

        That includes re-authentications on open connections.
        """
        if self._client_logins is not None:
            self._client_logins.apply(settings)
        if any(getattr(settings, name) != getattr(self.settings, name) for name in _TERMS):
            self.terms_changed_at = monotonic()
            self._report_old_terms()
        self.settings = settings
        self._has_auto = settings.has_auto
        self._policy = settings.enforcement_policy(*self._promoted)
        self._name_of_user = name_of(settings.sasl_scram_principal_mapping_rules)
        self._mechanisms.update(
            (name, self._mechanism(name, settings)) for name in self._mechanism_names
        )
        self.rules = ConnectionRules(
            listener=settings.name,
            mechanisms=self._mechanisms,
            terms=self.terms,
            rights=self._rights,
            sasl_max_receive_size=settings.sasl_server_max_receive_size,
            request_max_bytes=settings.socket_request_max_bytes,
            authentication_timeout=settings.sasl_authentication_timeout_ms / 1000,
            max_idle=settings.connections_max_idle_ms / 1000,
            max_age=(settings.connections_max_age_ms or inf) / 1000,
            failed_authentication_delay=settings.connection_failed_authentication_delay_ms / 1000,
            quotas=self.quotas,
            relays=self._relay_settings(settings) if self.relays_logins else None,
            logs_in=self.services.access.identity is not None and not self.relays_logins,
            presents_clients=self._client_logins is not None,
            presents=self._presents,
            latency=self._latency,
            memory=self.services.memory_budget,
            unauthenticated_memory=self._unauthenticated_memory,
            blocks=self.services.blocks,
        )

    def _report_old_terms(self) -> None:
        """Log how many sessions keep the terms from before a reload."""
        connections = (client.connection for client in self.clients)
        sessions = [one.authentication.established for one in connections if one is not None]
        if count := sum(one is not None and one.mechanism is not None for one in sessions):
            log.info(
                "listener %s: %d sessions of this worker keep their old terms until they"
                " authenticate again; `reauth-proxy sessions drain --all` ends them gently",
                self.name,
                count,
            )

    async def exchange(
        self, client: Authenticated | None, broker: tuple[str, int]
    ) -> ClientExchange:
        """Begin the login of a client's upstream connection to a host and port.

        Raises LoginError.
        """
        if self._client_logins is not None:
            return await self._client_logins.exchange(client, broker)
        identity = self.services.access.identity
        assert identity is not None
        return await identity.exchange(broker[0])

    def _presents(self, client: Authenticated) -> str | None:
        return None if self._client_logins is None else self._client_logins.presents(client)

    def login_failed(self, client: Authenticated | None, broker: DiscoveredBroker) -> None:
        """Take note that a broker refused the login of a client's upstream connection."""
        if self._client_logins is not None:
            self._client_logins.failed(client, (broker.host, broker.port))

    async def expire_tokens(self, principal: str, broker: DiscoveredBroker | None) -> int:
        """Expire a client's delegation tokens: see `Worker.expire_tokens`."""
        if self._client_logins is None:
            return 0
        at = None if broker is None else (broker.host, broker.port)
        return await self._client_logins.expire_tokens(principal, at)

    def _relay_settings(self, settings: config.Listener) -> RelaySettings:
        rules = settings.sasl_broker_opaque_principal_mapping_rules
        return RelaySettings(
            mechanisms=settings.sasl_enabled_mechanisms,
            sub_claim_name=settings.sasl_oauthbearer_sub_claim_name,
            opaque_principal=OpaqueNames(rules).principal,
            verifiers=self._mechanisms,
        )

    def _mechanism(self, name: str, settings: config.Listener) -> Mechanism:
        if name == OAUTHBEARER:
            return OAuthBearerServer(issuers=trusted_issuers(settings, self.keys))
        if name == PLAIN:
            return PlainServer()
        return ScramServer(
            mechanism=ScramMechanism(name),
            credentials=self._credentials,
            fake_secret=self.fake_secret,
            identity_of=self._identity_of_user,
        )

    def _identity_of_user(self, user: str) -> Identity | None:
        """Return the identity of a SCRAM user; None if no rule gives it a principal."""
        rename = self._name_of_user
        name = user if rename is None else rename(user)
        return None if name is None else self.identity_of(USER_TYPE + name)

    def _identity_of_plain(self, user: str, groups: tuple[str, ...]) -> Identity:
        if self.settings.sasl_plain_ldap_groups_dn is None:
            return self.identity_of(USER_TYPE + user)
        return Identity(USER_TYPE + user, groups)

    def identity_of(self, principal: str) -> Identity:
        """Return the identity of a client without a token, with its groups."""
        if self.memberships is None:
            return Identity(principal)
        return self.memberships.current.identity(principal)

    async def _memberships_changed(self) -> None:
        """Judge open connections by the groups that their clients have now."""
        for number, client in enumerate(list(self.clients), start=1):
            self._regroup(client)
            if number % REGROUPED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _regroup(self, client: ClientSide) -> None:
        connection = client.connection
        if connection is None or connection.closed:
            return
        session = connection.authentication.established
        if session is None or session.mechanism == OAUTHBEARER:
            return
        if session.mechanism == PLAIN and self.settings.sasl_plain_ldap_groups_dn is not None:
            return
        identity = self.identity_of(session.principal)
        if identity != session.identity:
            client.call(partial(Connection.regroup, identity=identity))

    def view(self, broker: DiscoveredBroker) -> BrokerView:
        """Return the view of a broker for this listener's connections."""
        key = (broker.host, broker.port) if broker.broker_id is None else broker.broker_id
        view = self.views.get(key)
        if view is None or view.broker is not broker:
            resolve = None if self.gateway is None else self.gateway.resolve
            passes, not_answered = self._not_answered()
            view = self.views[key] = BrokerView(
                broker,
                resolve,
                enforces_acls=self._enforces_acls,
                metered=self.quotas is not None,
                passes=passes,
                not_answered=not_answered,
            )
        return view

    def _not_answered(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the APIs that pass to the brokers, and those that are not answered here.

        Where brokers know the clients, they have the ACLs and quotas unless the proxy has its own;
        where they authenticate the clients, they also have the users.
        """
        if not self.relays_logins and self._client_logins is None:
            return frozenset(), frozenset()
        theirs = CREDENTIAL_APIS if self.relays_logins else frozenset()
        if self.settings.upstream_identity is UpstreamIdentity.DELEGATION_TOKEN:
            theirs = CREDENTIAL_APIS - SCRAM_APIS  # brokers refuse them in such sessions
        if isinstance(self._rights, NoAuthorizer):
            passes = theirs | ACL_APIS | (QUOTA_APIS if self.quotas is None else frozenset())
            return passes, passes
        # No guard could judge the requests about delegation tokens
        return SCRAM_APIS & theirs, theirs

    def login_slots(self, broker: DiscoveredBroker) -> "_LoginSlots":
        """Return the slots of first logins to a broker, and those of re-authentications aside."""
        slots = self._login_slots.get(broker)
        if slots is None:
            settings = self.settings
            slots = self._login_slots[broker] = (
                self._slots(settings.sasl_broker_max_logins),
                self._slots(settings.sasl_broker_max_side_connections),
            )
        return slots

    def _slots(self, limit: int) -> LoginSlots[ClientSide]:
        return LoginSlots(
            max(1, limit // self.open_connections.workers),
            silence=_silence,
            displace=self._displace,
            call_later=self.services.loop.call_later,
        )

    def _displace(self, client: ClientSide) -> None:
        self.warn(
            "login slots",
            f"{client.peer_host} is disconnected: its login was silent while another waited for a"
            " slot; see sasl.broker.max.logins and sasl.broker.max.side.connections",
        )
        client.call(_displaced)

    def admit(self, connection: Evictable, address: str) -> CloseReason | None:
        """Count a connection, and evict another for it if need be; or return why it is refused."""
        decision = self.open_connections.open(connection, address, monotonic())
        if decision.evicts is not None:
            decision.evicts.evict()
        if (reason := decision.refused) is not None:
            self.warn(reason, f"{address} is refused: {reason}")
        return reason

    @property
    def connection_count(self) -> int:
        """Number of connections, including those that are not served, or not yet."""
        headers = 0 if self.proxy_headers is None else self.proxy_headers.count
        return len(self.clients) + len(self.waiting) + headers

    def _header_refused(self, host: str, problem: str) -> None:
        self.observer.refused(CloseReason.PROXY_HEADER)
        self.warn(problem, f"{host} is refused: {problem}")

    def warn(self, cause: str, text: str, *, detail: str = "") -> None:
        """Log an event that unauthenticated clients can cause: once a minute for each cause."""
        self._log(logging.WARNING, cause, text, detail=detail)

    def broker_left(self, broker_id: int) -> None:
        """Report that a client was refused because the broker of its port has left."""
        self.observer.refused(CloseReason.BROKER_UNREACHABLE)
        self.warn("left", f"a client of broker {broker_id} is refused: the broker has left")

    def inform(self, cause: str, text: str, *, detail: str = "") -> None:
        """Log an event that concerns only the client, within the rate limit of `LogRateLimit`."""
        self._log(logging.INFO, cause, text, detail=detail)

    def _log(self, level: int, cause: str, text: str, *, detail: str = "") -> None:
        line = self.log_limit.line(cause, text, monotonic(), detail=detail)
        if line is not None:
            log.log(level, "listener %s: %s", self.name, line)

    def upstream_failed(self, broker: DiscoveredBroker, problem: str, detail: str) -> None:
        """Log that a connection to a broker could not be opened, or the login on it failed.

        `detail` is the broker's own message, which may differ each time; empty if the broker sent
        none.
        """
        cause = f"broker {host_port(broker.host, broker.port)}: {problem}"
        self.warn(cause, f"{cause}: {detail}" if detail else cause)
        # Clients that a broker refuses must not cause a query each
        lately = self._client_logins is not None and broker.was_queried_lately(monotonic())
        if broker.refusal is None and not lately:  # otherwise it is queried already
            self.services.query_soon(broker)

    def may_have_changed(self, broker: DiscoveredBroker, now: float) -> None:
        """Query a broker soon that closed a connection, or was reached by mistake."""
        if not broker.was_queried_lately(now):
            self.services.query_soon(broker)

    def not_ready(self) -> list[str]:
        """Return why this listener cannot serve clients now; empty if it can.

        Of several issuers the keys of one suffice: an outage of another concerns its clients alone.
        """
        now = self.services.loop.time()
        found = [one.not_ready(now) for one in self.keys.values()]
        reasons = [why for why in found if why is not None]
        return [f"listener {self.name}: {why}" for why in reasons if len(reasons) == len(found)]

    def conditions(self, now: float, wall: float) -> list[Condition]:
        """Return the state of brokers, certificate and keys, for the status page.

        `now` is monotonic seconds, `wall` Unix time.
        """
        found = []
        for view in self.views.values():
            broker = view.broker
            problem, since = broker.refusal or broker.unreachable, broker.reachable_since
            state = "not asked yet" if since is None else f"reachable for {duration(now - since)}"
            address = host_port(broker.host, broker.port)
            found.append(Condition("broker", address, problem or state, good=problem is None))
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            left = expiry - wall
            state = f"expires in {duration(left)}"
            found.append(Condition("certificate", self.name, state, good=left > SOON_SECONDS))
        for issuer, keys in self.keys.items():
            cache = keys.cache
            age = cache.age_seconds(now)
            state = "never read" if age is None else f"{cache.key_count} read {duration(age)} ago"
            good = cache.last_error is None
            state = state if good else f"{state}: {cache.last_error}"
            whose = f"{self.name}, {issuer}" if issuer else self.name
            found.append(Condition("signing keys", whose, state, good=good))
        return found

    def collect(self, snapshot: Snapshot, now: float) -> None:
        """Add the values of the listener; `Sessions.survey` adds those of its sessions."""
        snapshot.gauge(registry.CONNECTIONS, len(self.clients), self.name)
        if self.tls is not None and (expiry := self.tls.expires_at) is not None:
            snapshot.gauge(registry.CERTIFICATE_EXPIRY, expiry, self.name)
        if self.gateway is not None:
            snapshot.gauge(registry.BROKERS_NOT_SHOWN, self.gateway.not_shown, self.name)
        if self._client_logins is not None:
            self._client_logins.collect(snapshot, self.name)
        for issuer, keys in self.keys.items():
            labels, cache = (self.name, issuer), keys.cache
            snapshot.count(registry.JWKS_REFRESH_FAILURES, cache.refresh_failures, *labels)
            if (age := cache.age_seconds(now)) is not None:
                snapshot.gauge(registry.JWKS_AGE, age, *labels)
        for view in self.views.values():
            for route in view.made.values():
                labels = (self.name, APIS[route.api_key].name)
                snapshot.count(registry.REQUESTS, route.requests, *labels)
                snapshot.count(registry.REQUEST_BYTES, route.request_bytes, *labels)
                snapshot.count(registry.RESPONSE_BYTES, route.response_bytes, *labels)
