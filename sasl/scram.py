"""SCRAM-SHA-256 and SCRAM-SHA-512 on the server's side (RFC 5802, RFC 7677).

Laws of this module:

- An unknown user and a wrong password fail at the second message, with the same words and the same
  hashing work, and the same name is always shown the same salt: nobody can ask who exists.
  (Kafka fails an unknown user at the first message: a deliberate difference.)
- Users who do not exist are shown iterations and the form of a salt (`sasl.salts`) with the
  distribution that both together have for those who do. (When users are added or altered, a few
  names on the edge between two shapes change theirs.)
- The GS2 header is compared with `c=` (RFC 5802 section 6; Kafka does not compare it).
- Channel binding is not offered: `p=…` and `y,,` fail, as in Kafka.
- Nothing that depends on a stored key is compared byte by byte.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, final

from sasl import scram_messages as messages
from sasl.credentials import (
    DEFAULT_ITERATIONS,
    MIN_ITERATIONS,
    CredentialSource,
    ScramMechanism,
    Shape,
)
from sasl.mechanism import Challenge, Failure, FailureReason, Step, Success
from sasl.salts import SaltForm, salt_in
from sasl.scram_messages import ClientFirst, ServerFirst

MIN_FAKE_SECRET_BYTES: Final = 16
_SEED_BYTES: Final = 32
_FRACTION_BITS: Final = 53
"""The number of bits that a float holds exactly."""

AUTHORIZATION_ID_DIFFERS: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""The message of Kafka 4.1 `ScramSaslServer.evaluateResponse`, sent before the look-up."""

_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105  (the name of an extension)
"""The extension that marks a delegation token's login (KIP-48), which is not offered."""


def new_nonce() -> str:
    """A fresh nonce of 144 bits; RFC 5802 wants printable ASCII without a comma."""
    return messages.encode_base64(secrets.token_bytes(18))


class ScramServer:
    """A SCRAM mechanism: shared by all connections of a listener."""

    def __init__(
        self,
        *,
        mechanism: ScramMechanism,
        credentials: CredentialSource,
        fake_secret: bytes,
        fake_iterations: int = DEFAULT_ITERATIONS,
        server_nonce: Callable[[], str] = new_nonce,
    ) -> None:
        """Offer `mechanism` to the users of `credentials`.

        `fake_secret`: at least 16 random bytes, the same for all workers and after a restart;
        whoever knows it can tell which users exist, nothing more.
        `fake_iterations`: the iterations shown for users that do not exist, as long as nobody
        does; best what users are given.
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

    @property
    def name(self) -> str:
        """`SCRAM-SHA-256` or `SCRAM-SHA-512`."""
        return self._name

    def exchange(self) -> "ScramServerExchange":
        """Begin an authentication."""
        return ScramServerExchange(self._mechanism, self._lookup, self._server_nonce)

    def _lookup(self, user: str) -> "_Verifier":
        """The user's verifier, or the fake of a user who does not exist.

        The fake is made for everybody: a user who exists must not be answered sooner.
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
        """The salt and the iterations that a user who does not exist is shown."""
        # keyed BLAKE2 (RFC 7693): made at every login, and a third of what HMAC takes
        subject = f"{self._name}\0{user}".encode()
        keyed = hashlib.blake2b(subject, key=self._salt_key, digest_size=_SEED_BYTES)
        seed = int.from_bytes(keyed.digest())
        shares = self._credentials.shape_shares(self._mechanism)
        # the top bits, which a salt of Kafka's form leaves unused
        fraction = (seed >> 8 * _SEED_BYTES - _FRACTION_BITS) / (1 << _FRACTION_BITS)
        shape = shares.draw(fraction, self._without_users)
        random = self._random(shape.salt_form, subject, shares.longest_salt)
        return salt_in(shape.salt_form, seed, random), shape.iterations

    def _random(self, form: SaltForm, subject: bytes, length: int) -> bytes:
        """Bytes for a salt that has another form than Kafka's; `length`: as the longest one needs.

        Made for every name alike, whatever form it is shown. They differ by the form: a name that
        is shown another one some day must not be shown part of the salt it had.
        """
        if not length:
            return b""
        drawn = f"{form.coding}\0{form.length}\0".encode()
        return hashlib.shake_256(self._random_key + drawn + subject).digest(length)


