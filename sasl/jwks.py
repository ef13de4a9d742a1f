"""Key set of an identity provider (RFC 7517): its keys, their age, and when to fetch it.

Pure: the caller fetches the document from its file or URL and reports the result. Rules:

- Only a valid document replaces the keys; an invalid one counts as a failed fetch.
- During an outage of the identity provider the keys stay in use for `max_age_ms`; after that,
  tokens are rejected.
- Tokens with unknown key ids are not stored, so they take no memory. Together they cause at most
  one fetch per `UNKNOWN_KID_INTERVAL_SECONDS`. During an outage or an attack, clients with a new
  key wait no longer than that.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sasl.untrusted import read_object

if TYPE_CHECKING:
    from sasl.signatures import PublicKey  # with 8 MiB of cryptography, if there are keys


MAX_DOUBLINGS: Final = 32
"""Maximum number of times that the wait doubles, so that no number overflows."""


class RefreshSchedule:
    """Schedule of fetches: the regular time after a successful one, sooner after a failure."""

    def __init__(self, retry_backoff_ms: int, retry_backoff_max_ms: int) -> None:
        """Wait `retry_backoff_ms` after a failure, twice as long after each further one, and
        `retry_backoff_max_ms` at most."""
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._failures_in_a_row = 0
        self._next_refresh: float | None = None
        self.refresh_failures = 0
        """Number of failed fetches since the start, including those with an invalid result."""
        self.last_error: str | None = None
        """Error of the last fetch; None if it succeeded, and before the first fetch."""

    def _succeeded(self, next_refresh: float) -> None:
        self._failures_in_a_row = 0
        self._next_refresh = next_refresh
        self.last_error = None

    def failed(self, error: str, now: float, *, refused: bool = False) -> None:
        """Record a failed fetch. `refused`: a retry would be refused as well, so it waits for
        `retry_backoff_max_ms`."""
        doublings = min(self._failures_in_a_row, MAX_DOUBLINGS)
        backoff_ms = min(self._retry_backoff_ms * 2**doublings, self._retry_backoff_max_ms)
        if refused:
            backoff_ms = self._retry_backoff_max_ms
        self._failures_in_a_row += 1
        self._next_refresh = now + backoff_ms / 1000
        self.refresh_failures += 1
        self.last_error = error

    def next_refresh(self, now: float) -> float:
        """Return the time of the next fetch in monotonic seconds; `now` if it is overdue."""
        return now if self._next_refresh is None else max(now, self._next_refresh)

    def wants_refresh(self, now: float) -> bool:
        """Return whether a fetch is due."""
        return self.next_refresh(now) <= now


MAX_DOCUMENT_BYTES: Final = 1024 * 1024
"""Maximum size of a document in bytes: a hundred times the size that identity providers publish."""
MAX_KEYS: Final = 256
"""Maximum number of keys in a document: parsing them delays the event loop by some ten
milliseconds."""
MIN_RSA_BITS: Final = 2048
"""Minimum length of an RSA key in bits (RFC 7518 sections 3.3 and 3.5)."""
MAX_RSA_BITS: Final = 8192
"""Maximum length of an RSA key in bits: the time of a verification grows with its square, and
identity providers do not publish longer ones."""
UNKNOWN_KID_INTERVAL_SECONDS: Final = 10.0
"""Minimum time in seconds between two fetches that unknown key ids cause: the default of Kafka's
`sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`."""


class KeyCacheSettings(NamedTuple):
    """Schedule on which keys are fetched; all times are in milliseconds."""

    refresh_ms: int = 3_600_000
    """Time from a successful fetch to the next: `sasl.oauthbearer.jwks.endpoint.refresh.ms`."""
    retry_backoff_ms: int = 100
    """Wait after a failed fetch, which doubles with each further one:
    `sasl.oauthbearer.jwks.endpoint.retry.backoff.ms`."""
    retry_backoff_max_ms: int = 10_000
    """Maximum wait after a failed fetch:
    `sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`."""
    max_age_ms: int = 86_400_000
    """Time for which keys are used after the last successful fetch; Kafka has no such limit."""


class KeyMissing(Enum):
    """Reason why no key was found for a token."""

    NO_KEYS = auto()
    """No key was ever loaded, or all are older than `max_age_ms`; a fetch may help."""
    UNKNOWN_KID = auto()
    """No key of the document has the token's `kid`; a fetch may help."""
    NO_FIT = auto()
    """The key does not fit the algorithm; or the token has no `kid`, and no key or more than one
    fits."""


