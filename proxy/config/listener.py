"""Settings of one listener."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import unquote, urlsplit

from proxy.config.client_identity import ClientIdentity
from proxy.config.section import KAFKA_BROKER, OWN, KeyProblemError, Section, setting
from proxy.config.security import ClientAuth, ListenerTls
from proxy.config.values import (
    AddressValue,
    BrokerPortsValue,
    Count,
    EndpointUrl,
    FrameBytes,
    HostName,
    KeepaliveIdle,
    MappingRules,
    Milliseconds,
    NetworkValue,
    PathValue,
    PositiveMilliseconds,
    Principal,
    PrincipalNamePrefix,
    PrincipalPrefix,
    Seconds,
    Text,
    available,
    one_or_list,
    shown,
)
from proxy.connection.enforcement import EnforcementPolicy, Override
from proxy.declarations import BeforeValidator, Field, model_validator
from sasl.states import Enforcement

MechanismName = Annotated[str, Field(pattern=r"^[A-Z0-9_-]{1,20}$")]
_PROXY_MECHANISMS: Final = ("OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Mechanisms that the proxy itself can verify."""
_MECHANISM_CHOICE: Final = "'OAUTHBEARER', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'"


class SaslTermination(StrEnum):
    """Side that authenticates clients."""

    PROXY = "proxy"
    """The proxy, with its own users and keys."""
    BROKER = "broker"
    """The broker: logins are relayed."""


class Routing(StrEnum):
    """Ways in which clients reach their brokers through a listener."""

    SIDECAR = "sidecar"
    """One broker; the addresses in its responses are left as they are."""
    GATEWAY = "gateway"
    """Every broker of the cluster has a port here; addresses are rewritten."""
    TRANSPARENT = "transparent"
    """Clients connect to brokers and are redirected here; their original destination is the
    broker."""


class ProxyProtocol(StrEnum):
    """Use of the PROXY protocol on a listener."""

    OFF = "off"
    """Clients connect directly, or their addresses are not known."""
    REQUIRED = "required"
    """Every connection begins with a header that names the client's address."""


