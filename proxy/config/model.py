"""Model of the whole configuration file, with the checks across sections."""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from metrics.delivery.selection import HIDEABLE, MEANT, Kinds, Target, parse_target
from metrics.rollout import EVIDENCE_MAX_AGE_MS, REAUTHENTICATIONS, WINDOW_MS
from proxy.acl.model import AuthorizerMode
from proxy.config.listener import Listener, Routing
from proxy.config.section import KAFKA_BROKER, KAFKA_CLIENT, Problems, Section, check, setting
from proxy.config.security import MSK_IAM, UpstreamIdentity, UpstreamSasl
from proxy.config.values import (
    MAX_INT32,
    Address,
    AddressValue,
    BrokerAddress,
    Bytes,
    Count,
    DestinationsValue,
    EndpointUrl,
    KeepaliveIdle,
    Milliseconds,
    OneOrMore,
    Parsed,
    PathValue,
    PositiveMilliseconds,
    Principal,
    StoreUrl,
    Text,
    WebUrl,
    WorkerCount,
    shown,
    text_that,
    whole_number,
)
from proxy.declarations import BeforeValidator, Field, StrictBool, WithJsonSchema
from proxy.quota.model import QuotaKey, canonical_ip
from proxy.rollout import Rules


class UpstreamProxyProtocol(StrEnum):
    """Use of the PROXY protocol on connections to brokers."""

    OFF = "off"
    """No header is sent."""
    V2 = "v2"
    """A header of version 2 is sent."""


class QuotasMode(StrEnum):
    """Treatment of quotas."""

    OFF = "off"
    """Quotas are stored and described, but nothing is measured."""
    AUDIT = "audit"
    """Excess is counted and logged; no client is throttled."""
    ENFORCE = "enforce"


def _callback(value: object) -> object:
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (module and colon and name.isidentifier()):
        raise ValueError(f"must be package.module:Class, got {shown(value)}")
    if module.startswith("proxy.quota.examples."):
        raise ValueError(
            f"{module} is not part of the program any more: copy it from tests/support/"
            "quota_callbacks/ of the sources into a package of your own (docs/quotas.md)"
        )
    return value


CallbackClass = Annotated[str, BeforeValidator(_callback)]


class Quotas(Section):
    """Quotas of clients."""

    mode: QuotasMode = setting(QuotasMode.OFF)
    """`off`: nothing is measured; the client-quota APIs still store and describe quotas. `audit`:
    excess is counted and logged, no client is throttled. `enforce`: clients are throttled."""
    quota_window_num: Annotated[Count, Field(ge=2, le=1_000)] = setting(11, source=KAFKA_BROKER)
    """Number of samples that a rate is computed from, the current one included."""
    quota_window_size_seconds: Annotated[Count, Field(le=3_600)] = setting(
        1, source=KAFKA_BROKER, unit="s"
    )
    """Length of one sample."""
    quota_producer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """Produce quota of a client id that no entry limits; null: no limit. Removed in Kafka 4, where
    an entry for the default client id takes its place."""
    quota_consumer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """Fetch quota of a client id that no entry limits; null: no limit. Removed in Kafka 4 as
    well."""
    client_quota_callback_class: CallbackClass | None = setting(None, source=KAFKA_BROKER)
    """A custom quota callback (KIP-257): `package.module:Class`."""
    client_quota_callback_configs: dict[str, Any] = setting({})
    """Configuration passed to the callback's `configure`."""

    def static_defaults(self) -> dict[QuotaKey, float]:
        """Return the static defaults, which are last in the precedence, by quota key."""
        given = {
            QuotaKey.PRODUCER_BYTE_RATE: self.quota_producer_default,
            QuotaKey.CONSUMER_BYTE_RATE: self.quota_consumer_default,
        }
        return {key: float(limit) for key, limit in given.items() if limit is not None}


def _target(value: object) -> Target:
    if not isinstance(value, str):
        raise ValueError(f"{MEANT}, got {shown(value)}")
    return parse_target(value)  # its errors do not show the value, which may contain a password


