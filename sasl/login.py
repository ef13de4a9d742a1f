"""Client half of SASL over Kafka's protocol.

SaslHandshake v1, then SaslAuthenticate v0 to v2 (KIP-43, KIP-152, KIP-368). Rules:

- Bytes in, bytes out: the caller sends the request that a `Send` holds, and passes the body of the
  response to `answered`. No sockets, no clock.
- Work of milliseconds (SCRAM's iterations) is left to the caller, as `Derive`.
- Only `LoggedIn` means that both sides are authenticated, if the mechanism authenticates both.
- The number of steps is bounded: no server can prolong an exchange.
- Every fault of the server is a `LoginError`.
"""

import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sasl import messages, scram_messages
from sasl.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from sasl.messages import MalformedMessage
from sasl.scram import auth_message, new_nonce, xor
from sasl.untrusted import fit_for_log

HANDSHAKE_VERSION: Final = 1
"""First version that is followed by SaslAuthenticate and not by raw tokens (KIP-152)."""
_ERROR_ACKNOWLEDGED: Final = b"\x01"
"""Client message that acknowledges the rejection of a token (RFC 7628 section 3.2.3)."""
MAX_SALTED_PASSWORDS: Final = 16
"""Maximum number of cached keys, whatever salts a server sends."""
_GS2_HEADER: Final = "n,,"
_TOKEN_EXTENSION: Final = ",tokenauth=true"  # noqa: S105 - no password
_CHANNEL_BINDING: Final = scram_messages.encode_base64(_GS2_HEADER.encode())


class LoginError(Exception):
    """The server rejected the login, broke the protocol, or did not prove its identity."""

    def __init__(self, reason: str, error_code: int = messages.NONE) -> None:
        super().__init__(reason)
        self.reason = reason
        """Reason in one line of ASCII, safe to log."""
        self.error_code = error_code
        """Kafka's error code; 0 if the server did not send it."""


class Send(NamedTuple):
    """Send a request, and pass the body of its response to `answered`."""

    api_key: int
    api_version: int
    body: bytes


class Derive(NamedTuple):
    """Call `work` where it may take milliseconds, and pass its result to `derived`."""

    work: Callable[[], bytes]


class LoggedIn(NamedTuple):
    """The login succeeded."""

    session_lifetime_ms: int
    """Lifetime of the session in milliseconds; 0 if it has no end, or in v0, which lacks the
    field."""


Step = Send | Derive | LoggedIn


