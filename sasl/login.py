"""Client half of SASL over Kafka's protocol.

SaslHandshake v1, then SaslAuthenticate v0 to v2 (KIP-43, KIP-152, KIP-368). Laws:

- Bytes in, bytes out: whoever has a connection sends what a `Say` holds, and gives `answered` the
  body of the response. No sockets, no clock.
- What takes milliseconds (SCRAM's iterations) is not done but handed out as `Derive`.
- Nothing but `LoggedIn` means that we are in, and that the server is who it should be.
- An exchange ends by itself: no server can keep it going.
- Whatever the server does wrong is a `LoginError`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sasl.credentials import ScramMechanism
from sasl.log_text import fit_for_log
from sasl.messages import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE,
    MalformedMessage,
    authenticate_request,
    handshake_request,
    read_authenticate_response,
    read_handshake_response,
)
from sasl.oauthbearer_messages import client_initial_response
from sasl.scram_client import SaltedPasswords, ScramClientError, ScramClientExchange

HANDSHAKE_VERSION: Final = 1
"""The first version that is followed by SaslAuthenticate and not by raw tokens (KIP-152)."""
_AGREED: Final = b"\x01"
"""The client's message after its token was refused (RFC 7628 section 3.2.3)."""


class LoginError(Exception):
    """The server refused us, broke the protocol, or is not who it should be."""

    def __init__(self, reason: str, error_code: int = NONE) -> None:
        super().__init__(reason)
        self.reason = reason
        """The reason in one line of ASCII that may be logged."""
        self.error_code = error_code
        """Kafka's error code; 0: the server named none."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send a request; its response goes to `answered`."""

    api_key: int
    api_version: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Derive:
    """Call `work` where it may take milliseconds; what it returns goes to `derived`."""

    work: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The server knows us, and we know the server."""

    session_lifetime_ms: int
    """The session's lifetime in milliseconds; 0: it has no end, or v0 has no field for it."""


Step = Say | Derive | LoggedIn


class ClientExchange(Protocol):
    """One login by one mechanism: the client's counterpart of `sasl.mechanism`."""

    @property
    def mechanism(self) -> str:
        """Its name in SaslHandshake."""
        ...

    @property
    def secret(self) -> str:
        """The secret, which a server may repeat and no log may hold."""
        ...

    def first(self) -> bytes:
        """Return the client's first message."""
        ...

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Return the next message; None: logged in, and the server proven. Raises LoginError."""
        ...


class PlainClient:
    """PLAIN (RFC 4616): the password itself, so only where TLS hides it."""

    mechanism: Final = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.secret: Final = password
        self._first = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Name and password."""
        return self._first

    def step(self, challenge: bytes) -> None:
        """Nothing is to come."""
        if challenge:
            raise LoginError("the server goes on where PLAIN ends")


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628): a token."""

    mechanism: Final = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        self.secret: Final = token
        self._is_refused = False

    def first(self) -> bytes:
        """The token."""
        return client_initial_response(self.secret)

    def step(self, challenge: bytes) -> bytes | None:
        """Agree to be refused: the error comes after that."""
        if self._is_refused:
            raise LoginError("the token was refused")
        self._is_refused = bool(challenge)
        return _AGREED if challenge else None


class ScramClient:
    """SCRAM (RFC 5802): both sides prove that they know the password, and neither tells it."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        salted: SaltedPasswords | None = None,
    ) -> None:
        """`salted`: what other logins of the same user derived; None: this one is alone."""
        self.mechanism: Final = mechanism.value
        self.secret: Final = password
        self._exchange = ScramClientExchange(
            mechanism=mechanism, username=username, password=password, salted=salted
        )
        self._proven = False

    def first(self) -> bytes:
        """Name and nonce."""
        return self._exchange.first()

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Prove; then have the server prove."""
        try:
            if self._proven:
                self._exchange.verify(challenge)
                return None
            self._proven = True
            if self._exchange.takes_long(challenge):
                return Derive(lambda: self._exchange.final(challenge))
            return self._exchange.final(challenge)
        except ScramClientError as error:
            raise LoginError(str(error)) from None


class Login:
    """One login, or the next one on the same connection (KIP-368). See the laws above."""

    def __init__(self, exchange: ClientExchange, highest_version: int) -> None:
        """`highest_version`: of SaslAuthenticate, as the server's ApiVersions has it."""
        self._exchange = exchange
        self._version = min(highest_version, SASL_AUTHENTICATE_VERSIONS[-1])
        self._in_handshake = True

    def begin(self) -> Say:
        """Name the mechanism. Raises LoginError."""
        if self._version < 0:
            raise LoginError("the server does not know SaslAuthenticate")
        return Say(SASL_HANDSHAKE, HANDSHAKE_VERSION, handshake_request(self._exchange.mechanism))

    def answered(self, body: bytes) -> Step:
        """Take the response to what was said last. Raises LoginError."""
        try:
            return self._after_handshake(body) if self._in_handshake else self._after_token(body)
        except MalformedMessage:
            raise LoginError("an answer that does not parse") from None

    def derived(self, token: bytes) -> Say:
        """Take what was derived."""
        return self._say(token)

    def _after_handshake(self, body: bytes) -> Say:
        error_code, mechanisms = read_handshake_response(body)
        if error_code == ILLEGAL_SASL_STATE:
            raise LoginError("the server does not ask for a login", error_code)
        if error_code != NONE:
            offered = self._loggable(", ".join(mechanisms)) or "none"
            reason = f"{self._exchange.mechanism} is refused; offered: {offered}"
            raise LoginError(reason, error_code)
        self._in_handshake = False
        return self._say(self._exchange.first())

    def _after_token(self, body: bytes) -> Step:
        response = read_authenticate_response(self._version, body)
        if response.error_code != NONE:
            reason = self._loggable(response.error_message) or f"error {response.error_code}"
            raise LoginError(reason, response.error_code)
        following = self._exchange.step(response.auth_bytes)
        if following is None:
            return LoggedIn(max(0, response.session_lifetime_ms))
        return following if isinstance(following, Derive) else self._say(following)

    def _loggable(self, text: str) -> str:
        return fit_for_log(text, (self._exchange.secret,))

    def _say(self, token: bytes) -> Say:
        body = authenticate_request(self._version, token)
        return Say(SASL_AUTHENTICATE, self._version, body)