class ReauthOverride(Section):
    """An exception for one principal, or for all principals with a prefix.

    The most specific exception that has a setting decides it: an exact principal beats a prefix, a
    longer prefix beats a shorter one, and the client's own principal beats its groups
    (`Group:analysts`). Among groups the strictest exception applies: `enforce`, and the shortest
    lifetime.
    """

    principal: Principal | None = setting(None, source=OWN, reloadable=True)
    """The principal that the exception is for, such as `User:alice` or `Group:analysts`. Either
    this or `principal.prefix`."""
    principal_prefix: PrincipalPrefix | None = setting(None, source=OWN, reloadable=True)
    """The prefix of the principals that the exception is for, such as `User:batch-`."""
    reauth_enforcement: Enforcement | None = setting(None, source=OWN, reloadable=True)
    """Like the listener's `reauth.enforcement`; null: inherited from the next broader rule."""
    connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True, unit="ms"
    )
    """Like the listener's, for every mechanism; null: inherited from the next broader rule."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.principal is None) == (self.principal_prefix is None):
            raise KeyProblemError("principal", "set either principal or principal.prefix")
        if self.reauth_enforcement is None and self.connections_max_reauth_ms is None:
            raise KeyProblemError(
                "reauth.enforcement",
                "set it or connections.max.reauth.ms: the override changes nothing",
            )
        return self

    def rule(self) -> Override:
        """Return the exception for `proxy.connection.enforcement`."""
        return Override(
            principal=self.principal or self.principal_prefix or "",
            prefixed=self.principal is None,
            enforcement=self.reauth_enforcement,
            max_reauth_ms=self.connections_max_reauth_ms,
        )


class SessionSettings(Section):
    """Lifetime of sessions, and what happens at their end (KIP-368)."""

    connections_max_reauth_ms: Milliseconds = setting(
        0, source=KAFKA_BROKER, reloadable=True, unit="ms"
    )
    """Longest session without re-authentication. 0: only a token's own expiry bounds it. A reload
    applies to later authentications."""
    oauthbearer_connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True, unit="ms"
    )
    """The same for OAUTHBEARER alone; null: as `connections.max.reauth.ms`."""
    scram_sha_256_connections_max_reauth_ms: Milliseconds | None = setting(
        None,
        source=KAFKA_BROKER,
        reloadable=True,
        unit="ms",
        alias="scram-sha-256.connections.max.reauth.ms",
    )
    """The same for SCRAM-SHA-256 alone; null: as `connections.max.reauth.ms`."""
    scram_sha_512_connections_max_reauth_ms: Milliseconds | None = setting(
        None,
        source=KAFKA_BROKER,
        reloadable=True,
        unit="ms",
        alias="scram-sha-512.connections.max.reauth.ms",
    )
    """The same for SCRAM-SHA-512 alone; null: as `connections.max.reauth.ms`."""
    reauth_enforcement: Enforcement = setting(Enforcement.ENFORCE, source=OWN, reloadable=True)
    """Treatment of expired sessions. `observe`: `connections.max.reauth.ms` is neither announced
    nor enforced. `probe`: the lifetime is announced; sessions that would be killed are counted and
    logged. `enforce`: a client of an expired session is disconnected when it sends anything but a
    SaslHandshake, as in Kafka. For the expiry of tokens see `reauth.enforce.token.expiry`."""
    reauth_enforce_token_expiry: bool = setting(True, source=OWN, reloadable=True)
    """true: `observe` and `probe` also announce the expiry of an OAUTHBEARER token, and disconnect
    a client that uses its session after it, as Kafka does even without `connections.max.reauth.ms`
    (KAFKA-13848). false: `observe` ignores a token's expiry, and `probe` announces and counts it.
    With `sasl.termination: broker` it also applies to tokens that the proxy verifies, and `observe`
    announces the same lifetime as the broker."""
    reauth_overrides: tuple[ReauthOverride, ...] = setting((), source=OWN, reloadable=True)
    """Exceptions for principals and groups; see below."""

    @model_validator(mode="after")
    def _check_overrides(self) -> Self:
        seen = set()
        for index, override in enumerate(self.reauth_overrides):
            meant = (override.principal, override.principal_prefix)
            if meant in seen:
                raise KeyProblemError(
                    f"reauth.overrides[{index}]",
                    f"{shown(meant[0] or meant[1])} already has an override",
                )
            seen.add(meant)
        return self

    def enforcement_policy(self) -> EnforcementPolicy:
        """Return the rules for authentications on this listener."""
        by_mechanism = {
            "OAUTHBEARER": self.oauthbearer_connections_max_reauth_ms,
            "SCRAM-SHA-256": self.scram_sha_256_connections_max_reauth_ms,
            "SCRAM-SHA-512": self.scram_sha_512_connections_max_reauth_ms,
        }
        return EnforcementPolicy(
            enforcement=self.reauth_enforcement,
            max_reauth_ms=self.connections_max_reauth_ms,
            mechanism_max_reauth_ms={k: ms for k, ms in by_mechanism.items() if ms is not None},
            overrides=(override.rule() for override in self.reauth_overrides),
            enforces_token_expiry=self.reauth_enforce_token_expiry,
        )


class IssuerSettings(Section):
    """Conditions for one issuer's tokens, and their mapping to principals and groups."""

    sasl_oauthbearer_jwks_endpoint_url: EndpointUrl | None = setting(None, source=KAFKA_BROKER)
    """The signing keys: a `file:`, `http:` or `https:` URL of a JWKS (RFC 7517). Required for
    OAUTHBEARER. A relative `file:` is relative to this file."""
    sasl_oauthbearer_jwks_endpoint_authorization_file: PathValue | None = setting(None, source=OWN)
    """File with the bearer token for requests for the signing keys, such as the pod's token for the
    API server of Kubernetes. It is read for each request. Only with an `https:` URL."""
    sasl_oauthbearer_expected_audience: Annotated[
        tuple[Text, ...], BeforeValidator(one_or_list)
    ] = setting((), source=KAFKA_BROKER, reloadable=True, repeated_or_one=True)
    """A token must name one of these in `aud`: a token for another service is rejected (RFC 7519
    section 4.1.3). Required for OAUTHBEARER, unless the next setting is true."""
    sasl_oauthbearer_allow_unverified_audience: bool = setting(
        False, source=KAFKA_BROKER, reloadable=True
    )
    """true: without an expected audience, tokens for any service are accepted."""
    sasl_oauthbearer_expected_issuer: Text | None = setting(
        None, source=KAFKA_BROKER, reloadable=True
    )
    """A token's `iss` must be equal to this. Required for OAUTHBEARER, unless the next setting is
    true."""
    sasl_oauthbearer_scope_claim_name: Text = setting("scope", source=KAFKA_BROKER, reloadable=True)
    """The claim that holds the token's scope."""
    sasl_oauthbearer_sub_claim_name: Text = setting("sub", source=KAFKA_BROKER, reloadable=True)
    """The claim that holds the principal's name: its name, or, if there is no claim of that name, a
    path of names separated by dots, such as `realm_access.account`."""
    sasl_oauthbearer_principal_mapping_rules: MappingRules | None = setting(
        None, source=OWN, reloadable=True
    )
    """Rules that turn that claim into the principal's name, in the grammar of
    `ssl.principal.mapping.rules`: `RULE:^(.*)-session-[0-9]+$/$1/` makes one principal of the names
    of many sessions. A token is rejected if no rule matches its claim, or if the claim is longer
    than 512 characters. null: the claim is the name."""
    sasl_oauthbearer_groups_claim_name: Text | None = setting(None, source=OWN, reloadable=True)
    """The claim that holds the client's groups, a text or a list of texts: its name, or a path of
    names separated by dots, such as `realm_access.roles`. Each group is a principal `Group:NAME`. A
    token is rejected if its groups are malformed, too many (docs/acls.md), or incomplete. null:
    tokens have no groups."""

    def jwks_file(self) -> Path | None:
        """Return the file of the keys; None if they come from a web server."""
        parts = urlsplit(self.sasl_oauthbearer_jwks_endpoint_url or "")
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    def jwks_source(self) -> Path | str | None:
        """Return the source of the keys, a file or a URL; None if no tokens are accepted."""
        return self.jwks_file() or self.sasl_oauthbearer_jwks_endpoint_url