TargetValue = Annotated[Target, Parsed(_target, pattern="^kafka:")]
HiddenField = Annotated[
    str,
    text_that(HIDEABLE.__contains__, f"be one of {', '.join(HIDEABLE)}"),
    WithJsonSchema({"type": "string", "enum": list(HIDEABLE)}),
]


class DeliverKafka(UpstreamSasl):
    """Kafka cluster of the topic, if it is not the cluster behind the proxy.

    The connection and the login are set as in `upstream`.
    """

    bootstrap_servers: OneOrMore[BrokerAddress] = setting((), source=KAFKA_CLIENT)
    """Brokers of another cluster, with `security.protocol`, `ssl.…` and `sasl.…` as in `upstream`;
    empty: the topic is in the cluster behind the proxy, with the login of `upstream`."""

    @check
    def _check_servers(self) -> Problems:
        others = [name for name in self.model_fields_set if name != "bootstrap_servers"]
        if not self.bootstrap_servers and others:
            yield "bootstrap.servers", "is required with the other settings of this section"
        if self.sasl_mechanism == MSK_IAM:
            yield "sasl.mechanism", "must be OAUTHBEARER for aws-msk-iam here"
        if self.bootstrap_servers and self.sasl and self.sasl_mechanism is None:
            problem = f"is required with security.protocol: {self.security_protocol}"
            yield "sasl.mechanism", problem


class Deliver(Section):
    """Delivery of the event log, in a separate process."""

    to: TargetValue | None = setting(None)
    """`kafka:TOPIC` (needs the extra `kafka`); null: event files stay where they are."""
    kinds: Kinds = setting(Kinds.ALL)
    """`all`, or `summary`: only the summary rows, which suffice for the report."""
    hide: OneOrMore[HiddenField] = setting(())
    """Fields whose values are replaced by `hidden`: `client_host`, `client_id`, `principal`,
    `claimed_principal`, `resource_name`, `proxy_id`, `groups`, `groups_joined` or `groups_left`."""
    drain_ms: Milliseconds = setting(10_000)
    """Longest time for delivering the last events when the proxy ends, after
    `shutdown.drain.ms`."""
    kafka: DeliverKafka = setting({})

    @check
    def _check_kafka(self) -> Problems:
        if self.kafka.bootstrap_servers and self.to is None:
            yield "kafka.bootstrap.servers", "has no meaning without to: kafka:"


@dataclass(frozen=True, slots=True)
class AddressLimit:
    """Limit of the connections that one address may have open."""

    address: str
    """IP address, in any spelling."""
    max_connections: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `127.0.0.1:200`, `::1:200` or `[::1]:200`: the number follows the last colon."""
        address, _, number = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if address.startswith("[") and address.endswith("]"):
            address = address[1:-1]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(
                f"must be an IP address and a number such as 127.0.0.1:200, got {shown(value)}"
            ) from None
        if not (
            number.isascii() and number.isdigit() and len(number) <= 10 and int(number) <= MAX_INT32
        ):
            raise ValueError(f"must end in a number from 0 to {MAX_INT32}, got {shown(value)}")
        return cls(address, int(number))

    def __str__(self) -> str:
        return f"{self.address}:{self.max_connections}"


def _listed(value: object) -> object:
    """Return an empty list for an empty text, Kafka's default."""
    return [] if value == "" else value


AddressLimits = Annotated[
    OneOrMore[Annotated[AddressLimit, Parsed(AddressLimit.parse, title="ADDRESS:COUNT")]],
    BeforeValidator(_listed),
]


def socket_beside(store: Path) -> Path:
    """Return the default admin socket of a proxy with this store."""
    return store.with_name(f"{store.name}.sock")


MSK_CONNECTION_RATE: Final = 100
"""Connections per second that a broker of Amazon MSK accepts from clients with IAM."""


