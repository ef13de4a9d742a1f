"""Settings of TLS, of the proxy's own logins, and of the clients' identity at brokers."""

import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal

from proxy.acl.principals import DEFAULT
from proxy.config.section import (
    KAFKA_BROKER,
    KAFKA_CLIENT,
    LIBRDKAFKA,
    Problems,
    Section,
    check,
    setting,
)
from proxy.config.values import (
    CipherSuite,
    EndpointUrl,
    MappingRules,
    OneOrMore,
    PathValue,
    PositiveMilliseconds,
    Principal,
    PrincipalPrefix,
    Seconds,
    SecretSource,
    Text,
    shown,
    source_of,
    text_that,
)
from proxy.declarations import Field, StrictBool
from sasl.identity import USER_TYPE

_CLASS: Final = re.compile(r"\w+(\.\w+)*:\w+")
MSK_IAM: Final = "AWS_MSK_IAM"
_MSK_IAM: Final = "aws-msk-iam"
_PROVIDERS: Final = ("command", _MSK_IAM, "gcp", "azure")
"""Providers of tokens that are no class."""
LoginProvider = Annotated[
    str,
    text_that(
        lambda text: text in _PROVIDERS or _CLASS.fullmatch(text),
        f"be {', '.join(_PROVIDERS)} or package.module:Class",
    ),
]
_WITH_PASSWORD: Final = ("sasl.username", "sasl.password")
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a setting
_SCOPE: Final = "sasl.oauthbearer.scope"
_ASSERTION: Final = "sasl.oauthbearer.assertion."
JWT_BEARER: Final = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
_PROVIDER: Final = "sasl.login.provider"
_COMMAND: Final = "sasl.login.command"


class ClientAuth(StrEnum):
    """Demand for client certificates."""

    NONE = "none"
    REQUESTED = "requested"
    """A certificate is optional; one that is sent must be valid."""
    REQUIRED = "required"


class SecurityProtocol(StrEnum):
    """Security protocol, as Kafka names it."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


PemType = Annotated[
    Literal["PEM"], text_that("PEM".__eq__, "be PEM, the only type that is available")
]


class TlsSettings(Section):
    """Settings of both sides: the proxy's certificate, and trusted certificates.

    The files are checked every second; replaced files are used without a restart.
    """

    security_protocol: SecurityProtocol = setting(SecurityProtocol.PLAINTEXT, source=KAFKA_BROKER)
    """Security protocol."""
    ssl_keystore_type: PemType = setting("PEM", source=KAFKA_BROKER)
    """Only PEM is supported; Kafka's default is JKS."""
    ssl_keystore_location: PathValue | None = setting(None, source=KAFKA_BROKER)
    """The proxy's certificate, with its chain, and the private key unless
    `ssl.keystore.key.location` has it. PEM; relative to this file."""
    ssl_keystore_key_location: PathValue | None = setting(None)
    """The private key, if it is a separate file (cert-manager, Kubernetes' TLS secrets); null: it
    is in `ssl.keystore.location`."""
    ssl_key_password: SecretSource | None = setting(None, source=KAFKA_BROKER)
    """The password of the private key: `file:PATH` or `env:NAME`; null: the key is not
    encrypted."""
    ssl_truststore_type: PemType = setting("PEM", source=KAFKA_BROKER)
    """Only PEM is supported; Kafka's default is JKS."""
    ssl_truststore_location: PathValue | None = setting(None, source=KAFKA_BROKER)
    """Certificates of the authorities that may issue the other side's certificate. PEM. null in
    `upstream`: the authorities that the system trusts."""
    ssl_enabled_protocols: Annotated[
        OneOrMore[Literal["TLSv1.2", "TLSv1.3"]], Field(min_length=1)
    ] = setting(("TLSv1.2", "TLSv1.3"), source=KAFKA_BROKER)
    """The enabled versions of TLS."""
    ssl_cipher_suites: OneOrMore[CipherSuite] = setting((), source=KAFKA_BROKER)
    """The cipher suites of TLS 1.2 in order of preference, by their standard names; empty:
    OpenSSL's own choice. Those of TLS 1.3 cannot be chosen."""

    @property
    def tls(self) -> bool:
        """True if the protocol includes TLS."""
        return self.security_protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """True if the protocol includes SASL."""
        return self.security_protocol.startswith("SASL_")

    def _check_unused(self, protocol: str) -> Problems:
        """Refuse settings of TLS, which would have no effect."""
        for name in type(self).model_fields:
            if name.startswith("ssl_") and getattr(self, name) != type(self).model_fields[
                name
            ].get_default(call_default_factory=True):
                yield name.replace("_", "."), f"has no meaning with security.protocol: {protocol}"