class OauthbearerIssuer(IssuerSettings):
    """One of several issuers (`sasl.oauthbearer.issuers`), for the tokens with its `iss`.

    Keys, audience and rules of other issuers do not apply to them, and an outage of another
    identity provider does not affect them.
    """

    sasl_oauthbearer_principal_prefix: PrincipalNamePrefix | None = setting(
        None, source=OWN, reloadable=True
    )
    """Prefix of the names of the issuer's principals and groups, such as `partner:`, which makes
    its `alice` `User:partner:alice`. Required with several issuers; one of them may have `""`, no
    prefix, and then its names must not begin with another issuer's prefix. Issuers with
    `sasl.oauthbearer.principal.mapping.rules` may share a prefix: equal names are then the same
    principal, and equal groups the same group."""


class OauthbearerSettings(IssuerSettings):
    """Tokens that are accepted (RFC 7628, KIP-768)."""

    sasl_oauthbearer_jwks_endpoint_refresh_ms: PositiveMilliseconds = setting(
        3_600_000, source=KAFKA_BROKER, unit="ms"
    )
    """Interval at which the keys are read again."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: PositiveMilliseconds = setting(
        100, source=KAFKA_BROKER, unit="ms"
    )
    """First wait after the keys could not be read; it doubles with each further failure."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: PositiveMilliseconds = setting(
        10_000, source=KAFKA_BROKER, unit="ms"
    )
    """Longest wait between two attempts to read the keys."""
    sasl_oauthbearer_jwks_max_stale_ms: PositiveMilliseconds = setting(
        86_400_000, source=OWN, unit="ms"
    )
    """Longest use of the keys after they were last read, so that logins survive an outage of the
    identity provider. Every token is rejected after that. Kafka keeps the keys forever."""
    sasl_oauthbearer_allow_unverified_issuer: bool = setting(
        False, source=KAFKA_BROKER, reloadable=True
    )
    """true: without an expected issuer, every token signed with one of the keys is accepted,
    whatever its issuer."""
    sasl_oauthbearer_clock_skew_seconds: Seconds = setting(
        30, source=KAFKA_BROKER, reloadable=True, unit="s"
    )
    """Largest difference between the clocks of the identity provider and of this machine."""
    sasl_oauthbearer_issuers: tuple[OauthbearerIssuer, ...] = setting(
        (), source=OWN, reloadable=True
    )
    """Several issuers, each with its own keys, audience, claims and rules; see below. Settings of
    an issuer are then set there and not here; intervals and clock skew apply to all issuers. Adding
    an issuer needs a restart."""

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        first = self.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms
        if first > self.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms:
            raise KeyProblemError(
                "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
                f"must be at least the first wait, {first}",
            )
        refresh = self.sasl_oauthbearer_jwks_endpoint_refresh_ms
        if refresh > self.sasl_oauthbearer_jwks_max_stale_ms:
            raise KeyProblemError(
                "sasl.oauthbearer.jwks.max.stale.ms",
                f"must be at least sasl.oauthbearer.jwks.endpoint.refresh.ms, {refresh}",
            )
        return self

    def issuers_by_name(self) -> Mapping[str, IssuerSettings]:
        """Return the settings of each issuer whose tokens are accepted, by its `iss`. Without
        `sasl.oauthbearer.issuers` there is one issuer, and its name is empty."""
        several = self.sasl_oauthbearer_issuers
        if not several:
            return {"": self}
        return {one.sasl_oauthbearer_expected_issuer or "": one for one in several}

    def _check_issuers(self) -> None:
        """Refuse issuers whose tokens or names could be confused."""
        issuers = self.sasl_oauthbearer_issuers
        for name in sorted(self.model_fields_set & IssuerSettings.model_fields.keys()):
            raise KeyProblemError(
                str(type(self).model_fields[name].alias),
                "has no meaning with sasl.oauthbearer.issuers: set it for each issuer",
            )
        if self.sasl_oauthbearer_allow_unverified_issuer:
            raise KeyProblemError(
                "sasl.oauthbearer.allow.unverified.issuer",
                "has no meaning with sasl.oauthbearer.issuers: `iss` selects the issuer",
            )
        seen = set()
        for index, issuer in enumerate(issuers):
            place = f"sasl.oauthbearer.issuers[{index}]."
            _check_issuer(issuer, place)
            meant = issuer.sasl_oauthbearer_expected_issuer
            if meant in seen:
                key = f"{place}sasl.oauthbearer.expected.issuer"
                raise KeyProblemError(key, f"{shown(meant)} is a duplicate")
            seen.add(meant)
            if len(issuers) > 1:
                _check_prefix(issuer, issuers[:index], place)


