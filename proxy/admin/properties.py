"""Properties of a Kafka client (`--command-config`): its connection and its login.

Other properties are ignored, as by Kafka's own tools. No error message repeats a value, which may
be a password.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.admin.files import MAX_FILE_BYTES, read_file
from proxy.admin.java_properties import parse_properties
from proxy.admin.security import Login, OAuthBearer, Plain, Scram
from proxy.errors import ConfigError
from sasl.credentials import ScramMechanism

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_MODULE: Final = re.compile(
    r"\s*(?P<name>[\w.]+)\s+(?:required|requisite|sufficient|optional)(?P<options>.*?);\s*", re.S
)
"""Pattern of one login module (`javax.security.auth.login.Configuration`)."""
_OPTION: Final = re.compile(
    r'\s+(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";]+))'
)
_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Connection settings read from a properties file of Kafka's clients."""

    bootstrap_servers: str | None = None
    """Servers, `HOST:PORT` separated by commas; None if the file names none."""
    login: Login | None = None
    """Identity for the SASL login; None if connections are without SASL."""
    ssl_context: ssl.SSLContext | None = None
    """Context of TLS connections; None if connections are without TLS."""
    client_id: str | None = None
    """Client id; None for the default."""
    request_timeout_s: float | None = None
    """Limit of one exchange with a broker in seconds; None for the default."""


def read_client_properties(file: Path) -> ClientSettings:
    """Return the settings in a file, and in the files that it names. Raises ConfigError."""
    try:
        text = read_file("", file, MAX_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError("", "is not UTF-8 text") from None
    return client_settings(parse_properties(text))


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Return the settings that properties mean. Raises ConfigError."""
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError("security.protocol", f"must be one of {', '.join(_PROTOCOLS)}")
    return ClientSettings(
        bootstrap_servers=properties.get("bootstrap.servers"),
        login=_login(properties) if protocol.startswith("SASL_") else None,
        ssl_context=_ssl_context(properties) if protocol.endswith("SSL") else None,
        client_id=properties.get("client.id"),
        request_timeout_s=_seconds(properties, "request.timeout.ms"),
    )


def _ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    from proxy.admin.tls import client_context  # loads much that only TLS needs

    return client_context(properties)


def _seconds(properties: Mapping[str, str], key: str) -> float | None:
    value = properties.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,9}", value.strip()):
        raise ConfigError(key, "must be a positive number of milliseconds")
    return int(value) / 1000


def _login(properties: Mapping[str, str]) -> Login:
    mechanism = properties.get("sasl.mechanism", "").strip()
    if mechanism == "OAUTHBEARER":
        return OAuthBearer(token=_token_file(properties))
    if mechanism == "PLAIN":
        username, password = _user(properties, _PLAIN_MODULE)
        return Plain(username=username, password=password)
    try:
        scram = ScramMechanism(mechanism)
    except ValueError:
        known = ", ".join(("PLAIN", *(one.value for one in ScramMechanism), "OAUTHBEARER"))
        raise ConfigError("sasl.mechanism", f"must be one of {known}") from None
    username, password = _user(properties, _SCRAM_MODULE)
    return Scram(username=username, password=password, mechanism=scram)


def _user(properties: Mapping[str, str], module: str) -> tuple[str, str]:
    options = _jaas_options(properties.get("sasl.jaas.config", ""), module)
    username, password = options.get("username"), options.get("password")
    if not username or not password:
        raise ConfigError("sasl.jaas.config", "must name a username and a password")
    return username, password


def _jaas_options(text: str, name: str) -> dict[str, str]:
    module = _MODULE.fullmatch(text)
    if module is None or module["name"] != name:
        raise ConfigError(
            "sasl.jaas.config", f'must be: {name} required username="…" password="…";'
        )
    options, position, content = {}, 0, module["options"]
    while option := _OPTION.match(content, position):
        quoted = option["quoted"]
        value = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        options[option["name"]] = value
        position = option.end()
    if content[position:].strip():
        raise ConfigError("sasl.jaas.config", 'has an option that is not NAME="VALUE"')
    return options


def _token_file(properties: Mapping[str, str]) -> Path:
    key = "sasl.oauthbearer.token.endpoint.url"
    url = urlsplit(properties.get(key, "").strip())
    if url.scheme != "file" or not url.path.startswith("/"):
        raise ConfigError(key, "must be the file: URL of a file that holds the token")
    return Path(unquote(url.path))