class Keystore(Section):
    """A further certificate of a listener."""

    ssl_keystore_location: PathValue = setting(source=KAFKA_BROKER)
    """Like the listener's."""
    ssl_keystore_key_location: PathValue | None = setting(None)
    """Like the listener's."""
    ssl_key_password: SecretSource | None = setting(None, source=KAFKA_BROKER)
    """Like the listener's."""


class ListenerTls(TlsSettings):
    """TLS towards clients."""

    security_protocol: SecurityProtocol = setting(
        SecurityProtocol.SASL_PLAINTEXT, source=KAFKA_BROKER
    )
    """Security protocol of clients. `PLAINTEXT` and `SSL` have no SASL: clients do not log in, and
    sessions do not expire. With `PLAINTEXT` every client is `User:ANONYMOUS`; with `SSL` the
    principal is the subject of the client's certificate (`ssl.client.auth`), and `User:ANONYMOUS`
    without one."""
    ssl_client_auth: ClientAuth = setting(ClientAuth.NONE, source=KAFKA_BROKER)
    """Demand for a client certificate issued by an authority in `ssl.truststore.location`. With
    `SASL_SSL` it is required in addition to SASL, and the principal is SASL's."""
    ssl_principal_mapping_rules: MappingRules = setting(DEFAULT, source=KAFKA_BROKER)
    """`SSL` only: rules that turn a certificate's subject into its principal (KIP-371).
    `RULE:pattern/replacement/[LU]` or `DEFAULT`, the subject itself; several are separated by
    commas, and the first match applies. If no rule matches, the connection is closed."""

    @check
    def _check_tls(self) -> Problems:
        if "ssl_principal_mapping_rules" in self.model_fields_set:
            yield from self._check_mapping()
        if not self.tls:
            yield from self._check_unused(self.security_protocol)
            return
        if self.ssl_keystore_location is None:
            problem = f"is required with {self.security_protocol}"
            yield "ssl.keystore.location", problem
        if self.ssl_client_auth is not ClientAuth.NONE and self.ssl_truststore_location is None:
            yield (
                "ssl.truststore.location",
                f"is required with ssl.client.auth: {self.ssl_client_auth}",
            )

    def _check_mapping(self) -> Problems:
        """Refuse mapping rules that would have no effect."""
        cause = None
        if self.security_protocol is not SecurityProtocol.SSL:
            cause = f"security.protocol: {self.security_protocol}"
        elif self.ssl_client_auth is ClientAuth.NONE:
            cause = "ssl.client.auth: none"
        if cause is not None:
            yield "ssl.principal.mapping.rules", f"has no meaning with {cause}"


class UpstreamTls(TlsSettings):
    """TLS towards brokers."""

    security_protocol: SecurityProtocol = setting(SecurityProtocol.PLAINTEXT, source=KAFKA_CLIENT)
    """Security protocol towards brokers; with `SASL_PLAINTEXT` and `SASL_SSL` the proxy logs in to
    them."""
    ssl_endpoint_identification_algorithm: Literal["https", ""] = setting(
        "https", source=KAFKA_CLIENT
    )
    """`https`: a broker's certificate must match its host name. Empty: any trusted certificate is
    accepted."""

    @check
    def _check_tls(self) -> Problems:
        if not self.tls:
            yield from self._check_unused(self.security_protocol)
        if self.ssl_keystore_location is None:
            for name in ("ssl_keystore_key_location", "ssl_key_password"):
                if getattr(self, name) is not None:
                    yield self.key_of(name), "has no meaning without ssl.keystore.location"