def _check_issuer(issuer: IssuerSettings, place: str, *, any_issuer: bool = False) -> None:
    """Refuse settings that would accept tokens for other services (as Kafka 4.4 does)."""
    if issuer.sasl_oauthbearer_jwks_endpoint_url is None:
        raise KeyProblemError(
            f"{place}sasl.oauthbearer.jwks.endpoint.url", "is required for OAUTHBEARER"
        )
    url = issuer.sasl_oauthbearer_jwks_endpoint_url
    if issuer.sasl_oauthbearer_jwks_endpoint_authorization_file and urlsplit(url).scheme != "https":
        raise KeyProblemError(
            f"{place}sasl.oauthbearer.jwks.endpoint.authorization.file",
            "needs an https: URL in sasl.oauthbearer.jwks.endpoint.url, or the token is sent in the"
            " clear",
        )
    if not (
        issuer.sasl_oauthbearer_expected_audience
        or issuer.sasl_oauthbearer_allow_unverified_audience
    ):
        raise KeyProblemError(
            f"{place}sasl.oauthbearer.expected.audience",
            "is required for OAUTHBEARER: set it to the `aud` of this listener's tokens;"
            " sasl.oauthbearer.allow.unverified.audience: true accepts any",
        )
    if issuer.sasl_oauthbearer_expected_issuer is None and not any_issuer:
        or_any = "" if place else "; sasl.oauthbearer.allow.unverified.issuer: true accepts any"
        raise KeyProblemError(
            f"{place}sasl.oauthbearer.expected.issuer",
            f"is required for OAUTHBEARER: set it to the `iss` of the tokens{or_any}",
        )


