"""Settings of one listener."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final
from urllib.parse import urlsplit

from proxy.config.section import KAFKA_BROKER, Problems, Section, check, setting
from proxy.config.security import ClientAuth, ClientIdentity, Keystore, ListenerTls
from proxy.config.values import (
    AddressValue,
    BrokerHostsValue,
    BrokerPortsValue,
    Count,
    EndpointUrl,
    FrameBytes,
    HostName,
    KeepaliveIdle,
    LdapUrl,
    LdapUserDn,
    MappingRules,
    Milliseconds,
    NetworkValue,
    OneOrMore,
    PathValue,
    PositiveMilliseconds,
    Principal,
    PrincipalNamePrefix,
    PrincipalPrefix,
    Seconds,
    SecretSource,
    Text,
    shown,
    source_of,
)
from proxy.connection.enforcement import EnforcementPolicy, Override
from proxy.declarations import Field
from proxy.rollout import Promotions
from sasl.states import Enforcement

MechanismName = Annotated[str, Field(pattern=r"^[A-Z0-9_-]{1,20}$")]
_PROXY_MECHANISMS: Final = ("OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
"""Mechanisms that the proxy itself can verify."""
_NO_SERVER_NAME: Final = re.compile(r"[0-9.]+|.*(:.*|\.)")
"""Hosts that clients do not send as a server name: IP addresses, and names that end in a dot
(RFC 6066 section 3)."""
_MECHANISM_CHOICE: Final = "'OAUTHBEARER', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'PLAIN'"


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

    principal: Principal | None = setting(None, reloadable=True)
    """The principal that the exception is for, such as `User:alice` or `Group:analysts`. Either
    this or `principal.prefix`."""
    principal_prefix: PrincipalPrefix | None = setting(None, reloadable=True)
    """The prefix of the principals that the exception is for, such as `User:batch-`."""
    reauth_enforcement: Enforcement | None = setting(None, reloadable=True)
    """Like the listener's `reauth.enforcement`; null: inherited from the next broader rule."""
    connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True
    )
    """Like the listener's, for every mechanism; null: inherited from the next broader rule."""

    @check
    def _check(self) -> Problems:
        if (self.principal is None) == (self.principal_prefix is None):
            yield "principal", "set either principal or principal.prefix"
        if self.reauth_enforcement is None and self.connections_max_reauth_ms is None:
            yield (
                "reauth.enforcement",
                "set it or connections.max.reauth.ms: the override changes nothing",
            )

    def rule(self) -> Override:
        """Return the exception for `proxy.connection.enforcement`."""
        return Override(
            principal=self.principal or self.principal_prefix or "",
            prefixed=self.principal is None,
            enforcement=self.reauth_enforcement,
            max_reauth_ms=self.connections_max_reauth_ms,
        )


class RevokeSessions(StrEnum):
    """End of sessions whose credential is revoked."""

    AT_REAUTHENTICATION = "at-reauthentication"
    """At their next re-authentication, which fails."""
    AT_ONCE = "at-once"
    """As soon as the proxy has read the change."""