class KeyCache(RefreshSchedule):
    """Keys of one JWKS; one per worker and listener."""

    def __init__(self, settings: KeyCacheSettings | None = None) -> None:
        self._settings = settings or KeyCacheSettings()
        super().__init__(self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        self._kids: frozenset[str] = frozenset()
        self._by_algorithm: Mapping[str, tuple[PublicKey, ...]] = {}
        self._by_algorithm_and_kid: Mapping[tuple[str, str], PublicKey] = {}
        self.loaded_at: float | None = None
        """Time of the last successful fetch in monotonic seconds; None before the first one."""
        self._tried_at: float | None = None

    @property
    def key_count(self) -> int:
        """Number of keys, including those that are too old to be used."""
        return len({id(key) for keys in self._by_algorithm.values() for key in keys})

    def loaded(self, document: bytes, now: float) -> bool:
        """Replace the keys with those of a fetched document; return False if it is invalid, which
        counts as `failed`."""
        from sasl.signatures import ALGORITHMS

        try:
            keys = _read_document(document)
        except _BadDocumentError as error:
            self.failed(str(error), now)
            return False
        fitting = [
            (name, each)
            for name, algorithm in ALGORITHMS.items()
            for each in keys
            if algorithm.fits(each.key) and (not each.algorithms or name in each.algorithms)
        ]
        self._kids = frozenset(each.kid for each in keys if each.kid is not None)
        self._by_algorithm = {
            name: tuple(each.key for fits, each in fitting if fits == name) for name in ALGORITHMS
        }
        self._by_algorithm_and_kid = {
            (name, each.kid): each.key for name, each in fitting if each.kid is not None
        }
        self.loaded_at = self._tried_at = now
        self._succeeded(now + self._settings.refresh_ms / 1000)
        return True

    def failed(self, error: str, now: float, *, refused: bool = False) -> None:
        """Record a failed fetch; the keys stay. `refused` is that of `RefreshSchedule.failed`."""
        self._tried_at = now
        super().failed(error, now, refused=refused)

    def may_fetch_for_unknown_kid(self, now: float) -> bool:
        """Return whether a token with an unknown key may wait for a fetch ahead of the schedule.

        The answer changes when a fetch ends: tokens that arrive meanwhile wait for the same one, so
        the caller must never run two at a time.
        """
        return self._tried_at is None or now >= self._tried_at + UNKNOWN_KID_INTERVAL_SECONDS

    def age_seconds(self, now: float) -> float | None:
        """Return the seconds since the last successful fetch; None before the first one."""
        return None if self.loaded_at is None else now - self.loaded_at

    def are_usable(self, now: float) -> bool:
        """Return whether there are keys, and they are no older than `max_age_ms`."""
        age = self.age_seconds(now)
        return age is not None and age * 1000 <= self._settings.max_age_ms

    def has(self, key: "PublicKey") -> bool:
        """Return whether the last document that was loaded has a key, however old it is."""
        return any(key == one for keys in self._by_algorithm.values() for one in keys)

    def find(self, algorithm: str, kid: str | None, now: float) -> "PublicKey | KeyMissing":
        """Return the key for a token's `alg` (a name in `sasl.signatures.ALGORITHMS`) and `kid`.

        If a token has no `kid`, exactly one key must fit, as in Kafka.
        """
        if not self.are_usable(now):
            return KeyMissing.NO_KEYS
        if kid is None:
            fitting = self._by_algorithm[algorithm]
            return fitting[0] if len(fitting) == 1 else KeyMissing.NO_FIT
        if kid not in self._kids:
            return KeyMissing.UNKNOWN_KID
        return self._by_algorithm_and_kid.get((algorithm, kid), KeyMissing.NO_FIT)


class _BadDocumentError(Exception):
    """The document is invalid as a whole."""


class _UnusableKeyError(Exception):
    """A key of the document cannot be used."""


class _ListedKey(NamedTuple):
    """Key of a document."""

    kid: str | None
    key: "PublicKey"
    algorithms: tuple[object, ...] = ()
    """The only values of `alg` that it may verify; empty if any that fits its type is allowed, as
    in Kafka, which ignores the `alg` of a key that is listed once."""


def _read_document(document: bytes) -> list[_ListedKey]:
    """Return the usable keys with their ids."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise _BadDocumentError(f"the JWKS is larger than {MAX_DOCUMENT_BYTES} bytes")
    members = read_object(document)
    if members is None:
        raise _BadDocumentError("the JWKS is not a JSON object")
    entries = members.get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise _BadDocumentError(f"the JWKS has no list `keys` of at most {MAX_KEYS} entries")
    usable: list[tuple[str | None, PublicKey, object]] = []
    ignored: list[str] = []
    for number, entry in enumerate(entries):
        try:
            usable.append(_read_key(entry))
        except _UnusableKeyError as error:
            ignored.append(f"key {number}: {error}")
    if not usable:
        why = "; ".join(ignored[:3]) or "`keys` is empty"
        raise _BadDocumentError(f"the JWKS has no usable key: {why}")
    return _merged(usable)


def _merged(usable: list[tuple[str | None, "PublicKey", object]]) -> list[_ListedKey]:
    """Return the keys of entries, which consist of `kid`, key and `alg`. Entries with the same
    `kid` and key are one key, for each `alg` that they list."""
    merged = [_ListedKey(None, key) for kid, key, _ in usable if kid is None]
    by_kid: dict[str, list[tuple[PublicKey, object]]] = {}
    for kid, key, algorithm in usable:
        if kid is not None:
            by_kid.setdefault(kid, []).append((key, algorithm))
    for kid, listed in by_kid.items():
        key = listed[0][0]
        if any(other != key for other, _ in listed):
            raise _BadDocumentError("the JWKS has two different keys with the same kid")
        several = len(listed) > 1
        algorithms = tuple(each for _, each in listed if several and each is not None)
        merged.append(_ListedKey(kid, key, algorithms))
    return merged


_PARAMETERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""Public members of each key type (RFC 7518 section 6, RFC 8037 section 2)."""


def _read_key(entry: object) -> tuple[str | None, "PublicKey", object]:
    """Return the `kid`, the key and the `alg` of an entry."""
    if not isinstance(entry, dict):
        raise _UnusableKeyError("not an object")
    kty, kid = entry.get("kty"), entry.get("kid")
    if not isinstance(kty, str) or kty not in _PARAMETERS:
        raise _UnusableKeyError("kty is not RSA, EC or OKP")
    if kid is not None and not isinstance(kid, str):
        raise _UnusableKeyError("kid is not a string")
    if not _is_for_signatures(entry):
        raise _UnusableKeyError("not for signatures")
    if "d" in entry:
        raise _UnusableKeyError("it is a private key")
    return kid, _public_key(kty, entry), entry.get("alg")


def _is_for_signatures(entry: Mapping[str, Any]) -> bool:
    """Return whether `use` and `key_ops` permit verification (RFC 7517 sections 4.2 and 4.3); both
    are optional."""
    operations = entry.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return False
    return entry.get("use") in (None, "sig")


def _public_key(kty: str, entry: Mapping[str, Any]) -> "PublicKey":
    from sasl.signatures import read_public_key, rsa_bits

    public: dict[str, Any] = {"kty": kty} | {name: entry.get(name) for name in _PARAMETERS[kty]}
    if not all(isinstance(value, str) for value in public.values()):
        raise _UnusableKeyError("a member is missing or not a string")
    key = read_public_key(public)
    if key is None:
        raise _UnusableKeyError("malformed, or of a curve that is not offered")
    bits = rsa_bits(key)
    if bits is not None and not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise _UnusableKeyError(f"RSA with {bits} bits")
    return key