def _check_prefix(
    issuer: OauthbearerIssuer, others: tuple[OauthbearerIssuer, ...], place: str
) -> None:
    """Refuse a prefix that makes names of two issuers equal."""
    key = f"{place}sasl.oauthbearer.principal.prefix"
    prefix = issuer.sasl_oauthbearer_principal_prefix
    if prefix is None:
        raise KeyProblemError(
            key,
            "is required with several issuers, or equal names of two issuers would be the same"
            ' principal; "" adds no prefix',
        )
    for other in others:
        its = other.sasl_oauthbearer_principal_prefix or ""
        if prefix == its:
            both = (one.sasl_oauthbearer_principal_mapping_rules for one in (issuer, other))
            if None in both:
                raise KeyProblemError(
                    key,
                    f"{shown(prefix)} is another issuer's: only issuers with"
                    " sasl.oauthbearer.principal.mapping.rules may share a prefix",
                )
        elif prefix and its and (prefix.startswith(its) or its.startswith(prefix)):
            raise KeyProblemError(
                key, f"{shown(prefix)} overlaps with another issuer's, {shown(its)}"
            )


class LimitSettings(Section):
    """Limits on the cost of unauthenticated and faulty clients."""

    sasl_server_max_receive_size: FrameBytes = setting(
        524_288, source=KAFKA_BROKER, reloadable=True, unit="bytes"
    )
    """Largest request of a client that is not authenticated."""
    socket_request_max_bytes: FrameBytes = setting(
        104_857_600, source=KAFKA_BROKER, reloadable=True, unit="bytes"
    )
    """Largest request."""
    connections_max_idle_ms: PositiveMilliseconds = setting(
        600_000, source=KAFKA_BROKER, reloadable=True, unit="ms"
    )
    """A connection that is silent for this long is closed, even if its session is valid."""
    socket_keepalive_idle_ms: KeepaliveIdle = setting(120_000, source=OWN, unit="ms")
    """Time without traffic after which TCP keepalive probes a client's connection, in whole
    seconds. The connection ends after three unanswered probes, at most 10 s apart."""
    sasl_authentication_timeout_ms: PositiveMilliseconds = setting(
        30_000, source=OWN, reloadable=True, unit="ms"
    )
    """Longest time that a connection may take to authenticate; with `SSL`, to finish its TLS
    handshake. Kafka applies only the idle time, which a client can stretch by sending a byte now
    and then."""
    connection_failed_authentication_delay_ms: Milliseconds = setting(
        100, source=KAFKA_BROKER, reloadable=True, unit="ms"
    )
    """Delay of the response to a failed authentication, against guessing."""
    max_connections: Count = setting(10_000, source=KAFKA_BROKER)
    """Largest number of open connections of all workers together. At the limit, a new connection
    replaces the one that has been unauthenticated for longest; if all are authenticated, it is
    refused. Kafka has no limit by default; here it is finite because a connection takes a file
    descriptor, two once authenticated."""

    @model_validator(mode="after")
    def _check_delay(self) -> Self:
        idle = self.connections_max_idle_ms
        if self.connection_failed_authentication_delay_ms >= idle:
            raise KeyProblemError(
                "connection.failed.authentication.delay.ms",
                f"must be less than connections.max.idle.ms, {idle}",
            )
        return self