class ClientExchange(Protocol):
    """Login with one mechanism: the client's counterpart of `sasl.mechanism.Exchange`."""

    @property
    def mechanism(self) -> str:
        """Name of the mechanism in SaslHandshake."""

    @property
    def secret(self) -> str:
        """Password or token, which no log may contain, even if a server repeats it."""

    @property
    def expires(self) -> bool:
        """True if the session must have an end: a server that announces none is refused."""

    def first(self) -> bytes:
        """Return the client's first message."""

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Return the next message; None at the end of the exchange, when the server is
        authenticated if the mechanism supports that. Raises LoginError."""


class PlainClient:
    """PLAIN (RFC 4616). It sends the password, so it must be used over TLS only."""

    mechanism: Final = "PLAIN"
    expires: Final = False

    def __init__(self, username: str, password: str) -> None:
        self.secret: Final = password
        self._first = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Return the message with name and password."""
        return self._first

    def step(self, challenge: bytes) -> None:
        """Expect an empty message: PLAIN has no challenge."""
        if challenge:
            raise LoginError("the server sent a challenge, which PLAIN does not have")


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628)."""

    mechanism: Final = "OAUTHBEARER"

    def __init__(self, token: str, *, expires: bool = False) -> None:
        self.secret: Final = token
        self.expires: Final = expires
        self._is_refused = False

    def first(self) -> bytes:
        """Return the message with the token."""
        return messages.client_initial_response(self.secret)

    def step(self, challenge: bytes) -> bytes | None:
        """Acknowledge a rejection: the server sends its error code only then."""
        if self._is_refused:
            raise LoginError("the token was refused")
        self._is_refused = bool(challenge)
        return _ERROR_ACKNOWLEDGED if challenge else None


class SaltedPasswords:
    """Cache of keys that were derived from a password, so that most logins skip the iterations.

    A server's salt and iterations stay the same until the password changes, but may differ between
    nodes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes, int], bytes] = {}

    def known(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes | None:
        """Return the cached key; None if it is not cached."""
        return self._known.get((mechanism.value, password, salt, iterations))

    def derive(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes:
        """Derive the key, which takes milliseconds, and cache it."""
        salted = mechanism.salted_password(password, salt, iterations)
        if len(self._known) >= MAX_SALTED_PASSWORDS:
            self._known.clear()
        self._known[mechanism.value, password, salt, iterations] = salted
        return salted


class ScramClient:
    """SCRAM (RFC 5802): both sides prove knowledge of the password without sending it.

    Only the server's signature at the end proves that it knows the verifier, and did not merely
    accept any message.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        salted: SaltedPasswords | None = None,
        *,
        is_token: bool = False,
        nonce: str | None = None,
    ) -> None:
        """`salted` holds keys derived in other logins of the same user; None to share no keys.

        With `is_token`, the name is the id of a delegation token, and the password its HMAC in
        Base64 (KIP-48). `nonce` is for tests that replay a known exchange.
        """
        self.mechanism: Final = mechanism.value
        self.expires: Final = is_token
        self.secret: Final = password
        self._scram = mechanism
        self._salted = SaltedPasswords() if salted is None else salted
        self._nonce = nonce or new_nonce()
        extension = _TOKEN_EXTENSION if is_token else ""
        self._bare = f"n={scram_messages.encode_saslname(username)},r={self._nonce}{extension}"
        self._expected: bytes | None = None
        """Signature that the server must send; None before the proof."""

    def first(self) -> bytes:
        """Return the message with name and nonce."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def step(self, challenge: bytes) -> bytes | Derive | None:
        """Return the client's proof; in the next step, check the server's."""
        if self._expected is not None:
            self.verify(challenge)
            return None
        server = self._read(challenge)
        known = self._salted.known(self._scram, self.secret, server.salt, server.iterations)
        return Derive(lambda: self.final(challenge)) if known is None else self.final(challenge)

    def final(self, server_first: bytes) -> bytes:
        """Return the message with the proof, which answers the server's first."""
        server, mechanism = self._read(server_first), self._scram
        given = mechanism, self.secret, server.salt, server.iterations
        salted = self._salted.known(*given) or self._salted.derive(*given)
        without_proof = f"c={_CHANNEL_BINDING},r={server.nonce}"
        signed = auth_message(self._bare, server_first.decode(), without_proof)
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={scram_messages.encode_base64(proof)}".encode()

    def _read(self, server_first: bytes) -> scram_messages.ServerFirst:
        """Parse the server's first message. Raises LoginError.

        Iterations must be within Kafka's bounds: with fewer, a false server could guess the
        password from the proof; more would keep a processor busy.
        """
        server = scram_messages.read_server_first(server_first)
        if server is None:
            raise LoginError("the server's first message does not parse")
        if not server.nonce.startswith(self._nonce) or server.nonce == self._nonce:
            raise LoginError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= server.iterations <= MAX_ITERATIONS:
            raise LoginError(f"the server asks for {server.iterations} iterations")
        return server

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature. Raises LoginError unless it is valid."""
        signature = scram_messages.read_server_final(server_final)
        if signature is None or self._expected is None:
            raise LoginError("the server's last message carries no signature")
        if not hmac.compare_digest(signature, self._expected):
            raise LoginError("the server's signature is wrong")


class Login:
    """Login, or re-authentication on the same connection (KIP-368). See the rules above."""

    def __init__(self, exchange: ClientExchange, highest_version: int) -> None:
        """`highest_version` is that of SaslAuthenticate in the server's ApiVersions; -1 if it is
        not listed."""
        self._exchange = exchange
        self._version = min(highest_version, messages.SASL_AUTHENTICATE_VERSIONS[-1])
        self._in_handshake = True

    def begin(self) -> Send:
        """Return the SaslHandshake request. Raises LoginError."""
        if self._version < 0:
            raise LoginError("the server does not know SaslAuthenticate")
        return Send(
            messages.SASL_HANDSHAKE,
            HANDSHAKE_VERSION,
            messages.handshake_request(self._exchange.mechanism),
        )

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
        error_code, mechanisms = messages.read_handshake_response(body)
        if error_code == messages.ILLEGAL_SASL_STATE:
            raise LoginError("the server does not ask for a login", error_code)
        if error_code != messages.NONE:
            offered = self._loggable(", ".join(mechanisms)) or "none"
            reason = f"{self._exchange.mechanism} is refused; offered: {offered}"
            raise LoginError(reason, error_code)
        self._in_handshake = False
        return self._send_token(self._exchange.first())

    def _after_token(self, body: bytes) -> Step:
        response = messages.read_authenticate_response(self._version, body)
        if response.error_code != messages.NONE:
            reason = self._loggable(response.error_message) or f"error {response.error_code}"
            raise LoginError(reason, response.error_code)
        following = self._exchange.step(response.auth_bytes)
        if following is None:
            if self._exchange.expires and response.session_lifetime_ms <= 0:
                raise LoginError("the server considers the token expired, or ignores its expiry")
            return LoggedIn(max(0, response.session_lifetime_ms))
        return following if isinstance(following, Derive) else self._send_token(following)

    def _loggable(self, text: str) -> str:
        return fit_for_log(text, (self._exchange.secret,))

    def _send_token(self, token: bytes) -> Send:
        body = messages.authenticate_request(self._version, token)
        return Send(messages.SASL_AUTHENTICATE, self._version, body)