class Upstream(UpstreamSasl):
    """Kafka cluster behind the proxy."""

    bootstrap_servers: OneOrMore[BrokerAddress] = setting((), source=KAFKA_CLIENT)
    """Brokers to connect to first: `HOST:PORT`, several separated by commas, or a list. `sidecar`:
    exactly one, the broker. `transparent` listeners do not require it."""
    allowed: OneOrMore[DestinationsValue] = setting(())
    """`transparent` only, and required there: allowed destinations of redirected connections, such
    as `10.0.0.0/8:9092`, `10.1.2.3`, `[2001:db8::/32]:9092-9094`."""
    socket_connection_setup_timeout_ms: PositiveMilliseconds = setting(10_000, source=KAFKA_CLIENT)
    """Longest time that a connection to a broker may take to be set up."""
    socket_keepalive_idle_ms: KeepaliveIdle = setting(120_000)
    """Time without traffic after which TCP keepalive probes a connection to a broker, in whole
    seconds: less than the time after which a load balancer or firewall forgets idle connections. A
    connection ends if the broker acknowledges nothing for 30 s longer (TCP_USER_TIMEOUT)."""
    proxy_protocol: UpstreamProxyProtocol = setting(UpstreamProxyProtocol.OFF)
    """`v2`: each connection begins with a PROXY protocol header that names the client's address,
    and the address that the proxy connects to; LOCAL on the proxy's own connections. For load
    balancers in front of the brokers, or another proxy: Kafka does not understand it."""
    max_connection_creation_rate: Count | None = setting(None)
    """Most connections per second that clients cause to one broker, all workers together, evenly
    spaced; others wait, and addresses take turns. null: 100 with `aws-msk-iam`, the limit of
    Amazon MSK (4 on `kafka.t3.small`), otherwise no limit."""
    metadata_max_age_ms: PositiveMilliseconds = setting(5_000, source=KAFKA_CLIENT)
    """Interval at which the proxy requests the list of brokers, `gateway` only. Kafka's clients do
    so every five minutes; a gateway must have a broker's port open before clients learn of it."""

    def connection_rate(self) -> int | None:
        """Return the limit of new connections per second to each broker; None for no limit."""
        if self.max_connection_creation_rate is None and self.sasl_login_provider == "aws-msk-iam":
            return MSK_CONNECTION_RATE
        return self.max_connection_creation_rate


class Authorizer(Section):
    """Authorization by ACLs."""

    mode: AuthorizerMode = setting(AuthorizerMode.OFF)
    """`off`: every principal may do everything, and the ACL APIs answer that security is disabled.
    `audit`: requests that ACLs would deny are counted, logged and allowed, except those that change
    or reveal ACLs, quotas and SCRAM users. `enforce`: ACLs apply."""
    super_users: tuple[Principal, ...] = setting((), source=KAFKA_BROKER, reloadable=True)
    """Principals that may do everything, such as `User:admin`."""
    allow_everyone_if_no_acl_found: StrictBool = setting(False, source=KAFKA_BROKER)
    """true: a resource without ACLs is open to everyone."""
    auto_create_topics_enable: StrictBool = setting(True, source=KAFKA_BROKER)
    """The brokers' own setting. It decides which error Metadata returns for a missing topic if the
    principal may describe but not create it. true: TOPIC_AUTHORIZATION_FAILED; false:
    UNKNOWN_TOPIC_OR_PARTITION, so that clients wait for the topic. Either way, a topic is created
    only for principals with Create permission."""

    @check
    def _check_super_users(self) -> Problems:
        """Refuse Kafka's own syntax, `User:a;User:b`: it would name one principal, which no client
        has."""
        for index, principal in enumerate(self.super_users):
            if re.search(r";\s*[A-Za-z]+:", principal):
                yield (
                    f"super.users[{index}]",
                    f"must be one principal; write several as a list, got {shown(principal)}",
                )


class OnKills(StrEnum):
    """Reactions to kills of enforced principals."""

    DEMOTE = "demote"
    """The principal is probed."""
    FREEZE = "freeze"
    """No principal is promoted until an operator looks."""


