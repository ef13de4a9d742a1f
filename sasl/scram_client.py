"""SCRAM on the client's side: the proxy's login to brokers, and that of tests."""

import hmac
from typing import Final

from sasl import scram_messages as messages
from sasl.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from sasl.scram import auth_message, new_nonce, xor

MAX_SALTED_PASSWORDS: Final = 16
"""Maximum number of cached keys, whatever salts a server sends."""

_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = messages.encode_base64(_GS2_HEADER.encode())


class ScramClientError(Exception):
    """The server broke the protocol, rejected the proof, or did not prove that it knows the
    verifier."""


class SaltedPasswords:
    """Cache of keys that were derived from a password, so that not every login takes the
    iterations.

    Salt and iterations of a server stay the same until the password changes, or differ by node.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes, int], bytes] = {}

    def known(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes | None:
        """Return the cached key; None if there is none."""
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


class ScramClientExchange:
    """Authentication to a server: `first()`, then `final()`, then `verify()`.

    `verify` must be called: only the server's signature shows that it knows the verifier, and did
    not merely accept whatever was sent.
    """

    __slots__ = ("_bare", "_expected", "_mechanism", "_nonce", "_password", "_salted")

    def __init__(
        self,
        *,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        nonce: str | None = None,
        salted: SaltedPasswords | None = None,
    ) -> None:
        """Log in as `username`; `nonce` is for tests that replay a known exchange.

        `salted` holds keys derived in other logins; None to share none.
        """
        self._mechanism = mechanism
        self._password = password
        self._salted = SaltedPasswords() if salted is None else salted
        self._nonce = nonce or new_nonce()
        self._bare = f"n={messages.encode_saslname(username)},r={self._nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def takes_long(self, server_first: bytes) -> bool:
        """Return whether `final` has to derive a key from the password first."""
        server = self._read(server_first)
        known = self._salted.known(self._mechanism, self._password, server.salt, server.iterations)
        return known is None

    def final(self, server_first: bytes) -> bytes:
        """Return the message with the proof, which answers the server's first; see `takes_long`."""
        server, mechanism = self._read(server_first), self._mechanism
        given = mechanism, self._password, server.salt, server.iterations
        salted = self._salted.known(*given) or self._salted.derive(*given)
        without_proof = f"c={_CHANNEL_BINDING},r={server.nonce}"
        signed = auth_message(self._bare, server_first.decode(), without_proof)
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={messages.encode_base64(proof)}".encode()

    def _read(self, server_first: bytes) -> messages.ServerFirst:
        """Parse the server's first message. Raises ScramClientError.

        Iterations must be within Kafka's bounds: with fewer, a false server could guess the
        password from the proof; more would keep a processor busy.
        """
        server = messages.read_server_first(server_first)
        if server is None:
            raise ScramClientError("the server's first message does not parse")
        if not server.nonce.startswith(self._nonce) or server.nonce == self._nonce:
            raise ScramClientError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= server.iterations <= MAX_ITERATIONS:
            raise ScramClientError(f"the server asks for {server.iterations} iterations")
        return server

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature. Raises ScramClientError unless it is valid."""
        signature = messages.read_server_final(server_final)
        if signature is None or self._expected is None:
            raise ScramClientError("the server's last message carries no signature")
        if not hmac.compare_digest(signature, self._expected):
            raise ScramClientError("the server's signature is wrong")
