"""Identities of an admin client, and properties of a Kafka client (`--command-config`).

Other properties are ignored, as by Kafka's own tools. No error message repeats a value, which may
be a password.
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from proxy.errors import ConfigError
from sasl.credentials import ScramMechanism
from sasl.login import ClientExchange

MAX_FILE_BYTES: Final = 1_048_576
"""Maximum size of a file in bytes: far beyond any token, and any properties file with
certificates."""


def read_file(key: str, file: Path, max_bytes: int) -> bytes:
    """Return a file's content; `max_bytes` bounds the memory that a wrong path can cost.

    Raises ConfigError with this key. It does not name the path, which may be a secret that was
    given in place of a path.
    """
    try:
        with file.open("rb") as source:
            data = source.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(key, f"cannot be read: {error.strerror}") from None
    except ValueError:  # it contains a NUL or a lone surrogate
        raise ConfigError(key, "is not a path") from None
    if len(data) > max_bytes:
        raise ConfigError(key, f"is larger than {max_bytes} bytes")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """User name and password for PLAIN (RFC 4616), which sends them in the clear: use TLS."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scram:
    """User name and password for SCRAM (RFC 5802)."""

    username: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearer:
    """Bearer token for OAUTHBEARER (RFC 7628)."""

    token: str | Path | Callable[[], str] = field(repr=False)
    """The token itself, a file that contains it, or a function that returns it. File and function
    are used at each authentication, so that a renewed token takes effect."""

    def current(self) -> str:
        """Return the current token. Raises ConfigError if its file cannot be read."""
        match self.token:
            case str(token):
                return token
            case Path() as file:
                return _read_token(file)
            case fresh:
                return fresh()


class Identity(Protocol):
    """Identity whose credentials may change between logins."""

    async def exchange(self, host: str = "", /) -> ClientExchange:
        """Return a new exchange at a host with the current credentials. Raises LoginError."""


Login = Plain | Scram | OAuthBearer | Identity


def _read_token(file: Path) -> str:
    try:
        return read_file(str(file), file, MAX_FILE_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(str(file), "is not UTF-8 text") from None


_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\\\\)*(?P<end>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.S)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in the text of a file; the last value of a key counts."""
    properties = {}
    for line in filter(None, _logical_lines(text)):
        separator = _SEPARATOR.search(line)
        key, value = line, ""
        if separator is not None:
            key, value = line[: separator.start("end")], line[separator.end() :]
        properties[_unescaped(key)] = _unescaped(value)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    parts: list[str] = []
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if continues else line)
        if not continues:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    # Java's escapes are UTF-16 code units: a pair is one character, a lone surrogate none
    return _ESCAPE.sub(plain, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    """Servers, `HOST:PORT` separated by commas; None if not set."""
    login: Login | None = None
    """Identity for the SASL login; None if connections are without SASL."""
    ssl_context: ssl.SSLContext | None = None
    """Context of TLS connections; None if connections are without TLS."""
    client_id: str | None = None
    """Client id; None for the default."""
    request_timeout_s: float | None = None
    """Limit of one exchange with a broker in seconds; None for the default."""


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties in a file. Raises ConfigError."""
    try:
        return parse_properties(read_file("", file, MAX_FILE_BYTES).decode())
    except UnicodeDecodeError:
        raise ConfigError("", "is not UTF-8 text") from None


def read_client_properties(file: Path) -> ClientSettings:
    """Return the settings in a file, and in the files that it names. Raises ConfigError."""
    return client_settings(read_properties(file))


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