class SessionSettings(Section):
    """Lifetime of sessions, and what happens at their end (KIP-368)."""

    connections_max_reauth_ms: Milliseconds = setting(0, source=KAFKA_BROKER, reloadable=True)
    """Longest session without re-authentication. 0: only a token's own expiry bounds it. A reload
    applies to later authentications."""
    oauthbearer_connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True
    )
    """The same for OAUTHBEARER alone; null: as `connections.max.reauth.ms`."""
    scram_sha_256_connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True, alias="scram-sha-256.connections.max.reauth.ms"
    )
    """The same for SCRAM-SHA-256 alone; null: as `connections.max.reauth.ms`."""
    scram_sha_512_connections_max_reauth_ms: Milliseconds | None = setting(
        None, source=KAFKA_BROKER, reloadable=True, alias="scram-sha-512.connections.max.reauth.ms"
    )
    """The same for SCRAM-SHA-512 alone; null: as `connections.max.reauth.ms`."""
    reauth_enforcement: Enforcement = setting(Enforcement.ENFORCE, reloadable=True)
    """Treatment of expired sessions. `observe`: `connections.max.reauth.ms` is neither announced
    nor enforced. `probe`: the lifetime is announced; sessions that would be killed are counted and
    logged. `enforce`: a client of an expired session is disconnected when it sends anything but a
    SaslHandshake, as in Kafka. `auto`: `enforce` for principals whose clients have proved that they
    re-authenticate (`auto`), `probe` for others. For the expiry of tokens see
    `reauth.enforce.token.expiry`."""
    reauth_enforce_token_expiry: bool = setting(True, reloadable=True)
    """true: `observe` and `probe` also announce the expiry of an OAUTHBEARER token, and disconnect
    a client that uses its session after it, as Kafka does even without `connections.max.reauth.ms`
    (KAFKA-13848). false: `observe` ignores a token's expiry, and `probe` announces and counts it.
    With `sasl.termination: broker` it also applies to tokens that the proxy verifies, and `observe`
    announces the same lifetime as the broker."""
    revoke_sessions: RevokeSessions = setting(RevokeSessions.AT_REAUTHENTICATION, reloadable=True)
    """Sessions whose credential is revoked: a SCRAM user that is removed or has another password, a
    token whose key is no longer in the JWKS. `at-reauthentication`: they end when they
    re-authenticate, as in Kafka. `at-once`: they are closed within a few seconds, and with
    `upstream.identity: delegation-token` the client's tokens are expired."""
    reauth_overrides: tuple[ReauthOverride, ...] = setting((), reloadable=True)
    """Exceptions for principals and groups; see below."""

    @check
    def _check_overrides(self) -> Problems:
        seen = set()
        for index, override in enumerate(self.reauth_overrides):
            meant = (override.principal, override.principal_prefix)
            if meant in seen:
                yield (
                    f"reauth.overrides[{index}]",
                    f"{shown(meant[0] or meant[1])} already has an override",
                )
            seen.add(meant)

    @property
    def has_auto(self) -> bool:
        """True if `auto` applies to the listener or to one of its overrides."""
        modes = (self.reauth_enforcement, *(o.reauth_enforcement for o in self.reauth_overrides))
        return Enforcement.AUTO in modes

    def enforcement_policy(
        self, promotions: Promotions = MappingProxyType({}), first_lifetime_ms: int | None = None
    ) -> EnforcementPolicy:
        """Return the rules for authentications on this listener; see `EnforcementPolicy`."""
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
            promotions=promotions,
            first_lifetime_ms=first_lifetime_ms,
        )


class IssuerSettings(Section):
    """Conditions for one issuer's tokens, and their mapping to principals and groups."""

    sasl_oauthbearer_jwks_endpoint_url: EndpointUrl | None = setting(None, source=KAFKA_BROKER)
    """The signing keys: a `file:`, `http:` or `https:` URL of a JWKS (RFC 7517). Required for
    OAUTHBEARER. A relative `file:` is relative to this file."""
    sasl_oauthbearer_jwks_endpoint_authorization_file: PathValue | None = setting(None)
    """File with the bearer token for requests for the signing keys, such as the pod's token for the
    API server of Kubernetes. It is read for each request. Only with an `https:` URL."""
    sasl_oauthbearer_expected_audience: OneOrMore[Text] = setting(
        (), source=KAFKA_BROKER, reloadable=True
    )
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
    sasl_oauthbearer_principal_mapping_rules: MappingRules | None = setting(None, reloadable=True)
    """Rules that turn that claim into the principal's name, in the grammar of
    `ssl.principal.mapping.rules`: `RULE:^(.*)-session-[0-9]+$/$1/` makes one principal of the names
    of many sessions. A token is rejected if no rule matches its claim, or if the claim is longer
    than 512 characters. null: the claim is the name."""
    sasl_oauthbearer_groups_claim_name: Text | None = setting(None, reloadable=True)
    """The claim that holds the client's groups, a text or a list of texts: its name, or a path of
    names separated by dots, such as `realm_access.roles`. Each group is a principal `Group:NAME`. A
    token is rejected if its groups are malformed, too many (docs/acls.md), or incomplete. null:
    tokens have no groups."""

    def jwks_source(self) -> Path | str | None:
        """Return the source of the keys, a file or a URL; None if no tokens are accepted."""
        return source_of(self.sasl_oauthbearer_jwks_endpoint_url)


