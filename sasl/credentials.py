"""SCRAM verifiers, which a server stores in place of passwords: derivation and text form.

A verifier (RFC 5802 section 3: salt, iteration count, StoredKey, ServerKey) proves a password
without holding it. Passwords enter this module as arguments and leave it as verifiers.
"""

import base64
import binascii
import hashlib
import hmac
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, Self

from sasl.salts import KAFKAS_FORM, SaltForm, form_of

MIN_ITERATIONS: Final = 4096
"""Minimum number of iterations: RFC 7677 section 4, and Kafka's `ScramMechanism.minIterations`."""
MAX_ITERATIONS: Final = 16384
"""Maximum number of iterations that AlterUserScramCredentials accepts: Kafka's
`ScramMechanism.maxIterations` (KIP-554)."""
MAX_STORED_ITERATIONS: Final = 2**31 - 1
"""Maximum number of iterations: an INT32 in DescribeUserScramCredentials (KIP-554)."""
DEFAULT_ITERATIONS: Final = 8192
"""Default number of iterations, as in Kafka's documentation: twice the minimum of RFC 7677."""
_FORM: Final = re.compile(
    r"salt=([^,=]+={0,2}),stored_key=([^,=]+={0,2}),server_key=([^,=]+={0,2}),iterations=(\d{1,10})",
    re.ASCII,
)
"""Text of a verifier, as Kafka kept it in ZooKeeper (`ScramCredentialUtils`); the first three
values are base64. Verifiers of an old cluster can be imported as they are."""


class ScramMechanism(Enum):
    """SCRAM mechanisms of Kafka, by their IANA names."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @classmethod
    def from_code(cls, code: int) -> "ScramMechanism | None":
        """Return the mechanism with this number in KIP-554's APIs; None for an unknown number."""
        return next((mechanism for mechanism in cls if mechanism.code == code), None)

    def __init__(self, iana_name: str) -> None:
        self.hash_name = iana_name.removeprefix("SCRAM-").replace("-", "").lower()
        """Name of the hash function for `hashlib` and `hmac`."""
        self._empty_hash = hashlib.new(self.hash_name)
        self.key_bytes = self._empty_hash.digest_size
        """Length of StoredKey, ServerKey and proofs, in bytes."""

    @property
    def code(self) -> int:
        """Number in Kafka's `ScramMechanism.type` (KIP-554): 1 or 2."""
        return 1 if self is ScramMechanism.SCRAM_SHA_256 else 2

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """Return HMAC(key, str) of RFC 5802 section 2.2."""
        return hmac.digest(key, message, self.hash_name)

    def hash(self, message: bytes) -> bytes:
        """Return H(str) of RFC 5802 section 2.2."""
        # In OpenSSL 3, looking up a name takes longer than hashing
        hashed = self._empty_hash.copy()
        hashed.update(message)
        return hashed.digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return Hi(password, salt, i) of RFC 5802 section 2.2.

        The password is encoded as UTF-8 without SASLprep (RFC 4013), as in Kafka's
        `ScramFormatter.normalize`: a verifier must fit the proofs of Kafka's clients. Raises
        ValueError for a password that UTF-8 cannot encode (a lone surrogate).
        """
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


class Shape(NamedTuple):
    """Properties of a verifier that are sent to every client that begins to log in as its user."""

    iterations: int
    salt_form: SaltForm = KAFKAS_FORM


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Verifier of one user for one mechanism.

    It is not enough to log in, but enough to guess the password offline.
    """

    salt: bytes
    stored_key: bytes = field(repr=False)
    """Hash of the client key, H(ClientKey), against which the client's proof is checked."""
    server_key: bytes = field(repr=False)
    """Key with which the server proves to the client that it knows the verifier."""
    iterations: int

    def __post_init__(self) -> None:
        if self.iterations < MIN_ITERATIONS:
            raise ValueError(f"iterations must be at least {MIN_ITERATIONS}, not {self.iterations}")
        if not self.salt:
            raise ValueError("the salt must not be empty")
        if not self.stored_key or len(self.stored_key) != len(self.server_key):
            raise ValueError("the stored key and the server key must have the same length")

    @classmethod
    def from_password(
        cls, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> Self:
        """Derive the verifier of a password, which takes milliseconds: `iterations` hashes."""
        salted_password = mechanism.salted_password(password, salt, iterations)
        return cls.from_salted_password(mechanism, salted_password, salt, iterations)

    @classmethod
    def from_salted_password(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> Self:
        """Derive the verifier from the salted password of AlterUserScramCredentials (KIP-554)."""
        client_key = mechanism.hmac(salted_password, b"Client Key")
        return cls(
            salt=salt,
            stored_key=mechanism.hash(client_key),
            server_key=mechanism.hmac(salted_password, b"Server Key"),
            iterations=iterations,
        )

    def shape(self) -> Shape:
        """Return the iterations and the form of the salt."""
        return Shape(self.iterations, form_of(self.salt))


class ShapeShares(NamedTuple):
    """Distribution of the shapes of one mechanism's verifiers."""

    shapes: tuple[Shape, ...]
    """Shapes in use, ascending; empty if there are no users."""
    users_up_to: tuple[int, ...]
    """Number of users with each shape or a lower one."""
    longest_salt: int
    """Length in bytes of the longest salt, decoded if it is base 64; 0 if all have Kafka's form."""

    @classmethod
    def of(cls, credentials: Iterable[ScramCredential]) -> Self:
        """Return the distribution of the verifiers of all users."""
        counted = sorted(Counter(map(ScramCredential.shape, credentials)).items())
        return cls(
            shapes=tuple(shape for shape, _ in counted),
            users_up_to=tuple(accumulate(users for _, users in counted)),
            longest_salt=max((shape.salt_form.length for shape, _ in counted), default=0),
        )

    def draw(self, fraction: float, otherwise: Shape) -> Shape:
        """Return the shape at a `fraction` in [0, 1) of all users; `otherwise` without users.

        Evenly distributed fractions yield the distribution of the users.
        """
        if not self.shapes:
            return otherwise
        user = int(fraction * self.users_up_to[-1])
        return self.shapes[bisect_right(self.users_up_to, user)]


NO_USERS: Final = ShapeShares.of(())


class CredentialSource(Protocol):
    """Source of verifiers in memory: no method waits for a disk or a network."""

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the user's verifier for this mechanism; None if it does not exist."""

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:
        """Return the distribution of this mechanism's shapes, which is computed in advance."""


class NoVerifier(ValueError):
    """The text is not a verifier; the message has the reason and does not quote the text."""


def verifier_text(verifier: ScramCredential) -> str:
    """Return a verifier's text. Keep it secret: it suffices to guess the password offline."""
    keys = (verifier.salt, verifier.stored_key, verifier.server_key)
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in keys)
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key}"
        f",iterations={verifier.iterations}"
    )


def read_verifier(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Parse a verifier's text. Raises NoVerifier."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise NoVerifier("must be salt=…,stored_key=…,server_key=…,iterations=…")
    salt, stored_key, server_key = (_decoded(each) for each in form.groups()[:3])
    if {len(stored_key), len(server_key)} != {mechanism.key_bytes}:
        raise NoVerifier(f"the keys of {mechanism.value} have {mechanism.key_bytes} bytes")
    iterations = int(form[4])
    if iterations > MAX_STORED_ITERATIONS:
        raise NoVerifier(f"iterations must be at most {MAX_STORED_ITERATIONS}")
    try:
        return ScramCredential(
            salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
        )
    except ValueError as error:
        raise NoVerifier(str(error)) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NoVerifier("salt and keys must be base64") from None