class Auto(Section):
    """Promotion of principals with `reauth.enforcement: auto`.

    A client is a principal with a client id, a library and its version. Numbers and random parts of
    client ids are ignored.
    """

    reauthentications: Annotated[Count, Field(le=100)] = setting(REAUTHENTICATIONS, reloadable=True)
    """Number of re-authentications in time, without a failure in between, that make a client ready;
    a principal is enforced when all its clients are."""
    window_ms: PositiveMilliseconds = setting(WINDOW_MS, reloadable=True)
    """Shortest time from the first to the last of them."""
    evidence_max_age_ms: PositiveMilliseconds = setting(EVIDENCE_MAX_AGE_MS, reloadable=True)
    """Age at which evidence, and a client that was not seen since, no longer count. Longer than the
    interval of the rarest batch job."""
    max_kills: Annotated[int, Field(ge=0, le=1_000), BeforeValidator(whole_number(""))] = setting(
        0, reloadable=True
    )
    """Number of sessions of an enforced principal that may be killed within `kill.window.ms`."""
    kill_window_ms: PositiveMilliseconds = setting(3_600_000, reloadable=True)
    """Time within which kills are counted."""
    on_kills: OnKills = setting(OnKills.DEMOTE, reloadable=True)
    """What more kills cause. `demote`: the principal is probed until there is new evidence.
    `freeze`: nothing is promoted until `reauth-proxy rollout pause --off`."""
    promotions_per_hour: Count = setting(10, reloadable=True)
    """Largest number of promotions in an hour."""
    pause: StrictBool = setting(False, reloadable=True)
    """true: nothing is promoted; demotions continue."""
    lifetimes_ms: OneOrMore[PositiveMilliseconds] = setting((), reloadable=True)
    """Lifetimes in falling order, such as `[3600000, 900000]`: a principal is promoted with the
    first one, and gets the next one after all its clients were ready with the one before it. They
    replace `connections.max.reauth.ms` of listeners and mechanisms. Empty: those apply."""

    @check
    def _check_lifetimes(self) -> Problems:
        if list(self.lifetimes_ms) != sorted(set(self.lifetimes_ms), reverse=True):
            yield "lifetimes.ms", "must be in falling order"

    def rules(self) -> Rules:
        """Return the rules for `proxy.rollout`."""
        return Rules(**{name: getattr(self, name) for name in Rules._fields})


class Store(Section):
    """Store of SCRAM verifiers, ACLs and quotas."""

    url: StoreUrl = setting("sqlite:state.db")
    """`sqlite:PATH`: everything is in this file. `broker:PATH`: ACLs and quotas stay with the
    brokers, and the file has a copy of them and the verifiers. A relative path is relative to this
    file. The database is created if it does not exist."""
    refresh_ms: Annotated[Milliseconds, Field(ge=100, le=30_000)] = setting(5_000)
    """`broker:`: interval at which ACLs and quotas are read from the brokers; 100 to 30000."""
    users_file: PathValue | None = setting(None)
    """A file with the SCRAM users, as `users export` writes it. Several proxies can share it; they
    only read it, and load a replaced file within a second. null: users are in `store.url`. A
    relative path is relative to this file."""

    @property
    def at_brokers(self) -> bool:
        """True if ACLs and quotas are copies of the brokers'."""
        return self.url.startswith("broker:")

    def path(self) -> Path:
        """Return the file of the database."""
        return Path(self.url.partition(":")[2])


class Events(Section):
    """Session event log."""

    directory: PathValue | None = setting(None)
    """Directory of the event files; null: no event log. A relative path is relative to this
    file."""
    rotate_bytes: Bytes = setting(134_217_728)
    """Size at which an event file is closed and another begun."""
    rotate_ms: PositiveMilliseconds = setting(3_600_000)
    """Age at which an event file is closed and another begun."""
    checkpoint_ms: PositiveMilliseconds = setting(3_600_000)
    """Interval between two summaries of an open connection."""
    retention_bytes: Bytes | None = setting(10_737_418_240)
    """Total size above which the oldest closed files are deleted; null: never."""
    usage: StrictBool = setting(False)
    """true: record every five minutes which resources each client used, and each administrative
    request with its outcome; needs `authorizer.mode: audit`, or `enforce`. Other requests of super
    users are not recorded."""
    hash_chain: StrictBool = setting(False)
    """true: each line has a hash of itself and the line before it, so that `audit verify` finds the
    line that was changed."""
    deliver: Deliver = setting({})

    @check
    def _check_delivery(self) -> Problems:
        if self.deliver.to is not None and self.directory is None:
            yield "directory", "is required with deliver.to"