class OauthbearerIssuer(IssuerSettings):
    """One of several issuers (`sasl.oauthbearer.issuers`), for the tokens with its `iss`.

    Keys, audience and rules of other issuers do not apply to them, and an outage of another
    identity provider does not affect them.
    """

    sasl_oauthbearer_principal_prefix: PrincipalNamePrefix | None = setting(None, reloadable=True)
    """Prefix of the names of the issuer's principals and groups, such as `partner:`, which makes
    its `alice` `User:partner:alice`. Required with several issuers; one of them may have `""`, no
    prefix, and then its names must not begin with another issuer's prefix. Issuers with
    `sasl.oauthbearer.principal.mapping.rules` may share a prefix: equal names are then the same
    principal, and equal groups the same group."""


class OauthbearerSettings(IssuerSettings):
    """Tokens that are accepted (RFC 7628, KIP-768)."""

    sasl_oauthbearer_jwks_endpoint_refresh_ms: PositiveMilliseconds = setting(
        3_600_000, source=KAFKA_BROKER
    )
    """Interval at which the keys are read again."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: PositiveMilliseconds = setting(
        100, source=KAFKA_BROKER
    )
    """First wait after the keys could not be read; it doubles with each further failure."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: PositiveMilliseconds = setting(
        10_000, source=KAFKA_BROKER
    )
    """Longest wait between two attempts to read the keys."""
    sasl_oauthbearer_jwks_max_stale_ms: PositiveMilliseconds = setting(86_400_000)
    """Longest use of the keys after they were last read, so that logins survive an outage of the
    identity provider. Every token is rejected after that. Kafka keeps the keys forever."""
    sasl_oauthbearer_allow_unverified_issuer: bool = setting(
        False, source=KAFKA_BROKER, reloadable=True
    )
    """true: without an expected issuer, every token signed with one of the keys is accepted,
    whatever its issuer."""
    sasl_oauthbearer_clock_skew_seconds: Seconds = setting(30, source=KAFKA_BROKER, reloadable=True)
    """Largest difference between the clocks of the identity provider and of this machine."""
    sasl_oauthbearer_issuers: tuple[OauthbearerIssuer, ...] = setting((), reloadable=True)
    """Several issuers, each with its own keys, audience, claims and rules; see below. Settings of
    an issuer are then set there and not here; intervals and clock skew apply to all issuers. Adding
    an issuer needs a restart."""

    @check
    def _check_times(self) -> Problems:
        first = self.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms
        if first > self.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms:
            yield (
                "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
                f"must be at least the first wait, {first}",
            )
        refresh = self.sasl_oauthbearer_jwks_endpoint_refresh_ms
        if refresh > self.sasl_oauthbearer_jwks_max_stale_ms:
            yield (
                "sasl.oauthbearer.jwks.max.stale.ms",
                f"must be at least sasl.oauthbearer.jwks.endpoint.refresh.ms, {refresh}",
            )

    def issuers_by_name(self) -> Mapping[str, IssuerSettings]:
        """Return the settings of each issuer whose tokens are accepted, by its `iss`. Without
        `sasl.oauthbearer.issuers` there is one issuer, and its name is empty."""
        several = self.sasl_oauthbearer_issuers
        if not several:
            return {"": self}
        return {one.sasl_oauthbearer_expected_issuer or "": one for one in several}

    def _check_issuers(self) -> Problems:
        """Refuse issuers whose tokens or names could be confused."""
        issuers = self.sasl_oauthbearer_issuers
        yield from self.given(
            IssuerSettings.model_fields,
            "has no meaning with sasl.oauthbearer.issuers: set it for each issuer",
        )
        if self.sasl_oauthbearer_allow_unverified_issuer:
            yield (
                "sasl.oauthbearer.allow.unverified.issuer",
                "has no meaning with sasl.oauthbearer.issuers: `iss` selects the issuer",
            )
        seen = set()
        for index, issuer in enumerate(issuers):
            place = f"sasl.oauthbearer.issuers[{index}]."
            yield from _check_issuer(issuer, place)
            meant = issuer.sasl_oauthbearer_expected_issuer
            if meant in seen:
                key = f"{place}sasl.oauthbearer.expected.issuer"
                yield key, f"{shown(meant)} is a duplicate"
            seen.add(meant)
            if len(issuers) > 1:
                yield from _check_prefix(issuer, issuers[:index], place)


