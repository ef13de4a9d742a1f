"""Kafka client properties (`--command-config`): how to reach a broker, and the identity.

What is not about that is passed over, as by Kafka's own tools. No message repeats a value: they
hold passwords.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.admin.files import LARGEST_FILE, read_file
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
    login: Login | None = None
    ssl_context: ssl.SSLContext | None = None
    """The context of TLS connections; None: connections are without TLS."""
    client_id: str | None = None
    request_timeout_s: float | None = None


def read_client_properties(file: Path) -> ClientSettings:
    """Read a file, and those that it names for TLS. Raises ConfigError."""
    try:
        text = read_file("", file, LARGEST_FILE).decode()
    except UnicodeDecodeError:
        raise ConfigError("", "is not UTF-8 text") from None
    return client_settings(parse_properties(text))


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Make sense of properties. Raises ConfigError."""
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
    from proxy.admin.tls import client_context  # nobody without TLS pays for it

    return client_context(properties)


def _seconds(properties: Mapping[str, str], key: str) -> float | None:
    value = properties.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,9}", value.strip()):
        raise ConfigError(key, "must be a number of milliseconds above 0")
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
            "sasl.jaas.config", f'must read: {name} required username="…" password="…";'
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