class Http(Section):
    """Endpoint of Prometheus metrics, health checks and the status page."""

    address: AddressValue | None = setting(None)
    """Address of `/metrics`, `/healthz`, `/readyz`, the status page `/`, `/sessions.json` and
    `/jwks.json` (`upstream.identity: minted-token`), without authentication; null: they are not
    served."""
    runbooks_url: WebUrl | None = setting(None)
    """URL at which people can read docs/runbooks.md, such as the page `runbooks/` of the docs' site
    (`make site`): the status page links to it. null: no link."""
    report_url: WebUrl | None = setting(None)
    """URL of the readiness report on these events, such as its web server's: the status page links
    to it. null: no link."""


class Admin(Section):
    """Socket of `reauth-proxy sessions`."""

    socket: PathValue | None = setting(None)
    """A Unix socket that the proxy's own user and root can open; null: `FILE.sock` beside the
    store's FILE. A relative path is relative to this file."""


class StaleLogins(StrEnum):
    """Treatment of logins while the block list cannot be read."""

    ALLOW = "allow"
    """The last list that could be read applies."""
    REFUSE = "refuse"
    """All logins and re-authentications fail after `block.max.stale.ms`."""


class Signals(Section):
    """Signals of an identity provider that end sessions, polled from it (RFC 8936).

    CAEP `session-revoked` and `credential-change` and RISC `account-disabled` become entries of the
    block list: tokens of their subject that were issued before the event are blocked.
    """

    endpoint_url: WebUrl | None = setting(None)
    """URL of the stream that the identity provider has made for this proxy, an `https:` or `http:`
    URL; null: no signals."""
    token_file: PathValue | None = setting(None)
    """File with the bearer token for the endpoint, which is read for each request. Only with an
    `https:` URL. null: requests have no token."""
    jwks_endpoint_url: EndpointUrl | None = setting(None)
    """The signing keys of the signals: a `file:`, `http:` or `https:` URL of a JWKS. Required with
    `endpoint.url`, like the next two."""
    issuer: Text | None = setting(None)
    """A signal's `iss` must be equal to this."""
    audience: Text | None = setting(None)
    """A signal must name this in `aud`."""
    poll_ms: Annotated[Milliseconds, Field(ge=1_000, le=60_000)] = setting(5_000)
    """Longest time between two requests for signals. 1000 to 60000."""
    token_lifetime_ms: PositiveMilliseconds = setting(86_400_000)
    """Longest lifetime of the tokens that clients log in with: so long after its event, an entry
    ends."""

    @check
    def _check(self) -> Problems:
        if self.endpoint_url is None:
            if self.model_fields_set:
                yield "endpoint.url", "is required with the other settings of this section"
            return
        for name in ("jwks_endpoint_url", "issuer", "audience"):
            if getattr(self, name) is None:
                yield self.key_of(name), "is required with endpoint.url"
        if self.token_file is not None and urlsplit(self.endpoint_url).scheme != "https":
            problem = "needs an https: URL in endpoint.url, or the token is sent in the clear"
            yield "token.file", problem


class Block(Section):
    """List of blocked clients and credentials (`reauth-proxy block`)."""

    file: PathValue | None = setting(None)
    """The list, in a directory that all proxies share, such as a network volume: a block then
    reaches every proxy. The file must exist. null: `FILE.blocks` beside the store's FILE, which
    only this proxy reads. A relative path is relative to this file."""
    max_age_ms: Annotated[Milliseconds, Field(ge=1_000, le=60_000)] = setting(5_000)
    """Longest time from a change of the file to its enforcement: blocked sessions are closed, and
    blocked logins fail. The file is checked four times as often. 1000 to 60000."""
    max_stale_ms: PositiveMilliseconds = setting(60_000)
    """Time after which a proxy that cannot read the list is not ready. Until it can, the last list
    applies."""
    stale_logins: StaleLogins = setting(StaleLogins.ALLOW)
    """Logins and re-authentications after that time: `allow` or `refuse`."""
    signals: Signals = setting({})

    @check
    def _check_times(self) -> Problems:
        if self.max_stale_ms < self.max_age_ms:
            yield "max.stale.ms", f"must be at least max.age.ms, {self.max_age_ms}"