def _check_issuer(issuer: IssuerSettings, place: str, *, any_issuer: bool = False) -> Problems:
    """Refuse settings that would accept tokens for other services (as Kafka 4.4 does)."""
    if issuer.sasl_oauthbearer_jwks_endpoint_url is None:
        yield f"{place}sasl.oauthbearer.jwks.endpoint.url", "is required for OAUTHBEARER"
    url = issuer.sasl_oauthbearer_jwks_endpoint_url
    if issuer.sasl_oauthbearer_jwks_endpoint_authorization_file and urlsplit(url).scheme != "https":
        yield (
            f"{place}sasl.oauthbearer.jwks.endpoint.authorization.file",
            "needs an https: URL in sasl.oauthbearer.jwks.endpoint.url, or the token is sent in the"
            " clear",
        )
    if not (
        issuer.sasl_oauthbearer_expected_audience
        or issuer.sasl_oauthbearer_allow_unverified_audience
    ):
        yield (
            f"{place}sasl.oauthbearer.expected.audience",
            "is required for OAUTHBEARER: set it to the `aud` of this listener's tokens;"
            " sasl.oauthbearer.allow.unverified.audience: true accepts any",
        )
    if issuer.sasl_oauthbearer_expected_issuer is None and not any_issuer:
        or_any = "" if place else "; sasl.oauthbearer.allow.unverified.issuer: true accepts any"
        yield (
            f"{place}sasl.oauthbearer.expected.issuer",
            f"is required for OAUTHBEARER: set it to the `iss` of the tokens{or_any}",
        )


def _check_prefix(
    issuer: OauthbearerIssuer, others: tuple[OauthbearerIssuer, ...], place: str
) -> Problems:
    """Refuse a prefix that makes names of two issuers equal."""
    key = f"{place}sasl.oauthbearer.principal.prefix"
    prefix = issuer.sasl_oauthbearer_principal_prefix
    if prefix is None:
        yield (
            key,
            "is required with several issuers, or equal names of two issuers would be the same"
            ' principal; "" adds no prefix',
        )
    for other in others:
        its = other.sasl_oauthbearer_principal_prefix or ""
        if prefix == its:
            both = (one.sasl_oauthbearer_principal_mapping_rules for one in (issuer, other))
            if None in both:
                yield (
                    key,
                    f"{shown(prefix)} is another issuer's: only issuers with"
                    " sasl.oauthbearer.principal.mapping.rules may share a prefix",
                )
        elif prefix and its and (prefix.startswith(its) or its.startswith(prefix)):
            yield key, f"{shown(prefix)} overlaps with another issuer's, {shown(its)}"


