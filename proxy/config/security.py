"""Settings of TLS and of the proxy's own logins, under Kafka's names."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from proxy.acl.principals import DEFAULT
from proxy.config.section import (
    KAFKA_BROKER,
    KAFKA_CLIENT,
    LIBRDKAFKA,
    OWN,
    KeyProblemError,
    Section,
    setting,
)
from proxy.config.values import (
    CipherSuite,
    EndpointUrl,
    MappingRules,
    Milliseconds,
    PathValue,
    SecretSource,
    Text,
    available,
    one_or_list,
)
from proxy.declarations import BeforeValidator, Field, StrictBool, model_validator

_STORE_TYPES = ("JKS", "PKCS12")
_WITH_PASSWORD: Final = ("sasl.username", "sasl.password")
_WITH_CREDENTIALS: Final = (
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
)
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a setting
_OPTIONAL: Final = ("sasl.oauthbearer.scope", "sasl.oauthbearer.header.urlencode")
"""Optional settings of the client credentials grant."""


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


SpokenProtocol = Annotated[SecurityProtocol, BeforeValidator(available(*SecurityProtocol))]


class TlsSettings(Section):
    """Settings of both sides: the proxy's certificate, and trusted certificates.

    The files are checked every second; replaced files are used without a restart.
    """

    security_protocol: SpokenProtocol = setting(SecurityProtocol.PLAINTEXT, source=KAFKA_BROKER)
    """Security protocol."""
    ssl_keystore_type: Annotated[
        Literal["PEM"], BeforeValidator(available("PEM", later=_STORE_TYPES))
    ] = setting("PEM", source=KAFKA_BROKER)
    """Only PEM is supported; Kafka's default is JKS."""
    ssl_keystore_location: PathValue | None = setting(None, source=KAFKA_BROKER)
    """The proxy's certificate, with its chain, and the private key unless
    `ssl.keystore.key.location` has it. PEM; relative to this file."""
    ssl_keystore_key_location: PathValue | None = setting(None, source=OWN)
    """The private key, if it is a separate file (cert-manager, Kubernetes' TLS secrets); null: it
    is in `ssl.keystore.location`."""
    ssl_key_password: SecretSource | None = setting(None, source=KAFKA_BROKER)
    """The password of the private key: `file:PATH` or `env:NAME`; null: the key is not
    encrypted."""
    ssl_truststore_type: Annotated[
        Literal["PEM"], BeforeValidator(available("PEM", later=_STORE_TYPES))
    ] = setting("PEM", source=KAFKA_BROKER)
    """Only PEM is supported; Kafka's default is JKS."""
    ssl_truststore_location: PathValue | None = setting(None, source=KAFKA_BROKER)
    """Certificates of the authorities that may issue the other side's certificate. PEM. null in
    `upstream`: the authorities that the system trusts."""
    ssl_enabled_protocols: Annotated[
        tuple[Literal["TLSv1.2", "TLSv1.3"], ...],
        Field(min_length=1),
        BeforeValidator(one_or_list),
    ] = setting(("TLSv1.2", "TLSv1.3"), source=KAFKA_BROKER, repeated_or_one=True)
    """The enabled versions of TLS."""
    ssl_cipher_suites: Annotated[tuple[CipherSuite, ...], BeforeValidator(one_or_list)] = setting(
        (), source=KAFKA_BROKER, repeated_or_one=True
    )
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

    def _check_keystore(self) -> None:
        if self.ssl_keystore_location is None:
            for key, value in (
                ("ssl.keystore.key.location", self.ssl_keystore_key_location),
                ("ssl.key.password", self.ssl_key_password),
            ):
                if value is not None:
                    raise KeyProblemError(key, "has no meaning without ssl.keystore.location")

    def _check_unused(self, protocol: str) -> None:
        """Refuse settings of TLS, which would have no effect."""
        for name in type(self).model_fields:
            if name.startswith("ssl_") and getattr(self, name) != type(self).model_fields[
                name
            ].get_default(call_default_factory=True):
                raise KeyProblemError(
                    name.replace("_", "."), f"has no meaning with security.protocol: {protocol}"
                )


