"""Settings of the proxy's own login to brokers, under Kafka clients' names."""

from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import unquote, urlsplit

from proxy.config.section import KAFKA_CLIENT, LIBRDKAFKA, KeyProblemError, setting
from proxy.config.tls import UpstreamTls
from proxy.config.values import EndpointUrl, SecretSource, Text
from proxy.declarations import StrictBool, model_validator

_WITH_PASSWORD: Final = ("sasl.username", "sasl.password")
_WITH_CREDENTIALS: Final = (
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
)
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a setting
_OPTIONAL: Final = ("sasl.oauthbearer.scope", "sasl.oauthbearer.header.urlencode")
"""Optional settings of the client credentials grant."""


class UpstreamSasl(UpstreamTls):
    """The proxy's identity towards brokers.

    It is one for all clients: the proxy must be allowed everything that any of them may do. Where
    every listener has `sasl.termination: broker`, clients log in themselves, and the proxy needs
    none.
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
    """OAUTHBEARER: the source of tokens. `file:`, a file that holds one and is read again at each
    login, such as a Kubernetes service account's; `https:` or `http:`, a server that issues one for
    the client credentials below (RFC 6749 section 4.4)."""
    sasl_oauthbearer_client_credentials_client_id: Text | None = setting(None, source=KAFKA_CLIENT)
    """Client id for the client credentials grant."""
    sasl_oauthbearer_client_credentials_client_secret: SecretSource | None = setting(
        None, source=KAFKA_CLIENT
    )
    """Source of the client secret for the client credentials grant: `file:PATH` or `env:NAME`."""
    sasl_oauthbearer_scope: Text | None = setting(None, source=KAFKA_CLIENT)
    """The requested scope; null: the server's own choice."""

    sasl_oauthbearer_header_urlencode: StrictBool | None = setting(None, source=KAFKA_CLIENT)
    """true: id and secret are URL-encoded before they are joined, as RFC 6749 section 2.3.1 wants
    it and many servers do not; null, Kafka's default: they are not."""

    def token_file(self) -> Path | None:
        """Return the file that tokens are read from; None: they come from a server."""
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
        """Refuse settings that would be without effect."""
        for key, value in given.items():
            if value is not None:
                raise KeyProblemError(key, f"has no meaning with {cause}")
