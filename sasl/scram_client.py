"""SCRAM on the client's side: how the proxy logs in to a broker, and how tests log in to it."""

import hmac
from typing import Final

from sasl import scram_messages as messages
from sasl.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from sasl.scram import auth_message, new_nonce, xor

_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = messages.encode_base64(_GS2_HEADER.encode())


class ScramClientError(Exception):
    """The server refused us, broke the protocol, or does not know our password's verifier."""


class ScramClientExchange:
    """One authentication to a server: `first()`, then `final()`, then `verify()`.

    `verify` must be called: only the server's signature tells a real server from one that took
    whatever we sent.
    """

    __slots__ = ("_bare", "_expected", "_mechanism", "_nonce", "_password")

    def __init__(
        self, *, mechanism: ScramMechanism, username: str, password: str, nonce: str | None = None
    ) -> None:
        """Log in as `username`; `nonce` is for tests that replay a known exchange."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or new_nonce()
        self._bare = f"n={messages.encode_saslname(username)},r={self._nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        """The first message to send."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof that answers the server's first message; costs milliseconds.

        Iterations are held to Kafka's bounds: fewer would weaken the password (a false server
        could ask for one), more would stop the event loop.
        """
        parsed = messages.read_server_first(server_first)
        if parsed is None:
            raise ScramClientError("the server's first message does not parse")
        if not parsed.nonce.startswith(self._nonce) or parsed.nonce == self._nonce:
            raise ScramClientError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= parsed.iterations <= MAX_ITERATIONS:
            raise ScramClientError(f"the server asks for {parsed.iterations} iterations")
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, parsed.salt, parsed.iterations)
        without_proof = f"c={_CHANNEL_BINDING},r={parsed.nonce}"
        signed = auth_message(self._bare, server_first.decode(), without_proof)
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={messages.encode_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature; raises ScramClientError unless it is right."""
        signature = messages.read_server_final(server_final)
        if signature is None or self._expected is None:
            raise ScramClientError("the server's last message carries no signature")
        if not hmac.compare_digest(signature, self._expected):
            raise ScramClientError("the server's signature is wrong")