class UpstreamSasl(UpstreamTls):
    """The proxy's identity towards brokers.

    All clients share it: brokers must allow the proxy everything that any client may do. If every
    listener has `sasl.termination: broker`, clients log in themselves, and the proxy needs no
    identity.
    """

    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None
    ) = setting(None, source=KAFKA_CLIENT)
    """Mechanism of the proxy's login to brokers, with `SASL_PLAINTEXT` and `SASL_SSL`.
    `AWS_MSK_IAM`: for brokers of Amazon MSK that do not offer OAUTHBEARER, with
    `sasl.login.provider: aws-msk-iam`. Kafka's default, GSSAPI, is not offered."""
    sasl_username: Text | None = setting(None, source=LIBRDKAFKA)
    """PLAIN, SCRAM: the user name."""
    sasl_password: SecretSource | None = setting(None, source=LIBRDKAFKA)
    """PLAIN, SCRAM: the source of the password, `file:PATH` or `env:NAME`. The file is read again
    at each login, so a password is changed by replacing it."""
    sasl_login_provider: LoginProvider | None = setting(None)
    """OAUTHBEARER: the source of tokens in place of `sasl.oauthbearer.token.endpoint.url`.
    `command`: `sasl.login.command` prints them. `aws-msk-iam`: signed URLs for Amazon MSK with IAM
    (needs the extra `aws`). `gcp`: for Google's Managed Service for Apache Kafka. `azure`: for
    Event Hubs, or for `sasl.oauthbearer.scope`. `package.module:Class`: a class with a method
    `token`, as in `proxy.brokers.token_providers.TokenProvider`."""
    sasl_login_command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = setting(None)
    """`command`: the program and its arguments; no shell is involved. It must print within ten
    seconds a token, or a JSON object with `access_token` and `expires_in`."""
    sasl_oauthbearer_token_endpoint_url: EndpointUrl | None = setting(None, source=KAFKA_CLIENT)
    """OAUTHBEARER: the source of tokens. `file:`: a file with a token, such as that of a Kubernetes
    service account, which is read again at each login. `https:` or `http:`: a server that issues
    tokens for the client credentials below (RFC 6749 section 4.4)."""
    sasl_oauthbearer_client_credentials_client_id: Text | None = setting(None, source=KAFKA_CLIENT)
    """Client id for the client credentials grant."""
    sasl_oauthbearer_client_credentials_client_secret: SecretSource | None = setting(
        None, source=KAFKA_CLIENT
    )
    """Source of the client secret for the client credentials grant: `file:PATH` or `env:NAME`."""
    sasl_oauthbearer_scope: Text | None = setting(None, source=KAFKA_CLIENT)
    """The requested scope; null: the server's own choice."""

    sasl_oauthbearer_header_urlencode: StrictBool | None = setting(None, source=KAFKA_CLIENT)
    """true: id and secret are URL-encoded before they are joined, which RFC 6749 section 2.3.1
    requires and many servers do not accept. null, Kafka's default: they are not encoded."""

    sasl_oauthbearer_jwt_retriever_class: (
        Literal["org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"] | None
    ) = setting(None, source=KAFKA_CLIENT)
    """The name of this class of Kafka: the assertion below is the grant itself (RFC 7523 section
    2.1, KIP-1139). null: client credentials."""
    sasl_oauthbearer_assertion_file: PathValue | None = setting(None, source=KAFKA_CLIENT)
    """A file with an assertion, a signed JWT that replaces the client secret (RFC 7523 section 2.2,
    KIP-1258). It is read for each request."""
    sasl_oauthbearer_assertion_private_key_file: PathValue | None = setting(
        None, source=KAFKA_CLIENT
    )
    """A private key in PEM, which signs an assertion for each request. It is read each time."""
    sasl_oauthbearer_assertion_private_key_passphrase: SecretSource | None = setting(
        None, source=KAFKA_CLIENT
    )
    """The password of the private key: `file:PATH` or `env:NAME`; null: the key is not
    encrypted."""
    sasl_oauthbearer_assertion_algorithm: Literal["RS256", "ES256"] | None = setting(
        None, source=KAFKA_CLIENT
    )
    """Algorithm of the signature; null: RS256."""
    sasl_oauthbearer_assertion_template_file: PathValue | None = setting(None, source=KAFKA_CLIENT)
    """A JSON object with the objects `header` and `payload`, which are added to the assertion."""
    sasl_oauthbearer_assertion_claim_aud: Text | None = setting(None, source=KAFKA_CLIENT)
    """The assertion's audience, unless the template has it."""
    sasl_oauthbearer_assertion_claim_iss: Text | None = setting(None, source=KAFKA_CLIENT)
    """The assertion's issuer, usually the client id, unless the template has it."""
    sasl_oauthbearer_assertion_claim_sub: Text | None = setting(None, source=KAFKA_CLIENT)
    """The assertion's subject, usually the client id, unless the template has it."""
    sasl_oauthbearer_assertion_claim_exp_seconds: Seconds | None = setting(
        None, source=KAFKA_CLIENT
    )
    """Lifetime of the assertion; null: 300."""
    sasl_oauthbearer_assertion_claim_nbf_seconds: Seconds | None = setting(
        None, source=KAFKA_CLIENT
    )
    """Seconds before now from which the assertion is valid; null: 60."""
    sasl_oauthbearer_assertion_claim_jti_include: StrictBool | None = setting(
        None, source=KAFKA_CLIENT
    )
    """true: the assertion has a unique `jti`, for servers that accept each only once."""

    def asserts(self) -> bool:
        """Return whether a token endpoint is asked with an assertion."""
        return self.sasl_oauthbearer_jwt_retriever_class == JWT_BEARER or bool(self._assertion())

    def token_file(self) -> Path | None:
        """Return the file from which tokens are read; None if they come from a server."""
        source = source_of(self.sasl_oauthbearer_token_endpoint_url)
        return source if isinstance(source, Path) else None

    @check
    def _check_sasl(self) -> Problems:
        needed, optional, cause = self._login()
        allowed = {*needed, *optional} | ({"sasl.mechanism"} if self.sasl else set())
        for name in UpstreamSasl.model_fields:
            key, is_given = self.key_of(name), getattr(self, name) is not None
            if key in needed and not is_given:
                yield key, f"is required for {cause}"
            elif is_given and name.startswith("sasl_") and key not in allowed:
                yield key, f"has no meaning with {cause}"
        if self.sasl_mechanism == MSK_IAM and self.sasl_login_provider not in (None, _MSK_IAM):
            yield _PROVIDER, f"must be {_MSK_IAM} for {MSK_IAM}"

    def _login(self) -> "_Login":
        mechanism = self.sasl_mechanism
        if not self.sasl:
            return (), (), self.security_protocol
        if mechanism is None:
            return (), (), "security.protocol without sasl.mechanism"
        if mechanism == "OAUTHBEARER":
            return self._login_with_token()
        return (_PROVIDER,) if mechanism == MSK_IAM else _WITH_PASSWORD, (), mechanism

    def _login_with_token(self) -> "_Login":
        provider, optional = self.sasl_login_provider, tuple[str, ...]()
        if provider is not None:
            needed = (_PROVIDER, _COMMAND) if provider == "command" else (_PROVIDER,)
            optional = (_SCOPE,) if provider == "azure" else ()
            return needed, optional, f"{_PROVIDER}: {provider}"
        if self.sasl_oauthbearer_token_endpoint_url is None:
            return (_TOKEN_URL,), (), "OAUTHBEARER"
        if self.token_file() is not None:
            return (_TOKEN_URL,), (), "OAUTHBEARER from a file"
        if not self.asserts():
            optional = (_SCOPE, "sasl.oauthbearer.header.urlencode")
            return (_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET), optional, "OAUTHBEARER"
        optional = (_SCOPE, "sasl.oauthbearer.jwt.retriever.class")
        if self.sasl_oauthbearer_jwt_retriever_class != JWT_BEARER:
            optional += (_CLIENT_ID,)
        file, key = f"{_ASSERTION}file", f"{_ASSERTION}private.key.file"
        if self._assertion() - {"sasl_oauthbearer_assertion_file"}:
            keys = map(self.key_of, UpstreamSasl.model_fields)
            optional += tuple(one for one in keys if one.startswith(_ASSERTION) and one != file)
            return (_TOKEN_URL, key), optional, "an assertion from a private key"
        return (_TOKEN_URL, file), optional, "an assertion from a file"

    def _assertion(self) -> set[str]:
        """Return the settings of an assertion that are set, by attribute."""
        given = {name for name, value in vars(self).items() if value is not None}
        return {name for name in given if name.startswith("sasl_oauthbearer_assertion_")}