class LogFormat(StrEnum):
    """Formats of the log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Levels of the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Section):
    """Log on stderr."""

    format: LogFormat = setting(LogFormat.TEXT)
    """`text`, or `json`: an object a line with `time`, `level`, `process`, `logger`, `message`."""
    level: LogLevel = setting(LogLevel.INFO)
    """Lowest level that is logged: `debug`, `info`, `warning` or `error`."""


class Config(Section):
    """Configuration file of reauth-proxy."""

    upstream: Upstream = setting()
    listeners: Annotated[tuple[Listener, ...], Field(min_length=1)] = setting()
    authorizer: Authorizer = setting({})
    quotas: Quotas = setting({})
    auto: Auto = setting({})
    store: Store = setting({})
    events: Events = setting({})
    http: Http = setting({})
    admin: Admin = setting({})
    block: Block = setting({})
    log: Log = setting({})
    max_connections_per_ip: Annotated[
        int, Field(ge=0, le=MAX_INT32), BeforeValidator(whole_number(""))
    ] = setting(MAX_INT32, source=KAFKA_BROKER, reloadable=True)
    """Largest number of open connections from one IP address, to all listeners together; further
    connections are closed at once. The IPv6 addresses of a /64 count as one. 0: only addresses in
    `max.connections.per.ip.overrides` may connect."""
    max_connections_per_ip_overrides: AddressLimits = setting(
        (), source=KAFKA_BROKER, reloadable=True
    )
    """Other limits for some addresses, such as `127.0.0.1:200`, several separated by commas, or a
    list. Host names, which Kafka resolves when it starts, are refused."""
    workers: WorkerCount = setting(1)
    """Number of processes that share the listeners, at most one per core."""
    shutdown_drain_ms: Milliseconds = setting(30_000)
    """Longest time that requests in flight may take to finish after SIGTERM."""

    @check
    def _check_sidecars(self) -> Problems:
        several = len(self.upstream.bootstrap_servers) > 1
        if several and any(one.routing is Routing.SIDECAR for one in self.listeners):
            yield "upstream.bootstrap.servers", "must be one broker: a listener is its sidecar"

    @check
    def _check_upstream(self) -> Problems:
        transparent = [one.routing is Routing.TRANSPARENT for one in self.listeners]
        if not self.upstream.bootstrap_servers and not all(transparent):
            yield "upstream.bootstrap.servers", "is required"
        if self.store.at_brokers and not self.upstream.bootstrap_servers:
            yield "upstream.bootstrap.servers", "is required with broker: as store"
        if any(transparent) and not self.upstream.allowed:
            yield "upstream.allowed", "is required with routing: transparent"
        # Their brokers expect no header, and a redirect loop would not be recognized behind one
        if any(transparent) and self.upstream.proxy_protocol is not UpstreamProxyProtocol.OFF:
            yield "upstream.proxy.protocol", "must be off with routing: transparent"

    @check
    def _check_logins(self) -> Problems:
        """Refuse configurations in which clients, or the proxy, could not log in to brokers."""
        upstream = self.upstream
        relays = [one.relays_logins for one in self.listeners]
        if any(relays) and not upstream.sasl:
            yield (
                "upstream.security.protocol",
                "must be SASL_PLAINTEXT or SASL_SSL with sasl.termination: broker",
            )
        if not upstream.sasl or upstream.sasl_mechanism is not None:
            return
        if not all(relays):
            problem = f"is required with security.protocol: {upstream.security_protocol}"
            yield "upstream.sasl.mechanism", problem
        needs = "needs the proxy's own login: set upstream.sasl.mechanism"
        if self.store.at_brokers:
            yield "store.url", f"broker: {needs}"
        if self.quotas.client_quota_callback_class is not None:
            yield "quotas.client.quota.callback.class", needs

    @check
    def _check_identities(self) -> Problems:
        """Refuse to log in as the client where brokers expect no login, and where the proxy changes
        ACLs, quotas and users at brokers under its own name."""
        for index, one in enumerate(self.listeners):
            if not one.presents_clients:
                continue
            if not self.upstream.sasl:
                yield (
                    f"listeners[{index}].upstream.identity",
                    "needs upstream.security.protocol: SASL_SSL, or SASL_PLAINTEXT",
                )
            by_token = one.upstream_identity is UpstreamIdentity.DELEGATION_TOKEN
            if by_token and self.upstream.sasl_username is None:
                yield (
                    "upstream.sasl.username",
                    f"is required with upstream.identity: {one.upstream_identity}: the tokens name"
                    " the proxy's user as their renewer",
                )
            if self.store.at_brokers:
                yield (
                    "store.url",
                    f"must be sqlite: with upstream.identity: {one.upstream_identity}, because the"
                    " proxy changes brokers' ACLs and quotas under its own name",
                )

    @check
    def _check_delivery(self) -> Problems:
        """Refuse a topic at brokers that are unknown, or to which the proxy cannot log in."""
        deliver, key = self.events.deliver, "events.deliver.kafka.bootstrap.servers"
        if deliver.to is None or deliver.kafka.bootstrap_servers:
            return
        if not self.upstream.bootstrap_servers:
            yield key, "is required without upstream.bootstrap.servers"
        if self.upstream.sasl and self.upstream.sasl_mechanism is None:
            yield key, "is required: upstream configures no login, upstream.sasl.mechanism"

    @check
    def _check_usage(self) -> Problems:
        """Refuse to record uses that nothing judges, or nowhere."""
        if self.events.usage and self.authorizer.mode is AuthorizerMode.OFF:
            yield "events.usage", "needs authorizer.mode: audit, or enforce"
        if self.events.usage and self.events.directory is None:
            yield "events.directory", "is required with usage"

    @check
    def _check_users_file(self) -> Problems:
        """Refuse a users file that no listener uses."""
        sasl = [one.relays_logins for one in self.listeners if one.sasl]
        if self.store.users_file is not None and sasl and all(sasl):
            yield (
                "store.users.file",
                "has no meaning with sasl.termination: broker: brokers have the users",
            )

    @check
    def _check_address_limits(self) -> Problems:
        key = "max.connections.per.ip"
        limits = self.max_connections_per_ip_overrides
        if not self.max_connections_per_ip and not limits:
            yield key, f"can be 0 only if {key}.overrides allows connections"
        if len(self.address_limits()) < len(limits):
            yield f"{key}.overrides", "names an address twice"

    def address_limits(self) -> dict[str, int]:
        """Return the overrides of `max.connections.per.ip`, by address in canonical form."""
        return {
            canonical_ip(one.address) or one.address: one.max_connections
            for one in self.max_connections_per_ip_overrides
        }

    @check
    def _check_names(self) -> Problems:
        names = [listener.name for listener in self.listeners]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"listeners[{index}].name", f"{name} is the name of another listener"

    @check
    def _check_addresses(self) -> Problems:
        taken: dict[int, list[tuple[Address, str]]] = {}
        for key, owner, address in self._addresses():
            for other, other_owner in taken.get(address.port, ()):
                if address.overlaps(other):
                    yield key, f"{address} is taken by {other_owner}"
            taken.setdefault(address.port, []).append((address, owner))

    def admin_socket(self) -> Path:
        """Return the socket on which `reauth-proxy sessions` reaches the proxy."""
        return self.admin.socket or socket_beside(self.store.path())

    def ports(self) -> frozenset[int]:
        """Return every port that the proxy listens on."""
        return frozenset(address.port for _, _, address in self._addresses())

    def _addresses(self) -> list[tuple[str, str, Address]]:
        """Return the key, the owner's name for errors, and the value of each address to listen
        on."""
        found = []
        for index, listener in enumerate(self.listeners):
            owner = f"listener {listener.name}"
            found.append((f"listeners[{index}].address", owner, listener.address))
            found += [
                (f"listeners[{index}].broker.ports", owner, Address(listener.address.host, port))
                for port in listener.broker_ports or ()
            ]
        if self.http.address:
            found.append(("http.address", "http", self.http.address))
        return found
