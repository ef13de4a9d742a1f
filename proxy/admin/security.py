"""Login of an admin client; without a `Login` the connection is unauthenticated."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from proxy.admin.files import LARGEST_FILE, read_file
from proxy.errors import ConfigError
from sasl.credentials import ScramMechanism
from sasl.login import ClientExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """User name and password, sent in the clear (RFC 4616): only safe under TLS."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scram:
    """User name and password (RFC 5802)."""

    username: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearer:
    """Bearer token (RFC 7628)."""

    token: str | Path | Callable[[], str] = field(repr=False)
    """The token itself, a file that holds it, or a function that returns a fresh one. File and
    function are read at each authentication, so that a renewed token is used."""

    def current(self) -> str:
        """Return the token to log in with now."""
        match self.token:
            case str(token):
                return token
            case Path() as file:
                return _read_token(file)
            case fresh:
                return fresh()


class Identity(Protocol):
    """Identity that begins a login, each time with its current credentials."""

    async def exchange(self) -> ClientExchange:
        """Begin a login. Raises LoginError."""
        ...


Login = Plain | Scram | OAuthBearer | Identity


def _read_token(file: Path) -> str:
    try:
        return read_file(str(file), file, LARGEST_FILE).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(str(file), "is not text") from None