_Login = tuple[tuple[str, ...], tuple[str, ...], str]
"""The keys of the settings that a login requires, those that it allows, and its name in errors."""


def files_of(settings: TlsSettings) -> tuple[Path, ...]:
    """Return the files in the settings of one side."""
    password = settings.ssl_key_password
    named = (
        settings.ssl_keystore_location,
        settings.ssl_keystore_key_location,
        settings.ssl_truststore_location,
        None if password is None else password.path,
    )
    return tuple(path for path in named if path is not None)


class UpstreamIdentity(StrEnum):
    """Identity of a listener's connections at brokers."""

    PROXY = "proxy"
    """The proxy's own."""
    DELEGATION_TOKEN = "delegation-token"  # noqa: S105 - no password
    """The client's, with a delegation token that the proxy creates."""
    MAPPED = "mapped"
    """The client's, with its credentials from a directory."""
    MINTED_TOKEN = "minted-token"  # noqa: S105 - no password
    """The client's, with a token that the proxy signs."""


_WAYS: Final[Mapping[UpstreamIdentity, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    UpstreamIdentity.DELEGATION_TOKEN: (("mechanism",), ()),
    UpstreamIdentity.MAPPED: (("directory", "mechanism"), ()),
    UpstreamIdentity.MINTED_TOKEN: (
        ("signing_key_files", "token_issuer", "token_audience"),
        ("jwks_file", "token_lifetime_ms"),
    ),
}
"""Required and optional settings of each way."""


class ClientIdentity(Section):
    """Identity at brokers of clients that the proxy authenticates."""

    upstream_identity: UpstreamIdentity = setting(UpstreamIdentity.PROXY)
    """The identity that brokers see. `proxy`: the proxy's own. `delegation-token`: each client's,
    with a delegation token that the proxy creates. `mapped`: each client's, with a login of its own
    from `upstream.identity.directory`. `minted-token`: each client's, with a token (OAUTHBEARER)
    that the proxy signs. See docs/client-identity.md."""
    upstream_identity_principal_mapping_rules: MappingRules | None = setting(None, reloadable=True)
    """Rules that turn the name of a client's principal into the name of its principal at brokers,
    in the grammar of `ssl.principal.mapping.rules`. A client that no rule matches is refused. null:
    the name stays."""
    upstream_identity_allow: tuple[Principal, ...] = setting((), reloadable=True)
    """Principals at brokers that clients may have, such as `User:alice`. Others are refused, unless
    the next setting allows them."""
    upstream_identity_allow_prefixes: tuple[PrincipalPrefix, ...] = setting((), reloadable=True)
    """Prefixes of principals at brokers that clients may have, such as `User:team-`. They do not
    apply to `upstream.identity.super.users`, nor to `upstream.sasl.username`."""
    upstream_identity_deny: tuple[Principal, ...] = setting((), reloadable=True)
    """Principals at brokers that no client may have, even if they are allowed."""
    upstream_identity_super_users: tuple[Principal, ...] | None = setting(None, reloadable=True)
    """The brokers' `super.users`: only `upstream.identity.allow` allows them. Required with
    `upstream.identity.allow.prefixes`; `[]` if brokers have no super users."""
    upstream_identity_directory: PathValue | None = setting(None)
    """`mapped` only, and required there: the directory with the files `NAME/username` and
    `NAME/password`, or `NAME/token`, of each principal `User:NAME` at brokers. They are read again
    when they are used. A client without them is refused."""
    upstream_identity_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    ) = setting(None)
    """Required with `mapped` and `delegation-token`, and only there: the mechanism of the logins.
    With `mapped`, OAUTHBEARER uses `token`, the others `username` and `password`; delegation tokens
    need SCRAM."""

    upstream_identity_signing_key_files: OneOrMore[PathValue] = setting(())
    """`minted-token` only, and required there: private EC keys on P-256 in PEM. The first one
    signs; `/jwks.json` at `http.address` has the public keys of all. They are read again when they
    change."""
    upstream_identity_jwks_file: PathValue | None = setting(None)
    """`minted-token` only: a file in which the proxy also publishes these public keys."""
    upstream_identity_token_issuer: Text | None = setting(None)
    """`minted-token` only, and required there: `iss` of the tokens, the brokers'
    `sasl.oauthbearer.expected.issuer`."""
    upstream_identity_token_audience: Text | None = setting(None)
    """`minted-token` only, and required there: `aud` of the tokens, the brokers'
    `sasl.oauthbearer.expected.audience`. It should name the cluster's id, so that a token is of no
    use elsewhere."""
    upstream_identity_token_lifetime_ms: Annotated[
        PositiveMilliseconds, Field(ge=60_000, le=3_600_000)
    ] = setting(600_000)
    """`minted-token` only: the tokens' lifetime, 60000 to 3600000."""

    @property
    def presents_clients(self) -> bool:
        """True if brokers see the client, and not the proxy."""
        return self.upstream_identity is not UpstreamIdentity.PROXY

    @check
    def _check_identity(self) -> Problems:
        mode = f"upstream.identity: {self.upstream_identity}"
        if not self.presents_clients:
            others = ClientIdentity.model_fields.keys() - {"upstream_identity"}
            yield from self.given(others, f"has no meaning with {mode}")
            return
        yield from self._check_way(mode)
        if not (self.upstream_identity_allow or self.upstream_identity_allow_prefixes):
            problem = f"is required with {mode}, or upstream.identity.allow.prefixes"
            yield "upstream.identity.allow", problem
        if self.upstream_identity_allow_prefixes and self.upstream_identity_super_users is None:
            yield (
                "upstream.identity.super.users",
                "is required with upstream.identity.allow.prefixes: name the brokers' super.users,"
                " which a prefix must not allow",
            )
        yield from self._check_types()

    def _check_way(self, mode: str) -> Problems:
        """Refuse missing settings of the chosen way, and settings of the others."""
        needed, optional = _WAYS[self.upstream_identity]
        for other in sorted({name for one in _WAYS.values() for name in chain(*one)}):
            name = f"upstream_identity_{other}"
            if other in needed and not getattr(self, name):
                yield self.key_of(name), f"is required with {mode}"
            if other not in needed + optional and name in self.model_fields_set:
                yield self.key_of(name), f"has no meaning with {mode}"
        mechanism = self.upstream_identity_mechanism or ""
        if self.upstream_identity is UpstreamIdentity.DELEGATION_TOKEN and "SCRAM" not in mechanism:
            yield (
                "upstream.identity.mechanism",
                f"must be SCRAM-SHA-256 or SCRAM-SHA-512 with {mode}",
            )

    def _check_types(self) -> Problems:
        """Refuse principals that no client can have at brokers: rules would silently not apply."""
        for name in ClientIdentity.model_fields:
            values = getattr(self, name)
            for index, value in enumerate(values if isinstance(values, tuple) else ()):
                if isinstance(value, str) and not value.startswith(USER_TYPE):
                    problem = f"must begin with {USER_TYPE}, got {shown(value)}"
                    yield f"{self.key_of(name)}[{index}]", problem