class ListenerTls(TlsSettings):
    """TLS towards clients."""

    security_protocol: SpokenProtocol = setting(
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

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if "ssl_principal_mapping_rules" in self.model_fields_set:
            self._check_mapping()
        if not self.tls:
            self._check_unused(self.security_protocol)
            return self
        if self.ssl_keystore_location is None:
            problem = f"is required with {self.security_protocol}"
            raise KeyProblemError("ssl.keystore.location", problem)
        if self.ssl_client_auth is not ClientAuth.NONE and self.ssl_truststore_location is None:
            raise KeyProblemError(
                "ssl.truststore.location",
                f"is required with ssl.client.auth: {self.ssl_client_auth}",
            )
        return self

    def _check_mapping(self) -> None:
        """Refuse mapping rules that would have no effect."""
        cause = None
        if self.security_protocol is not SecurityProtocol.SSL:
            cause = f"security.protocol: {self.security_protocol}"
        elif self.ssl_client_auth is ClientAuth.NONE:
            cause = "ssl.client.auth: none"
        if cause is not None:
            raise KeyProblemError("ssl.principal.mapping.rules", f"has no meaning with {cause}")


class UpstreamTls(TlsSettings):
    """TLS towards brokers."""

    security_protocol: SpokenProtocol = setting(SecurityProtocol.PLAINTEXT, source=KAFKA_CLIENT)
    """Security protocol towards brokers; with `SASL_PLAINTEXT` and `SASL_SSL` the proxy logs in to
    them."""
    ssl_endpoint_identification_algorithm: Literal["https", ""] = setting(
        "https", source=KAFKA_CLIENT
    )
    """`https`: a broker's certificate must match its host name. Empty: any trusted certificate is
    accepted."""

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if not self.tls:
            self._check_unused(self.security_protocol)
        self._check_keystore()
        return self


class UpstreamSasl(UpstreamTls):
    """The proxy's identity towards brokers.

    All clients share it: brokers must allow the proxy everything that any client may do. If every
    listener has `sasl.termination: broker`, clients log in themselves, and the proxy needs no
    identity.
    """

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = (
        setting(None, source=KAFKA_CLIENT)
    )
    """Mechanism of the proxy's login to brokers, with `SASL_PLAINTEXT` and `SASL_SSL`. Kafka's
    default, GSSAPI, is not offered."""
    sasl_username: Text | None = setting(None, source=LIBRDKAFKA)
    """PLAIN, SCRAM: the user name."""
    sasl_password: SecretSource | None = setting(None, source=LIBRDKAFKA)
    """PLAIN, SCRAM: the source of the password, `file:PATH` or `env:NAME`. The file is read again
    at each login, so a password is changed by replacing it."""
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

    def token_file(self) -> Path | None:
        """Return the file from which tokens are read; None if they come from a server."""
        parts = urlsplit(self.sasl_oauthbearer_token_endpoint_url or "")
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @model_validator(mode="after")
    def _check_sasl(self) -> Self:
        given = {
            name.replace("_", "."): getattr(self, name)
            for name in UpstreamSasl.model_fields
            if name.startswith("sasl_")
        }
        mechanism = given.pop("sasl.mechanism")
        if not self.sasl:
            self._refuse({**given, "sasl.mechanism": mechanism}, self.security_protocol)
        elif mechanism is None:
            self._refuse(given, "security.protocol without sasl.mechanism")
        else:
            self._check_needed(mechanism, given)
        return self

    def _check_needed(self, mechanism: str, given: dict[str, object]) -> None:
        needed: tuple[str, ...] = _WITH_PASSWORD
        optional: tuple[str, ...] = ()
        if mechanism == "OAUTHBEARER":
            needed = (_TOKEN_URL,)
            if given[_TOKEN_URL] is not None and self.token_file() is None:
                needed, optional = (_TOKEN_URL, *_WITH_CREDENTIALS), _OPTIONAL
        for key in needed:
            if given[key] is None:
                raise KeyProblemError(key, f"is required for {mechanism}")
        left = {key: value for key, value in given.items() if key not in (*needed, *optional)}
        self._refuse(left, f"{mechanism}{' from a file' if self.token_file() else ''}")

    def _refuse(self, given: dict[str, object], cause: str) -> None:
        """Refuse settings that would have no effect."""
        for key, value in given.items():
            if value is not None:
                raise KeyProblemError(key, f"has no meaning with {cause}")


class Zookeeper(UpstreamTls):
    """Connection to ZooKeeper, `zookeeper:` only.

    The settings `ssl.…` are those of `upstream`, and correspond to Kafka's `zookeeper.ssl.…`.
    """

    security_protocol: SpokenProtocol = setting(SecurityProtocol.PLAINTEXT, source=OWN)
    """Security protocol towards ZooKeeper. `SSL` and `SASL_SSL` are Kafka's
    `zookeeper.ssl.client.enable`; with `SASL_…` the proxy logs in with DIGEST-MD5, as ZooKeeper's
    `DigestLoginModule` does."""
    username: Text | None = setting(None, source=OWN)
    """The proxy's user name at ZooKeeper; null: no user, or the certificate's. Without `SASL_…` it
    is a user of ZooKeeper's scheme `digest`."""
    password: SecretSource | None = setting(None, source=OWN)
    """The source of the password: `file:PATH` or `env:NAME`. It is read for each connection."""
    session_timeout_ms: Annotated[Milliseconds, Field(ge=1_000, le=600_000)] = setting(
        18_000, source=KAFKA_BROKER, unit="ms"
    )
    """Time without an answer after which a connection counts as lost; also the longest time that
    a request may take; 1000 to 600000."""
    set_acl: StrictBool = setting(False, source=KAFKA_BROKER)
    """true: only the proxy's user, which must be the brokers' own, may change the nodes that the
    proxy creates, and read those of users. Use the brokers' value."""

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            missing = "username" if self.username is None else "password"
            raise KeyProblemError(missing, "username and password must be set together")
        if self.sasl and self.username is None:
            problem = f"is required with security.protocol: {self.security_protocol}"
            raise KeyProblemError("username", problem)
        has_identity = self.username is not None or self.ssl_keystore_location is not None
        if self.set_acl and not has_identity:
            raise KeyProblemError("set.acl", "needs username, or a certificate of the proxy")
        return self


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
