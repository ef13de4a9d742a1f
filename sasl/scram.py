"""SCRAM-SHA-256 and SCRAM-SHA-512 on the server's side (RFC 5802, RFC 7677).

Rules of this module:

- A client cannot find out whether a user exists: an unknown user and a wrong password fail at the
  second message, with the same text and after the same hashing, and the salt for a name is always
  the same. (Kafka fails an unknown user at the first message: a deliberate difference.)
- For users who do not exist, iterations and form of the salt (`sasl.salts`) have the same
  distribution as for those who do. (When users are added or altered, the few names at the boundary
  between two shapes change theirs.)
- The GS2 header is compared with `c=` (RFC 5802 section 6; Kafka does not compare it).
- Channel binding is not offered: `p=…` and `y,,` fail, as in Kafka.
- Values that depend on a stored key are compared in constant time.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, final

from sasl import scram_messages as messages
from sasl.credentials import (
    DEFAULT_ITERATIONS,
    MIN_ITERATIONS,
    CredentialSource,
    ScramMechanism,
    Shape,
)
from sasl.identity import USER_TYPE, Identity
from sasl.mechanism import Challenge, Failure, FailureReason, Step, Success
from sasl.salts import SaltForm, salt_in
from sasl.scram_messages import ClientFirst

MIN_FAKE_SECRET_BYTES: Final = 16
_SEED_BYTES: Final = 32
_FRACTION_BITS: Final = 53
"""Number of bits that a float represents exactly."""

AUTHORIZATION_ID_DIFFERS: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""Message of Kafka 4.1 (`ScramSaslServer.evaluateResponse`), sent before the user is looked up."""

_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105  (the name of an extension)
"""Extension that requests a login by delegation token (KIP-48), which is not offered."""


def new_nonce() -> str:
    """Return a random nonce of 144 bits, in printable ASCII without commas (RFC 5802)."""
    return messages.encode_base64(secrets.token_bytes(18))


class ScramServer:
    """SCRAM mechanism, shared by all connections of a listener."""

    def __init__(
        self,
        *,
        mechanism: ScramMechanism,
        credentials: CredentialSource,
        fake_secret: bytes,
        fake_iterations: int = DEFAULT_ITERATIONS,
        server_nonce: Callable[[], str] = new_nonce,
        identity_of: Callable[[str], Identity | None] | None = None,
    ) -> None:
        """Authenticate the users of `credentials` with `mechanism`.

        `fake_secret` is at least 16 random bytes, the same for all workers and after a restart; a
        client that knows it can find out which users exist, and nothing else. `fake_iterations` is
        the number of iterations sent as long as there are no users at all; it should be that of new
        users. `identity_of` returns the identity of a user, or None to reject it. Without it, the
        identity is the principal of that name, without groups.
        """
        if len(fake_secret) < MIN_FAKE_SECRET_BYTES:
            raise ValueError(f"fake_secret needs at least {MIN_FAKE_SECRET_BYTES} bytes")
        if fake_iterations < MIN_ITERATIONS:
            raise ValueError(f"fake_iterations must be at least {MIN_ITERATIONS}")
        self._mechanism = mechanism
        self._name = mechanism.value
        self._credentials = credentials
        self._fake_key = mechanism.hmac(fake_secret, b"key")
        self._salt_key = mechanism.hmac(fake_secret, b"salt")
        self._random_key = mechanism.hmac(fake_secret, b"random")
        self._without_users = Shape(fake_iterations)
        self._server_nonce = server_nonce
        self._identity_of = identity_of

    @property
    def name(self) -> str:
        """`SCRAM-SHA-256` or `SCRAM-SHA-512`."""
        return self._name

    def exchange(self) -> "ScramServerExchange":
        """Begin an authentication."""
        return ScramServerExchange(
            self._mechanism, self._lookup, self._server_nonce, self._identity_of
        )

    def _lookup(self, user: str) -> "_Verifier":
        """Return the user's verifier, or a fake one if the user does not exist.

        The fake is always computed, so that the response time does not reveal whether a user
        exists.
        """
        salt, iterations = self._fake(user)
        found = self._credentials.find(user, self._mechanism)
        if found is None:
            return _Verifier(
                salt=salt,
                iterations=iterations,
                stored_key=self._fake_key,
                server_key=self._fake_key,
                exists=False,
            )
        return _Verifier(
            salt=found.salt,
            iterations=found.iterations,
            stored_key=found.stored_key,
            server_key=found.server_key,
            exists=True,
        )

    def _fake(self, user: str) -> tuple[bytes, int]:
        """Return the salt and the iterations for a user who does not exist."""
        # Keyed BLAKE2 (RFC 7693), which takes a third of the time of HMAC, at every login
        subject = f"{self._name}\0{user}".encode()
        keyed = hashlib.blake2b(subject, key=self._salt_key, digest_size=_SEED_BYTES)
        seed = int.from_bytes(keyed.digest())
        shares = self._credentials.shape_shares(self._mechanism)
        # The top bits, which a salt of Kafka's form does not use
        fraction = (seed >> 8 * _SEED_BYTES - _FRACTION_BITS) / (1 << _FRACTION_BITS)
        shape = shares.draw(fraction, self._without_users)
        random = self._random(shape.salt_form, subject, shares.longest_salt)
        return salt_in(shape.salt_form, seed, random), shape.iterations

    def _random(self, form: SaltForm, subject: bytes, length: int) -> bytes:
        """Return pseudo-random bytes for a salt that has another form than Kafka's.

        `length` is that of the longest form: the bytes are computed for every name alike, so that
        the time does not depend on the form. Their value depends on the form: if the form of a name
        changes, the new salt must have nothing in common with the old one.
        """
        if not length:
            return b""
        drawn = f"{form.coding}\0{form.length}\0".encode()
        return hashlib.shake_256(self._random_key + drawn + subject).digest(length)


