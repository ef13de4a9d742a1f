"""A Kafka client's properties file (`--command-config`): how to reach a broker, and who we are.

What is not about that is passed over, as by Kafka's own tools. No message repeats a value: they
hold passwords.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from proxy.admin.security import Login, OAuthBearer, Scram
from proxy.errors import ConfigError
from sasl.credentials import ScramMechanism

LARGEST_FILE: Final = 1_048_576
"""Bytes: far beyond any properties file; a wrong path must not fill the memory."""

_MODULE: Final = re.compile(
    r"\s*(?P<name>[\w.]+)\s+(?:required|requisite|sufficient|optional)(?P<options>.*?);\s*", re.S
)
"""One login module (`javax.security.auth.login.Configuration`)."""
_OPTION: Final = re.compile(
    r'\s+(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";]+))'
)
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\\\\)*(?P<end>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.S)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What such a file says."""

    bootstrap_servers: str | None = None
    login: Login | None = None
    client_id: str | None = None
    request_timeout_s: float | None = None


def read_client_properties(file: Path) -> ClientSettings:
    """Read a file. Raises ConfigError."""
    try:
        with file.open("rb") as source:
            data = source.read(LARGEST_FILE + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError("", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("", "is not UTF-8 text") from None
    if len(data) > LARGEST_FILE:
        raise ConfigError("", f"is larger than {LARGEST_FILE} bytes")
    return client_settings(parse_properties(text))


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Make sense of properties. Raises ConfigError."""
    return ClientSettings(
        bootstrap_servers=properties.get("bootstrap.servers"),
        login=_login(properties),
        client_id=properties.get("client.id"),
        request_timeout_s=_seconds(properties, "request.timeout.ms"),
    )


def _seconds(properties: Mapping[str, str], key: str) -> float | None:
    value = properties.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,9}", value.strip()):
        raise ConfigError(key, "must be a number of milliseconds above 0")
    return int(value) / 1000


def _login(properties: Mapping[str, str]) -> Login | None:
    match properties.get("security.protocol", "PLAINTEXT").strip().upper():
        case "PLAINTEXT":
            return None
        case "SASL_PLAINTEXT":
            return _sasl(properties)
        case _:
            raise ConfigError("security.protocol", "must be PLAINTEXT or SASL_PLAINTEXT")


def _sasl(properties: Mapping[str, str]) -> Login:
    mechanism = properties.get("sasl.mechanism", "").strip()
    if mechanism == "OAUTHBEARER":
        return OAuthBearer(token=_token_file(properties))
    try:
        scram = ScramMechanism(mechanism)
    except ValueError:
        known = ", ".join((*(one.value for one in ScramMechanism), "OAUTHBEARER"))
        raise ConfigError("sasl.mechanism", f"must be one of {known}") from None
    options = _jaas_options(properties.get("sasl.jaas.config", ""))
    username, password = options.get("username"), options.get("password")
    if not username or not password:
        raise ConfigError("sasl.jaas.config", "must name a username and a password")
    return Scram(username=username, password=password, mechanism=scram)


def _jaas_options(text: str) -> dict[str, str]:
    module = _MODULE.fullmatch(text)
    if module is None or module["name"] != _SCRAM_MODULE:
        raise ConfigError(
            "sasl.jaas.config", f'must read: {_SCRAM_MODULE} required username="…" password="…";'
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


def parse_properties(text: str) -> dict[str, str]:
    """Read `java.util.Properties`: comments, continued lines, escapes; the last of a key wins."""
    properties = {}
    for line in _logical_lines(text):
        separator = _SEPARATOR.search(line)
        key, value = (
            (line, "")
            if separator is None
            else (line[: separator.start("end")], line[separator.end() :])
        )
        properties[_unescaped(key)] = _unescaped(value)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    continued = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not continued and (not line or line[0] in "#!"):
            continue
        continued += line
        if (len(continued) - len(continued.rstrip("\\"))) % 2:
            continued = continued[:-1]
            if continued:
                continue
        yield continued
        continued = ""
    if continued:
        yield continued


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        letter = match[1]
        return chr(int(letter[1:], 16)) if len(letter) == 5 else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(plain, text)