class LimitSettings(Section):
    """Limits on the cost of unauthenticated and faulty clients."""

    sasl_server_max_receive_size: FrameBytes = setting(
        524_288, source=KAFKA_BROKER, reloadable=True
    )
    """Largest request of a client that is not authenticated."""
    socket_request_max_bytes: FrameBytes = setting(
        104_857_600, source=KAFKA_BROKER, reloadable=True
    )
    """Largest request."""
    connections_max_idle_ms: PositiveMilliseconds = setting(
        600_000, source=KAFKA_BROKER, reloadable=True
    )
    """A connection that is silent for this long is closed, even if its session is valid."""
    connections_max_age_ms: PositiveMilliseconds | None = setting(None, reloadable=True)
    """Longest time that a connection may be open, whatever its session; up to a tenth less, so that
    connections that were opened together do not all end together. Requests under way are answered.
    null: no limit."""
    socket_keepalive_idle_ms: KeepaliveIdle = setting(120_000)
    """Time without traffic after which TCP keepalive probes a client's connection, in whole
    seconds. The connection ends after three unanswered probes, at most 10 s apart."""
    sasl_authentication_timeout_ms: PositiveMilliseconds = setting(30_000, reloadable=True)
    """Longest time that a connection may take to authenticate; with `SSL`, to finish its TLS
    handshake. Kafka applies only the idle time, which a client can stretch by sending a byte now
    and then."""
    connection_failed_authentication_delay_ms: Milliseconds = setting(
        100, source=KAFKA_BROKER, reloadable=True
    )
    """Delay of the response to a failed authentication, against guessing."""
    max_connections: Count = setting(10_000, source=KAFKA_BROKER)
    """Largest number of open connections of all workers together. At the limit, a new connection
    replaces the one that has been unauthenticated for longest; if all are authenticated, it is
    refused. Kafka has no limit by default; here it is finite because a connection takes a file
    descriptor, two once authenticated."""

    @check
    def _check_delay(self) -> Problems:
        idle = self.connections_max_idle_ms
        if self.connection_failed_authentication_delay_ms >= idle:
            yield (
                "connection.failed.authentication.delay.ms",
                f"must be less than connections.max.idle.ms, {idle}",
            )


