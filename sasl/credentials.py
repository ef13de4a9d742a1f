"""SCRAM verifiers: what is stored of a password, and how it is derived.

A verifier (RFC 5802 section 3: salt, iteration count, StoredKey, ServerKey) proves a password
without holding it. Passwords enter this module as arguments and leave it as verifiers.
"""

import hashlib
import hmac
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, Self

from sasl.salts import KAFKAS_FORM, SaltForm, form_of

MIN_ITERATIONS: Final = 4096
"""The least number of iterations: RFC 7677 section 4, and Kafka's
`ScramMechanism.minIterations`."""
MAX_ITERATIONS: Final = 16384
"""The most iterations that AlterUserScramCredentials accepts: Kafka's
`ScramMechanism.maxIterations` (KIP-554)."""
DEFAULT_ITERATIONS: Final = 8192
"""The default number of iterations, as in Kafka's documentation: twice RFC 7677's least."""


class ScramMechanism(Enum):
    """The two SCRAM mechanisms of Kafka; the value is the IANA name."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @classmethod
    def from_code(cls, code: int) -> "ScramMechanism | None":
        """The mechanism with this number in Describe/AlterUserScramCredentials (KIP-554)."""
        return next((mechanism for mechanism in cls if mechanism.code == code), None)

    def __init__(self, iana_name: str) -> None:
        self.hash_name = iana_name.removeprefix("SCRAM-").replace("-", "").lower()
        """The hash function's name for `hashlib` and `hmac`."""
        self._nothing_hashed = hashlib.new(self.hash_name)
        self.key_bytes = self._nothing_hashed.digest_size
        """The length of StoredKey, ServerKey and proofs in bytes."""

    @property
    def code(self) -> int:
        """The number of Kafka's `ScramMechanism.type` (KIP-554): 1 or 2."""
        return 1 if self is ScramMechanism.SCRAM_SHA_256 else 2

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """HMAC(key, str) of RFC 5802 section 2.2."""
        return hmac.digest(key, message, self.hash_name)

    def hash(self, message: bytes) -> bytes:
        """H(str) of RFC 5802 section 2.2."""
        hashed = self._nothing_hashed.copy()  # OpenSSL 3 looks a name up longer than it hashes
        hashed.update(message)
        return hashed.digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Hi(password, salt, i) of RFC 5802 section 2.2.

        The password is taken as plain UTF-8: Kafka's `ScramFormatter.normalize` does not apply
        SASLprep (RFC 4013), and a verifier must fit the proofs of Kafka's clients. A password that
        cannot be UTF-8 (a lone surrogate) raises ValueError.
        """
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


class Shape(NamedTuple):
    """Part of a verifier that anybody who asks for it is shown, but for the salt itself."""

    iterations: int
    salt_form: SaltForm = KAFKAS_FORM


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """A verifier of one user and one mechanism; with it nobody can log in, only guess offline."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    """The hash of the client key, H(ClientKey), against which the client's proof is checked."""
    server_key: bytes = field(repr=False)
    """The key that proves to the client that the server knows the verifier."""
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
        """Derive the verifier of a password; costs `iterations` hashes, milliseconds."""
        salted_password = mechanism.salted_password(password, salt, iterations)
        return cls.from_salted_password(mechanism, salted_password, salt, iterations)

    @classmethod
    def from_salted_password(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> Self:
        """Derive the verifier of what AlterUserScramCredentials carries (KIP-554)."""
        client_key = mechanism.hmac(salted_password, b"Client Key")
        return cls(
            salt=salt,
            stored_key=mechanism.hash(client_key),
            server_key=mechanism.hmac(salted_password, b"Server Key"),
            iterations=iterations,
        )

    def shape(self) -> Shape:
        """Return the part that anybody is shown, but for the salt itself."""
        return Shape(self.iterations, form_of(self.salt))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeShares:
    """Distribution of the shapes of one mechanism's verifiers."""

    shapes: tuple[Shape, ...]
    """The shapes in use, ascending; empty: there are no users."""
    users_up_to: tuple[int, ...]
    """The number of users with each shape or a lower one."""
    longest_salt: int
    """The length in bytes of the longest salt's content; 0: all salts have Kafka's form."""

    @classmethod
    def of(cls, credentials: Iterable[ScramCredential]) -> Self:
        """Take the verifiers of every user."""
        counted = sorted(Counter(map(ScramCredential.shape, credentials)).items())
        return cls(
            shapes=tuple(shape for shape, _ in counted),
            users_up_to=tuple(accumulate(users for _, users in counted)),
            longest_salt=max((shape.salt_form.length for shape, _ in counted), default=0),
        )

    def draw(self, fraction: float, otherwise: Shape) -> Shape:
        """The shape at a `fraction` in [0, 1) of all users; `otherwise`: if there are none.

        Fractions spread evenly make the same distribution as the users have.
        """
        if not self.shapes:
            return otherwise
        user = int(fraction * self.users_up_to[-1])
        return self.shapes[bisect_right(self.users_up_to, user)]


NO_USERS: Final = ShapeShares.of(())


class CredentialSource(Protocol):
    """Source of verifiers: in memory, at once, never a disk or a network."""

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """The user's verifier for this mechanism; None: there is none."""
        ...

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:
        """Return the distribution of this mechanism's shapes, which is made beforehand."""
        ...
