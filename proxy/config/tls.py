"""Settings of TLS, under Kafka's names."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from proxy.acl.principals import DEFAULT
from proxy.config.section import KAFKA_BROKER, KAFKA_CLIENT, OWN, KeyProblemError, Section, setting
from proxy.config.values import (
    CipherSuite,
    MappingRules,
    PathValue,
    SecretSource,
    available,
    one_or_list,
)
from proxy.declarations import BeforeValidator, Field, model_validator

_STORE_TYPES = ("JKS", "PKCS12")


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
    """Settings that both sides have in common: own certificate, and trusted certificates.

    The files are checked every second; replaced ones are used without a restart.
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
    """The private key, where it is a separate file (cert-manager, Kubernetes' TLS secrets); null:
    it is in `ssl.keystore.location`."""
    ssl_key_password: SecretSource | None = setting(None, source=KAFKA_BROKER)
    """The password of the private key: `file:PATH` or `env:NAME`; null: the key is not
    encrypted."""
    ssl_truststore_type: Annotated[
        Literal["PEM"], BeforeValidator(available("PEM", later=_STORE_TYPES))
    ] = setting("PEM", source=KAFKA_BROKER)
    """Only PEM is supported; Kafka's default is JKS."""
    ssl_truststore_location: PathValue | None = setting(None, source=KAFKA_BROKER)
    """Certificates of the authorities that the other side's certificate must be issued by. PEM.
    `upstream` without one: those that the system trusts."""
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
        """Refuse settings of TLS, which would be without effect."""
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
    """Security protocol of clients. `PLAINTEXT` and `SSL` are without SASL: there is no login, and
    no session ends. With `PLAINTEXT` every client is `User:ANONYMOUS`; with `SSL` the principal is
    that of the certificate that `ssl.client.auth` demands, and `User:ANONYMOUS` without one."""
    ssl_client_auth: ClientAuth = setting(ClientAuth.NONE, source=KAFKA_BROKER)
    """Demand for a client certificate issued by an authority in `ssl.truststore.location`. With
    `SASL_SSL` it is required in addition to SASL, and the principal is SASL's."""
    ssl_principal_mapping_rules: MappingRules = setting(DEFAULT, source=KAFKA_BROKER)
    """`SSL` only: rules that turn a certificate's subject into its principal (KIP-371).
    `RULE:pattern/replacement/[LU]` or `DEFAULT`, the subject itself; several separated by commas,
    of which the first that matches counts. No match: the connection is closed."""

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
        """Refuse mapping rules that would be without effect."""
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
    """`https`: a broker's certificate must be for the host name connected to. Empty: any trusted
    certificate is accepted."""

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if not self.tls:
            self._check_unused(self.security_protocol)
        self._check_keystore()
        return self


def files_of(settings: TlsSettings) -> tuple[Path, ...]:
    """Return the files that the settings of one side name."""
    password = settings.ssl_key_password
    named = (
        settings.ssl_keystore_location,
        settings.ssl_keystore_key_location,
        settings.ssl_truststore_location,
        None if password is None else password.path,
    )
    return tuple(path for path in named if path is not None)
