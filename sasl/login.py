"""Client half of SASL over Kafka's protocol.

SaslHandshake v1, then SaslAuthenticate v0 to v2 (KIP-43, KIP-152, KIP-368). Laws:

- Bytes in, bytes out: the caller sends the request that a `Send` holds, and passes the body of the
  response to `answered`. No sockets, no clock.
- What takes milliseconds (SCRAM's iterations) is left to the caller, as `Derive`.
- Only `LoggedIn` means that both sides are authenticated, as far as the mechanism does that.
- The number of steps is bounded: no server can prolong an exchange.
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
"""First version that SaslAuthenticate follows, not raw tokens (KIP-152)."""
_ERROR_ACKNOWLEDGED: Final = b"\x01"
"""Message of a client whose token was rejected (RFC 7628 section 3.2.3)."""


class LoginError(Exception):
    """The server rejected the login, broke the protocol, or did not prove who it is."""

    def __init__(self, reason: str, error_code: int = NONE) -> None:
        super().__init__(reason)
        self.reason = reason
        """Reason in one line of ASCII, safe to log."""
        self.error_code = error_code
        """Kafka's error code; 0 if the server sent none."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request, and pass the body of its response to `answered`."""

    api_key: int
    api_version: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Derive:
    """Call `work` where it may take milliseconds, and pass its result to `derived`."""

    work: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The login succeeded."""

    session_lifetime_ms: int
    """Lifetime of the session in milliseconds; 0 if it has no end, or in v0, which lacks the
    field."""


Step = Send | Derive | LoggedIn


class ClientExchange(Protocol):
    """Login by one mechanism: the client's counterpart of `sasl.mechanism.Exchange`."""

    @property
    def mechanism(self) -> str:
        """Name of the mechanism in SaslHandshake."""
        ...

    @property
    def secret(self) -> str:
        """Password or token, which no log may contain, even if a server repeats it."""
        ...

    def first(self) -> bytes:
        """Return the client's first message."""
        ...

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Return the next message, or None at the end of the exchange, when the server is
        authenticated as far as the mechanism does that. Raises LoginError."""
        ...


class PlainClient:
    """PLAIN (RFC 4616). It sends the password, so it must be used over TLS only."""

    mechanism: Final = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.secret: Final = password
        self._first = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Return the message with name and password."""
        return self._first

    def step(self, challenge: bytes) -> None:
        """Expect an empty message: the server has nothing to say."""
        if challenge:
            raise LoginError("the server sent a challenge, which PLAIN does not have")


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628)."""

    mechanism: Final = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        self.secret: Final = token
        self._is_refused = False

    def first(self) -> bytes:
        """Return the message with the token."""
        return client_initial_response(self.secret)

    def step(self, challenge: bytes) -> bytes | None:
        """Acknowledge a rejection: the server sends its error code only then."""
        if self._is_refused:
            raise LoginError("the token was refused")
        self._is_refused = bool(challenge)
        return _ERROR_ACKNOWLEDGED if challenge else None


class ScramClient:
    """SCRAM (RFC 5802): both sides prove knowledge of the password without sending it."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        salted: SaltedPasswords | None = None,
    ) -> None:
        """`salted` holds keys derived in other logins of the same user; None to share none."""
        self.mechanism: Final = mechanism.value
        self.secret: Final = password
        self._exchange = ScramClientExchange(
            mechanism=mechanism, username=username, password=password, salted=salted
        )
        self._proof_sent = False

    def first(self) -> bytes:
        """Return the message with name and nonce."""
        return self._exchange.first()

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Return the proof; then check that of the server."""
        try:
            if self._proof_sent:
                self._exchange.verify(challenge)
                return None
            self._proof_sent = True
            if self._exchange.takes_long(challenge):
                return Derive(lambda: self._exchange.final(challenge))
            return self._exchange.final(challenge)
        except ScramClientError as error:
            raise LoginError(str(error)) from None


class Login:
    """Login, or re-authentication on the same connection (KIP-368). See the laws above."""

    def __init__(self, exchange: ClientExchange, highest_version: int) -> None:
        """`highest_version` is that of SaslAuthenticate in the server's ApiVersions; -1 if it has
        none."""
        self._exchange = exchange
        self._version = min(highest_version, SASL_AUTHENTICATE_VERSIONS[-1])
        self._in_handshake = True

    def begin(self) -> Send:
        """Return the SaslHandshake request. Raises LoginError."""
        if self._version < 0:
            raise LoginError("the server does not know SaslAuthenticate")
        return Send(SASL_HANDSHAKE, HANDSHAKE_VERSION, handshake_request(self._exchange.mechanism))

    def answered(self, body: bytes) -> Step:
        """Process the body of the response to the last request. Raises LoginError."""
        try:
            return self._after_handshake(body) if self._in_handshake else self._after_token(body)
        except MalformedMessage:
            raise LoginError("the server's response does not parse") from None

    def derived(self, token: bytes) -> Send:
        """Continue with the result of a `Derive`."""
        return self._send_token(token)

    def _after_handshake(self, body: bytes) -> Send:
        error_code, mechanisms = read_handshake_response(body)
        if error_code == ILLEGAL_SASL_STATE:
            raise LoginError("the server does not ask for a login", error_code)
        if error_code != NONE:
            offered = self._loggable(", ".join(mechanisms)) or "none"
            reason = f"{self._exchange.mechanism} is refused; offered: {offered}"
            raise LoginError(reason, error_code)
        self._in_handshake = False
        return self._send_token(self._exchange.first())

    def _after_token(self, body: bytes) -> Step:
        response = read_authenticate_response(self._version, body)
        if response.error_code != NONE:
            reason = self._loggable(response.error_message) or f"error {response.error_code}"
            raise LoginError(reason, response.error_code)
        following = self._exchange.step(response.auth_bytes)
        if following is None:
            return LoggedIn(max(0, response.session_lifetime_ms))
        return following if isinstance(following, Derive) else self._send_token(following)

    def _loggable(self, text: str) -> str:
        return fit_for_log(text, (self._exchange.secret,))

    def _send_token(self, token: bytes) -> Send:
        body = authenticate_request(self._version, token)
        return Send(SASL_AUTHENTICATE, self._version, body)