class Listener(SessionSettings, OauthbearerSettings, LimitSettings, ClientIdentity, ListenerTls):
    """One address that clients connect to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = setting()
    """The name consists of letters, digits, `_` and `-`; it is the `listener` label of metrics and
    events."""
    address: AddressValue = setting()
    """Address to listen on: `HOST:PORT`. In `gateway` it is the bootstrap address of clients."""
    routing: Routing = setting()
    """`sidecar`: one broker, addresses are not rewritten. `gateway`: every broker has a port or a
    name here, and the addresses in responses are rewritten. `transparent`: connections are
    redirected here, and forwarded to their original destination if `upstream.allowed` contains
    it."""
    advertised_host: HostName | None = setting(None)
    """`gateway` only, and required there: the host in the broker addresses that clients get; with
    `broker.hosts`, the name that they bootstrap with."""
    broker_ports: BrokerPortsValue | None = setting(None)
    """`gateway` only, and required there without `broker.hosts`: the broker with id N is at the
    first port + N of a range such as `9100-9199`; or a map of broker ids to ports, such as
    `{1001: 9101, 1002: 9102}`. The proxy reserves all of these ports when it starts; each takes a
    file descriptor in the parent and in each worker."""
    broker_hosts: BrokerHostsValue | None = setting(None)
    """`gateway` with TLS only, in place of `broker.ports`: the host in the address of each broker,
    such as `broker-$(id).kafka.example`. All brokers are then at the listener's own port, and the
    server name in a client's TLS handshake (SNI) selects the broker; clients without a name, or
    with another one, are refused. `broker-$(id).kafka.example:443` gives clients port 443, for a
    load balancer with another port than the listener."""
    ssl_keystores: tuple[Keystore, ...] = setting(())
    """`broker.hosts` only: further certificates, each with `ssl.keystore.location` and, if needed,
    `ssl.keystore.key.location` and `ssl.key.password`. A client gets the first one that is for its
    server name, or else the listener's main one."""
    proxy_protocol: ProxyProtocol = setting(ProxyProtocol.OFF)
    """`required`: every connection begins with a PROXY protocol header, version 1 or 2, complete
    within 5 s. ACLs, limits, quotas, events and logs then use the client's address from it. A
    balancer's own connection (LOCAL) has the balancer's address."""
    proxy_protocol_trusted: OneOrMore[NetworkValue] = setting(())
    """Networks of the load balancers, such as `10.1.2.0/24`; required with `proxy.protocol:
    required`. Connections from other addresses are closed."""
    sasl_termination: SaslTermination = setting(SaslTermination.PROXY)
    """The side that authenticates clients. `proxy`: the proxy, with its own users and keys; brokers
    see the identity of `upstream.identity`. `broker`: the broker; logins are relayed frame by
    frame, brokers see the client's identity, and the proxy needs no users, keys or login. With
    `sasl.oauthbearer.jwks.endpoint.url` or `sasl.oauthbearer.issuers` the proxy also verifies
    tokens, and only accepted ones reach a broker; groups of tokens need this."""
    sasl_enabled_mechanisms: tuple[MechanismName, ...] = setting((), source=KAFKA_BROKER)
    """Mechanisms that clients may authenticate with, in the order in which they are announced.
    `sasl.termination: proxy`: OAUTHBEARER, SCRAM-SHA-256, SCRAM-SHA-512 and, with `SASL_SSL`,
    PLAIN; required. `broker`: any; empty: those that the broker offers."""
    sasl_plain_htpasswd_file: PathValue | None = setting(None)
    """`sasl.termination: proxy` only, and required there for PLAIN: the users and their passwords,
    a file of `htpasswd -B` (bcrypt) such as a Secret. It is read again when it changes; an invalid
    file is logged and changes nothing. A user that was removed fails at the next re-authentication.
    Needs `bcrypt`, which the image contains."""
    sasl_plain_ldap_url: LdapUrl | None = setting(None)
    """`sasl.termination: proxy` only, for PLAIN in place of `sasl.plain.htpasswd.file`: the LDAP
    directory that checks passwords, such as `ldaps://ldap.example.com`. With `ldap:`, StartTLS is
    required. A login fails if the directory does not answer within 5 s; references to other servers
    are not followed. An account that is locked fails at the next re-authentication."""
    sasl_plain_ldap_ssl_truststore_location: PathValue | None = setting(None)
    """The authorities that may issue the directory's certificate, PEM; read again at each
    connection. null: those that the system trusts."""
    sasl_plain_ldap_user_dn: LdapUserDn | None = setting(None)
    """Required with `sasl.plain.ldap.url`: the DN of users, such as
    `uid=$(user),ou=people,dc=example,dc=com`. Users must be able to read that attribute of their
    own entry, which must be their name exactly. With `sasl.plain.ldap.bind.dn`, the entry with that
    attribute is searched at any depth below the rest of the DN."""
    sasl_plain_ldap_bind_dn: Text | None = setting(None)
    """DN of an account that searches users and groups. null: users read them."""
    sasl_plain_ldap_bind_password: SecretSource | None = setting(None)
    """Source of that account's password: `file:PATH` or `env:NAME`. It is read again at each
    use."""
    sasl_plain_ldap_groups_dn: Text | None = setting(None)
    """DN of the parent of all groups. A user is in each group directly below it whose `member` or
    `uniqueMember` is the user's DN; the group's principal is `Group:` and its `cn`. `groups.file`
    then has no effect on PLAIN users. null: their groups are those of `groups.file`."""
    sasl_scram_principal_mapping_rules: MappingRules | None = setting(None, reloadable=True)
    """`sasl.termination: proxy` only: rules that turn a SCRAM user's name into the principal's
    name, in the grammar of `ssl.principal.mapping.rules`. A user that no rule matches cannot log
    in. null: the user's name is the principal's name."""
    groups_file: PathValue | None = setting(None)
    """The groups of SCRAM and PLAIN users and of certificates, a JSON file such as a Secret:
    `{"groups": {"analysts": ["User:alice"]}}`. It is read again when it changes, and also applies
    to open connections; an invalid file is logged and changes nothing. Tokens name their own
    groups. null: no groups."""
    sasl_broker_max_logins: Count = setting(1_000)
    """`sasl.termination: broker` only: largest number of unauthenticated connections to one broker,
    of all workers together. Further logins wait. While one waits, a client that has been silent in
    its login for a second is disconnected: the longest-silent client of the address (IPv6: /64)
    with most of these connections."""
    sasl_broker_max_side_connections: Count = setting(100)
    """`sasl.termination: broker` only: largest number of connections to one broker for
    re-authentications that the broker would refuse on the client's own connection, of all workers
    together. Further re-authentications wait, and a silent client is disconnected as with
    `sasl.broker.max.logins`: one of the principal with most of these connections."""
    sasl_broker_opaque_principal_mapping_rules: MappingRules | None = setting(None)
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

    @check
    def _check_sasl(self) -> Problems:
        if self.sasl:
            yield from self._check_mechanisms()
            return
        for name in type(self).model_fields:
            given = name in self.model_fields_set and getattr(self, name) is not None
            if given and self._is_of_sasl(name):
                problem = f"has no meaning with security.protocol: {self.security_protocol}"
                yield self.key_of(name), problem

    def _is_of_sasl(self, name: str) -> bool:
        """Return whether a setting has no effect without SASL."""
        if name == "sasl_authentication_timeout_ms":
            return not self.tls  # it bounds the handshake, too
        return (
            name.startswith("sasl_")
            or name in SessionSettings.model_fields
            or name == "connection_failed_authentication_delay_ms"
        )

    def _check_mechanisms(self) -> Problems:
        mechanisms = self.sasl_enabled_mechanisms
        if len(set(mechanisms)) < len(mechanisms):
            yield "sasl.enabled.mechanisms", "names a mechanism twice"
        if self.relays_logins:
            yield from self._check_relay()
            return
        for index, name in enumerate(mechanisms):
            if name not in _PROXY_MECHANISMS:
                problem = f"must be {_MECHANISM_CHOICE}, got {shown(name)}"
                yield f"sasl.enabled.mechanisms[{index}]", problem
        of_brokers = (name for name in self.model_fields_set if name.startswith("sasl_broker_"))
        yield from self.given(of_brokers, "has no meaning with sasl.termination: proxy")
        if not mechanisms:
            given = "sasl_enabled_mechanisms" in self.model_fields_set
            yield "sasl.enabled.mechanisms", "must not be empty" if given else "is required"
        yield from self._check_plain()
        yield from self._check_tokens()

    def _check_plain(self) -> Problems:
        """Refuse passwords that could be read on the network, or checked nowhere."""
        of_plain = [name for name in type(self).model_fields if name.startswith("sasl_plain_")]
        of_ldap = [name for name in of_plain if name.startswith("sasl_plain_ldap_")]
        has_file, url = self.sasl_plain_htpasswd_file is not None, "sasl.plain.ldap.url"
        if "PLAIN" not in self.sasl_enabled_mechanisms:
            yield from self.given(of_plain, "has no meaning without PLAIN")
        elif not self.tls:
            yield (
                "sasl.enabled.mechanisms",
                "PLAIN needs security.protocol: SASL_SSL, or passwords are sent in the clear",
            )
        elif has_file:
            yield from self.given(of_ldap, "has no meaning with sasl.plain.htpasswd.file")
        elif self.sasl_plain_ldap_url is None:
            yield "sasl.plain.htpasswd.file", f"is required for PLAIN, or {url}"
        elif self.sasl_plain_ldap_user_dn is None:
            yield "sasl.plain.ldap.user.dn", f"is required with {url}"
        elif (self.sasl_plain_ldap_bind_dn is None) != (self.sasl_plain_ldap_bind_password is None):
            yield (
                "sasl.plain.ldap.bind.password",
                "sasl.plain.ldap.bind.dn and sasl.plain.ldap.bind.password must be set together",
            )

    def _check_tokens(self) -> Problems:
        if self.sasl_oauthbearer_issuers:
            yield from self._check_issuers()
        elif "OAUTHBEARER" in self.mechanisms_of_proxy():
            yield from _check_issuer(
                self, "", any_issuer=self.sasl_oauthbearer_allow_unverified_issuer
            )

    def _check_relay(self) -> Problems:
        """Refuse settings of the proxy's own SASL, which have no effect, except those of tokens if
        the proxy has keys to verify them."""
        own = {"sasl_scram_principal_mapping_rules", "groups_file"}
        own |= {name for name in type(self).model_fields if name.startswith("sasl_plain_")}
        problem = "has no meaning with sasl.termination: broker, which verifies logins itself"
        if not self._has_keys:
            own |= OauthbearerSettings.model_fields.keys() - {"sasl_oauthbearer_sub_claim_name"}
            problem = f"{problem}, without sasl.oauthbearer.jwks.endpoint.url"
        yield from self.given(own, problem)
        mechanisms = self.sasl_enabled_mechanisms
        if self._has_keys and mechanisms and "OAUTHBEARER" not in mechanisms:
            yield (
                "sasl.enabled.mechanisms",
                "must include OAUTHBEARER, because signing keys are configured",
            )
        yield from self._check_tokens()

    @check
    def _check_routing(self) -> Problems:
        gateway_only = {
            "advertised.host": self.advertised_host,
            "broker.ports": self.broker_ports,
            "broker.hosts": self.broker_hosts,
        }
        for key, value in gateway_only.items():
            if self.routing is not Routing.GATEWAY and value is not None:
                yield key, f"has no meaning with routing: {self.routing}"
        if self.routing is Routing.GATEWAY:
            if self.advertised_host is None:
                yield "advertised.host", "is required with routing: gateway"
            if self.broker_ports is None and self.broker_hosts is None:
                yield "broker.ports", "is required with routing: gateway"
        if self.ssl_keystores and self.broker_hosts is None:
            yield "ssl.keystores", "has no meaning without broker.hosts"
        if self.broker_ports is not None and self.address.port in self.broker_ports:
            yield "broker.ports", f"must not contain the port of the address, {self.address.port}"

    @check
    def _check_broker_hosts(self) -> Problems:
        hosts, bootstrap = self.broker_hosts, (self.advertised_host or "").lower()
        if hosts is None:
            return
        if not self.tls:
            problem = f"has no meaning with security.protocol: {self.security_protocol}"
            yield "broker.hosts", problem
        if self.broker_ports is not None:
            yield "broker.hosts", "cannot be combined with broker.ports"
        if not (hosts.port or self.address.port):
            yield "broker.hosts", "must end in a port, because address has none"
        if hosts.id_of(bootstrap) is not None or _NO_SERVER_NAME.fullmatch(bootstrap):
            yield (
                "advertised.host",
                "must be a host name with broker.hosts, and not that of a broker, got"
                f" {shown(self.advertised_host)}",
            )

    @check
    def _check_proxy_protocol(self) -> Problems:
        if self.proxy_protocol is ProxyProtocol.OFF:
            if self.proxy_protocol_trusted:
                yield "proxy.protocol.trusted", "has no meaning with proxy.protocol: off"
        elif self.routing is Routing.TRANSPARENT:
            yield "proxy.protocol", "must be off with routing: transparent"
        elif not self.proxy_protocol_trusted:
            yield (
                "proxy.protocol.trusted",
                "is required with proxy.protocol: required; set it to the load balancers' networks",
            )

    @check
    def _check_clients_identity(self) -> Problems:
        """Refuse to give an identity at brokers to clients that the proxy does not authenticate."""
        if not self.presents_clients:
            return
        problem = None
        if self.relays_logins:
            problem = "sasl.termination: broker, where brokers see the client anyway"
        elif not self.sasl and not self.tls:
            problem = f"security.protocol: {self.security_protocol}: its clients have no identity"
        elif not self.sasl and self.ssl_client_auth is not ClientAuth.REQUIRED:
            problem = f"ssl.client.auth: {self.ssl_client_auth}: set required"
        if problem is not None:
            yield "upstream.identity", f"cannot be {self.upstream_identity} with {problem}"

    def enforcement_in_effect(self) -> Enforcement:
        """Return the enforcement for principals without an override; `observe` without SASL."""
        return self.reauth_enforcement if self.sasl else Enforcement.OBSERVE
