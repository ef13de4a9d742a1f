"""SCRAM on the client's side: how the proxy logs in to a broker, and how tests log in to it."""

import hmac
from typing import Final

from sasl import scram_messages as messages
from sasl.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from sasl.scram import auth_message, new_nonce, xor

MAX_REMEMBERED: Final = 16
"""Derived passwords: a server that shows another salt each time shall not fill the memory."""

_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = messages.encode_base64(_GS2_HEADER.encode())


class ScramClientError(Exception):
    """The server refused us, broke the protocol, or does not know our password's verifier."""


class SaltedPasswords:
    """What was derived from a password, so that not each login costs its iterations.

    A server keeps salt and iterations until the password is another, or has one pair per node.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes, int], bytes] = {}

    def known(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes | None:
        """Return what was derived from these before; None: nothing was."""
        return self._known.get((mechanism.value, password, salt, iterations))

    def derive(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes:
        """Derive from these, in milliseconds, and remember."""
        salted = mechanism.salted_password(password, salt, iterations)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[mechanism.value, password, salt, iterations] = salted
        return salted


class ScramClientExchange:
    """One authentication to a server: `first()`, then `final()`, then `verify()`.

    `verify` must be called: only the server's signature tells a real server from one that took
    whatever we sent.
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

        `salted`: what other logins derived; None: this one is alone.
        """
        self._mechanism = mechanism
        self._password = password
        self._salted = SaltedPasswords() if salted is None else salted
        self._nonce = nonce or new_nonce()
        self._bare = f"n={messages.encode_saslname(username)},r={self._nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        """The first message to send."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def takes_long(self, server_first: bytes) -> bool:
        """Whether `final` would derive from the password first."""
        server = self._read(server_first)
        known = self._salted.known(self._mechanism, self._password, server.salt, server.iterations)
        return known is None

    def final(self, server_first: bytes) -> bytes:
        """The proof that answers the server's first message; see `takes_long`."""
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
        """Read the server's first message.

        Iterations are held to Kafka's bounds: fewer would weaken the password (a false server
        could ask for one), more would keep a processor busy.
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
        """Check the server's signature; raises ScramClientError unless it is right."""
        signature = messages.read_server_final(server_final)
        if signature is None or self._expected is None:
            raise ScramClientError("the server's last message carries no signature")
        if not hmac.compare_digest(signature, self._expected):
            raise ScramClientError("the server's signature is wrong")
