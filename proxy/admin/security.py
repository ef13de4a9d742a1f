"""Identities with which an admin client logs in (`Login`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

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
        ...


Login = Plain | Scram | OAuthBearer | Identity


def _read_token(file: Path) -> str:
    try:
        return read_file(str(file), file, MAX_FILE_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(str(file), "is not UTF-8 text") from None