@final
class _Verifier:
    """Verifier that a client's proof is checked against: a user's, or a fake one."""

    __slots__ = ("exists", "iterations", "salt", "server_key", "stored_key")

    def __init__(
        self, *, salt: bytes, iterations: int, stored_key: bytes, server_key: bytes, exists: bool
    ) -> None:
        self.salt: Final = salt
        self.iterations: Final = iterations
        self.stored_key: Final = stored_key
        self.server_key: Final = server_key
        self.exists: Final = exists
        """True if there is such a user."""


@final
class _AwaitFirst:
    """State before the client's first message."""

    __slots__ = ()


@final
class _AwaitFinal:
    """The client owes a proof."""

    __slots__ = (
        "client_first",
        "nonce",
        "server_first",
        "verifier",
    )

    def __init__(
        self, *, client_first: ClientFirst, server_first: str, nonce: str, verifier: _Verifier
    ) -> None:
        self.client_first: Final = client_first
        self.server_first: Final = server_first
        self.nonce: Final = nonce
        self.verifier: Final = verifier


@final
class _Ended:
    """A success or a failure was returned."""

    __slots__ = ()


_State = _AwaitFirst | _AwaitFinal | _Ended


class ScramServerExchange:
    """One SCRAM authentication; see the laws of `sasl.mechanism`."""

    __slots__ = ("_lookup", "_mechanism", "_server_nonce", "_state")

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Callable[[str], _Verifier],
        server_nonce: Callable[[], str],
    ) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._server_nonce = server_nonce
        self._state: _State = _AwaitFirst()

    def step(self, message: bytes, now: float) -> Step:  # noqa: ARG002  (a password has no clock)
        """Take the client's next message and say what follows."""
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
        if _asks_for_token_authentication(client_first):
            return Failure(reason=FailureReason.BAD_CREDENTIALS)
        verifier = self._lookup(client_first.username)
        nonce = client_first.nonce + self._server_nonce()
        server_first = messages.write_server_first(
            ServerFirst(nonce=nonce, salt=verifier.salt, iterations=verifier.iterations)
        )
        self._state = _AwaitFinal(
            client_first=client_first,
            server_first=server_first,
            nonce=nonce,
            verifier=verifier,
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
            return Failure(reason=FailureReason.BAD_CREDENTIALS)
        signature = self._mechanism.hmac(state.verifier.server_key, signed)
        return Success(
            data=f"v={messages.encode_base64(signature)}".encode(),
            name=state.client_first.username,
            credential_deadline=None,
        )

    def _proves(self, proof: bytes, stored_key: bytes, signed: bytes) -> bool:
        """Return True if the proof yields the stored key (RFC 5802 section 3), in constant time."""
        client_key = xor(proof, self._mechanism.hmac(stored_key, signed))
        return hmac.compare_digest(self._mechanism.hash(client_key), stored_key)


def _asks_for_token_authentication(client_first: ClientFirst) -> bool:
    return any(
        name == _TOKEN_AUTHENTICATION and value.lower() == "true"
        for name, value in client_first.extensions
    )


def auth_message(client_first_bare: str, server_first: str, without_proof: str) -> bytes:
    """AuthMessage of RFC 5802 section 3: what both sides sign."""
    return f"{client_first_bare},{server_first},{without_proof}".encode()


def xor(left: bytes, right: bytes) -> bytes:
    """Bitwise exclusive or of two strings of the same length."""
    number = int.from_bytes(left) ^ int.from_bytes(right)
    return number.to_bytes(len(left))