@final
class _Verifier:
    """Verifier against which a client's proof is checked: a user's, or a fake one."""

    __slots__ = ("exists", "iterations", "salt", "server_key", "stored_key")

    def __init__(
        self, *, salt: bytes, iterations: int, stored_key: bytes, server_key: bytes, exists: bool
    ) -> None:
        self.salt: Final = salt
        self.iterations: Final = iterations
        self.stored_key: Final = stored_key
        self.server_key: Final = server_key
        self.exists: Final = exists
        """True if the user exists; False for a fake verifier."""


@final
class _AwaitFirst:
    """State before the client's first message."""

    __slots__ = ()


class _AwaitFinal(NamedTuple):
    """State before the client's proof."""

    client_first: ClientFirst
    server_first: str
    nonce: str
    verifier: _Verifier


@final
class _Ended:
    """State after a success or a failure."""

    __slots__ = ()


_State = _AwaitFirst | _AwaitFinal | _Ended


class ScramServerExchange:
    """SCRAM authentication; see the rules of `sasl.mechanism`."""

    __slots__ = ("_identity_of", "_lookup", "_mechanism", "_server_nonce", "_state")

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Callable[[str], _Verifier],
        server_nonce: Callable[[], str],
        identity_of: Callable[[str], Identity | None] | None,
    ) -> None:
        self._mechanism = mechanism
        self._identity_of = identity_of
        self._lookup = lookup
        self._server_nonce = server_nonce
        self._state: _State = _AwaitFirst()

    def step(self, message: bytes, now: float) -> Step:  # noqa: ARG002  (passwords do not expire)
        """Process the client's next message, and return the result."""
        state, self._state = self._state, _Ended()
        match state:
            case _AwaitFirst():
                return self._first(message)
            case _AwaitFinal():
                return self._final(state, message)
            case _Ended():
                return Failure(reason=FailureReason.ILLEGAL_STATE)

    def _first(self, message: bytes) -> Step:
        client_first = messages.read_client_first(message)
        if client_first is None:
            return Failure(reason=FailureReason.BAD_MESSAGE)
        if client_first.authorization_id not in (None, client_first.username):
            return Failure(reason=FailureReason.BAD_CREDENTIALS, message=AUTHORIZATION_ID_DIFFERS)
        if any(
            name == _TOKEN_AUTHENTICATION and value.lower() == "true"
            for name, value in client_first.extensions
        ):
            return Failure(reason=FailureReason.BAD_CREDENTIALS)
        verifier = self._lookup(client_first.username)
        nonce = client_first.nonce + self._server_nonce()
        salt = messages.encode_base64(verifier.salt)
        server_first = f"r={nonce},s={salt},i={verifier.iterations}"
        self._state = _AwaitFinal(
            client_first=client_first, server_first=server_first, nonce=nonce, verifier=verifier
        )
        return Challenge(server_first.encode())

    def _final(self, state: _AwaitFinal, message: bytes) -> Step:
        client_final = messages.read_client_final(message)
        if client_final is None or len(client_final.proof) != self._mechanism.key_bytes:
            return Failure(reason=FailureReason.BAD_MESSAGE)
        gs2_header = messages.encode_base64(state.client_first.gs2_header.encode())
        if client_final.nonce != state.nonce or client_final.channel_binding != gs2_header:
            return Failure(reason=FailureReason.BAD_MESSAGE)
        signed = auth_message(
            state.client_first.bare, state.server_first, client_final.without_proof
        )
        proven = self._proves(client_final.proof, state.verifier.stored_key, signed)
        if not (proven and state.verifier.exists):
            return Failure(
                reason=FailureReason.BAD_CREDENTIALS,
                claimed=state.client_first.username,
                detail="" if state.verifier.exists else "unknown user",
            )
        user: str = state.client_first.username
        identity = (
            Identity(USER_TYPE + user) if self._identity_of is None else self._identity_of(user)
        )
        if identity is None:
            return Failure(reason=FailureReason.NO_PRINCIPAL, claimed=user)
        signature = self._mechanism.hmac(state.verifier.server_key, signed)
        return Success(
            data=f"v={messages.encode_base64(signature)}".encode(),
            identity=identity,
            credential_deadline=None,
            is_current=partial(_is_verifier, self._lookup, user, state.verifier.stored_key),
        )

    def _proves(self, proof: bytes, stored_key: bytes, signed: bytes) -> bool:
        """Return whether the proof yields the stored key (RFC 5802 section 3), in constant time."""
        client_key = xor(proof, self._mechanism.hmac(stored_key, signed))
        return hmac.compare_digest(self._mechanism.hash(client_key), stored_key)


def _is_verifier(lookup: Callable[[str], _Verifier], user: str, stored_key: bytes) -> bool:
    """Return whether a user exists, and has this verifier."""
    found = lookup(user)
    return hmac.compare_digest(found.stored_key, stored_key) and found.exists


def auth_message(client_first_bare: str, server_first: str, without_proof: str) -> bytes:
    """Return the AuthMessage of RFC 5802 section 3, which both sides sign."""
    return f"{client_first_bare},{server_first},{without_proof}".encode()


def xor(left: bytes, right: bytes) -> bytes:
    """Return the bitwise exclusive or of two byte strings of the same length."""
    number = int.from_bytes(left) ^ int.from_bytes(right)
    return number.to_bytes(len(left))