class Listener(SessionSettings, OauthbearerSettings, LimitSettings, ClientIdentity, ListenerTls):
    """One address that clients connect to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = setting(source=OWN)
    """The name consists of letters, digits, `_` and `-`; it is the `listener` label of metrics and
    events."""
    address: AddressValue = setting(source=OWN)
    """Address to listen on: `HOST:PORT`. In `gateway` it is the bootstrap address of clients."""
    routing: Annotated[Routing, BeforeValidator(available(*Routing))] = setting(source=OWN)
    """`sidecar`: one broker, addresses are not rewritten. `gateway`: every broker has a port here,
    and the addresses in responses are rewritten. `transparent`: connections are redirected here,
    and forwarded to their original destination if `upstream.allowed` contains it."""
    advertised_host: HostName | None = setting(None, source=OWN)
    """`gateway` only, and required there: the host in the broker addresses that clients get."""
    broker_ports: BrokerPortsValue | None = setting(None, source=OWN)
    """`gateway` only, and required there: the broker with id N is at the first port + N of a range
    such as `9100-9199`; or a map of broker ids to ports, such as `{1001: 9101, 1002: 9102}`. The
    proxy reserves all of these ports when it starts; each takes a file descriptor in the parent and
    in each worker."""
    proxy_protocol: ProxyProtocol = setting(ProxyProtocol.OFF, source=OWN)
    """`required`: every connection begins with a PROXY protocol header, version 1 or 2, complete
    within 5 s. ACLs, limits, quotas, events and logs then use the client's address from it. A
    balancer's own connection (LOCAL) has the balancer's address."""
    proxy_protocol_trusted: Annotated[tuple[NetworkValue, ...], BeforeValidator(one_or_list)] = (
        setting((), source=OWN, repeated_or_one=True)
    )
    """Networks of the load balancers, such as `10.1.2.0/24`; required with `proxy.protocol:
    required`. Connections from other addresses are closed."""
    sasl_termination: SaslTermination = setting(SaslTermination.PROXY, source=OWN)
    """The side that authenticates clients. `proxy`: the proxy, with its own users and keys; brokers
    see the identity of `upstream.identity`. `broker`: the broker; logins are relayed frame by
    frame, brokers see the client's identity, and the proxy needs no users, keys or login. With
    `sasl.oauthbearer.jwks.endpoint.url` or `sasl.oauthbearer.issuers` the proxy also verifies
    tokens, and only accepted ones reach a broker; groups of tokens need this."""
    sasl_enabled_mechanisms: tuple[MechanismName, ...] = setting((), source=KAFKA_BROKER)
    """Mechanisms that clients may authenticate with, in the order in which they are announced.
    `sasl.termination: proxy`: OAUTHBEARER, SCRAM-SHA-256, SCRAM-SHA-512; required. `broker`: any;
    empty: those that the broker offers."""
    sasl_scram_principal_mapping_rules: MappingRules | None = setting(
        None, source=OWN, reloadable=True
    )
    """`sasl.termination: proxy` only: rules that turn a SCRAM user's name into the principal's
    name, in the grammar of `ssl.principal.mapping.rules`. A user that no rule matches cannot log
    in. null: the user's name is the principal's name."""
    groups_file: PathValue | None = setting(None, source=OWN)
    """The groups of SCRAM users and of certificates, a JSON file such as a Secret:
    `{"groups": {"analysts": ["User:alice"]}}`. It is read again when it changes, and also applies
    to open connections; an invalid file is logged and changes nothing. Tokens name their own
    groups. null: no groups."""
    sasl_broker_max_logins: Count = setting(1_000, source=OWN)
    """`sasl.termination: broker` only: largest number of unauthenticated connections to one broker,
    of all workers together. Further logins wait. While one waits, a client that has been silent in
    its login for a second is disconnected: the longest-silent client of the address (IPv6: /64)
    with most of these connections."""
    sasl_broker_max_side_connections: Count = setting(100, source=OWN)
    """`sasl.termination: broker` only: largest number of connections to one broker for
    re-authentications that the broker would refuse on the client's own connection, of all workers
    together. Further re-authentications wait, and a silent client is disconnected as with
    `sasl.broker.max.logins`: one of the principal with most of these connections."""
    sasl_broker_opaque_principal_mapping_rules: MappingRules | None = setting(None, source=OWN)
    """`sasl.termination: broker` only: rules that turn a client whose login does not reveal its
    name into a user, in the grammar of `ssl.principal.mapping.rules`. Their input is
    `MECHANISM@ADDRESS`, such as `GSSAPI@192.0.2.1`, or `MECHANISM@tokenauth=ID` for a delegation
    token. null, or no match: the principal is `Opaque:MECHANISM@ADDRESS`; ACLs, quotas and super
    users can name it."""

    @property
    def relays_logins(self) -> bool:
        """True if brokers authenticate the clients."""
        return self.sasl and self.sasl_termination is SaslTermination.BROKER

    def mechanisms_of_proxy(self) -> tuple[str, ...]:
        """Return the mechanisms that the proxy verifies, alone or in addition to the broker."""
        if not self.relays_logins:
            return self.sasl_enabled_mechanisms
        return ("OAUTHBEARER",) if self._has_keys else ()

    def token_issuers(self) -> Mapping[str, IssuerSettings]:
        """Return the issuers whose tokens the proxy verifies, by name; empty if it verifies no
        tokens."""
        return self.issuers_by_name() if "OAUTHBEARER" in self.mechanisms_of_proxy() else {}

    @property
    def _has_keys(self) -> bool:
        """True if signing keys of tokens are configured."""
        return bool(self.sasl_oauthbearer_jwks_endpoint_url or self.sasl_oauthbearer_issuers)

    def jwks_sources(self) -> Iterator[tuple[str, Path | str]]:
        """Yield the key and the value of each source of signing keys: a file or a URL."""
        for place, issuer in self._issuers_by_place():
            if (source := issuer.jwks_source()) is not None:
                yield f"{place}sasl.oauthbearer.jwks.endpoint.url", source

    def jwks_authorizations(self) -> Iterator[tuple[str, Path]]:
        """Yield the key and the path of each file with a bearer token for requests for keys."""
        for place, issuer in self._issuers_by_place():
            if (path := issuer.sasl_oauthbearer_jwks_endpoint_authorization_file) is not None:
                yield f"{place}sasl.oauthbearer.jwks.endpoint.authorization.file", path

    def _issuers_by_place(self) -> Iterator[tuple[str, IssuerSettings]]:
        for index, issuer in enumerate(self.token_issuers().values()):
            yield f"sasl.oauthbearer.issuers[{index}]." if issuer is not self else "", issuer

    @model_validator(mode="after")
    def _check_sasl(self) -> Self:
        if self.sasl:
            self._check_mechanisms()
            return self
        for name in type(self).model_fields:
            given = name in self.model_fields_set and getattr(self, name) is not None
            if given and self._is_of_sasl(name):
                raise KeyProblemError(
                    str(type(self).model_fields[name].alias),
                    f"has no meaning with security.protocol: {self.security_protocol}",
                )
        return self

    def _is_of_sasl(self, name: str) -> bool:
        """Return whether a setting has no effect without SASL."""
        if name == "sasl_authentication_timeout_ms":
            return not self.tls  # it bounds the handshake, too
        return (
            name.startswith("sasl_")
            or name in SessionSettings.model_fields
            or name == "connection_failed_authentication_delay_ms"
        )

    def _check_mechanisms(self) -> None:
        mechanisms = self.sasl_enabled_mechanisms
        if len(set(mechanisms)) < len(mechanisms):
            raise KeyProblemError("sasl.enabled.mechanisms", "names a mechanism twice")
        if self.relays_logins:
            self._check_relay()
            return
        for index, name in enumerate(mechanisms):
            if name not in _PROXY_MECHANISMS:
                problem = f"must be {_MECHANISM_CHOICE}, got {shown(name)}"
                raise KeyProblemError(f"sasl.enabled.mechanisms[{index}]", problem)
        for name in self.model_fields_set:
            if name.startswith("sasl_broker_"):
                raise KeyProblemError(
                    str(type(self).model_fields[name].alias),
                    "has no meaning with sasl.termination: proxy",
                )
        if not mechanisms:
            given = "sasl_enabled_mechanisms" in self.model_fields_set
            problem = "must not be empty" if given else "is required"
            raise KeyProblemError("sasl.enabled.mechanisms", problem)
        self._check_tokens()

    def _check_tokens(self) -> None:
        if self.sasl_oauthbearer_issuers:
            self._check_issuers()
        elif "OAUTHBEARER" in self.mechanisms_of_proxy():
            _check_issuer(self, "", any_issuer=self.sasl_oauthbearer_allow_unverified_issuer)

    def _check_relay(self) -> None:
        """Refuse settings of the proxy's own SASL, which have no effect, except those of tokens if
        the proxy has keys to verify them."""
        own = {"sasl_scram_principal_mapping_rules", "groups_file"}
        problem = "has no meaning with sasl.termination: broker, which verifies logins itself"
        if not self._has_keys:
            own |= OauthbearerSettings.model_fields.keys() - {"sasl_oauthbearer_sub_claim_name"}
            problem = f"{problem}, without sasl.oauthbearer.jwks.endpoint.url"
        for name in sorted(self.model_fields_set & own):
            raise KeyProblemError(str(type(self).model_fields[name].alias), problem)
        mechanisms = self.sasl_enabled_mechanisms
        if self._has_keys and mechanisms and "OAUTHBEARER" not in mechanisms:
            raise KeyProblemError(
                "sasl.enabled.mechanisms",
                "must include OAUTHBEARER, because signing keys are configured",
            )
        self._check_tokens()

    @model_validator(mode="after")
    def _check_routing(self) -> Self:
        gateway_only = {
            "advertised.host": self.advertised_host,
            "broker.ports": self.broker_ports,
        }
        for key, value in gateway_only.items():
            if self.routing is Routing.GATEWAY and value is None:
                raise KeyProblemError(key, "is required with routing: gateway")
            if self.routing is not Routing.GATEWAY and value is not None:
                raise KeyProblemError(key, f"has no meaning with routing: {self.routing}")
        if self.broker_ports is not None and self.address.port in self.broker_ports:
            raise KeyProblemError(
                "broker.ports", f"must not contain the port of the address, {self.address.port}"
            )
        return self

    @model_validator(mode="after")
    def _check_proxy_protocol(self) -> Self:
        if self.proxy_protocol is ProxyProtocol.OFF:
            if self.proxy_protocol_trusted:
                raise KeyProblemError(
                    "proxy.protocol.trusted", "has no meaning with proxy.protocol: off"
                )
        elif self.routing is Routing.TRANSPARENT:
            raise KeyProblemError("proxy.protocol", "must be off with routing: transparent")
        elif not self.proxy_protocol_trusted:
            raise KeyProblemError(
                "proxy.protocol.trusted",
                "is required with proxy.protocol: required; set it to the load balancers' networks",
            )
        return self

    @model_validator(mode="after")
    def _check_clients_identity(self) -> Self:
        """Refuse to give an identity at brokers to clients that the proxy does not authenticate."""
        if not self.presents_clients:
            return self
        problem = None
        if self.relays_logins:
            problem = "sasl.termination: broker, where brokers see the client anyway"
        elif not self.sasl and not self.tls:
            problem = f"security.protocol: {self.security_protocol}: its clients have no identity"
        elif not self.sasl and self.ssl_client_auth is not ClientAuth.REQUIRED:
            problem = f"ssl.client.auth: {self.ssl_client_auth}: set required"
        if problem is not None:
            raise KeyProblemError(
                "upstream.identity", f"cannot be {self.upstream_identity} with {problem}"
            )
        return self

    def enforcement_in_effect(self) -> Enforcement:
        """Return the enforcement for principals without an override; `observe` without SASL."""
        return self.reauth_enforcement if self.sasl else Enforcement.OBSERVE
