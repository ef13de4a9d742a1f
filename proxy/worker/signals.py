"""Signals of an identity provider that end sessions, polled by one worker (RFC 8936).

A signal is a security event token (SET, RFC 8417) of the Shared Signals Framework 1.0: CAEP
`session-revoked` and `credential-change`, and RISC `account-disabled`. It becomes an entry of the
block list, which blocks the tokens of its subject that were issued before the event. Rules:

- A SET counts only with the right type, signature, issuer, audience and time of issue. Any other is
  reported to the identity provider with `setErrs`.
- A SET is acknowledged once its entry is in the file. Until then the identity provider sends it
  again; it may also repeat one whose acknowledgement was lost. Nothing changes if the list has an
  entry for the same subject and the same or a later event, so SETs need not be remembered.
- The event's time is that of the identity provider's clock, like `iat` of its tokens, and never
  later than the SET: a wrong one must not block tokens of the future.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import Any, Final
from urllib.parse import urlsplit

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.brokers.token_source import FileTokens
from proxy.config.model import Signals
from proxy.config.values import source_of
from proxy.connection.blocks import PROVEN, BadBlocks, Block, Blocks
from proxy.errors import ProxyError
from proxy.net.identity_provider import Refused, ask, describe_status, failure_of, without_secrets
from proxy.ops.status.session_facts import Condition
from proxy.ops.status.text import duration
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.store.block_file import BlockFile
from proxy.worker.identity_services import KeyService
from sasl.json_web_token import parse_token, verified_claims
from sasl.jwks import KeyCache, KeyMissing, RefreshSchedule
from sasl.jwt_claims import numeric_date
from sasl.mechanism import FailureReason
from sasl.untrusted import fit_for_log, read_object

log = logging.getLogger(__name__)

MAX_EVENTS: Final = 32
"""Maximum number of SETs of one response: verifying them takes a few milliseconds."""
MAX_CHARACTERS: Final = 32_768
"""Maximum length of a SET; usual ones have less than 2,000 characters."""
MAX_ANSWER_BYTES: Final = 2 * MAX_EVENTS * MAX_CHARACTERS
"""Maximum size of a response in bytes."""
CLOCK_SKEW_S: Final = 3_900.0
"""Seconds by which the identity provider's clock may be ahead of this machine's: more than an hour,
since a proxy whose clock is behind must not refuse what other proxies would accept."""
TIMEOUT_S: Final = 30.0
"""Timeout of a request and the storage of its entries in seconds."""
RETRY_MS: Final = 1_000
"""First wait after a failure in milliseconds; it doubles with each further one."""
MAX_RETRY_MS: Final = 60_000
"""Longest wait after a failure in milliseconds."""
MIN_PAUSE_S: Final = 0.1
"""Shortest pause in seconds between two requests, while the identity provider has more signals."""

_TYPES: Final = ("secevent+jwt", "application/secevent+jwt")
"""Values of `typ` (RFC 8417 section 2.3): an access token must not pass for a SET."""
_EVENTS: Final = {
    f"https://schemas.openid.net/secevent/{name}": name.rpartition("/")[2]
    for name in (
        "caep/event-type/session-revoked",
        "caep/event-type/credential-change",
        "risc/event-type/account-disabled",
    )
}
_SUBJECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "iss_sub": {"iss": "issuer", "sub": "subject"},
    "jwt_id": {"iss": "issuer", "jti": "jti"},
    "email": {"email": "principal"},
}
"""Criterion for each member of a subject, by the subject's format (RFC 9493, SSF section 3.5)."""


class BadSignal(ProxyError):
    """A SET is refused."""

    def __init__(self, error: str, description: str) -> None:
        """`error` is a code of RFC 8935 section 2.4."""
        super().__init__(description)
        self.error = error


def entry_of(
    jti: str, token: object, settings: Signals, keys: KeyCache, wall_now: float, now: float
) -> Block | None:
    """Return the entry for a SET; None if it needs no entry. Raises BadSignal.

    `wall_now` is Unix time, `now` monotonic seconds.
    """
    claims = _claims(token, settings, keys, now)
    issued_at = numeric_date(claims, "iat")
    if claims.get("jti") != jti or issued_at is None:
        raise BadSignal("invalid_request", "jti or iat is missing or wrong")
    if issued_at > wall_now + CLOCK_SKEW_S:
        raise BadSignal("invalid_request", "iat is in the future")
    events = claims.get("events")
    if not isinstance(events, dict) or not all(isinstance(one, dict) for one in events.values()):
        raise BadSignal("invalid_request", "events is not an object of objects")
    # A new credential, such as a second passkey, makes no other one invalid
    found = [uri for uri in _EVENTS if uri in events and events[uri].get("change_type") != "create"]
    if not found:
        return None
    # `iat` has whole seconds: tokens of the event's second are blocked
    event_at = max(numeric_date(events[uri], "event_timestamp") or issued_at for uri in found)
    before = min(event_at, issued_at) + 1
    ends_at = before + settings.token_lifetime_ms / 1000
    if ends_at <= wall_now:
        return None
    try:
        return Block(
            issued_before=before,
            ends_at=ends_at,
            reason=_EVENTS[found[0]],
            author=settings.issuer or "",
            **_criteria(claims.get("sub_id")),
        )
    except BadBlocks as bad:
        raise BadSignal("invalid_request", f"the subject is invalid: {bad}") from None


def _claims(token: object, settings: Signals, keys: KeyCache, now: float) -> Mapping[str, Any]:
    """Return the claims of a valid SET of the right issuer for the right audience."""
    if not isinstance(token, str) or len(token) > MAX_CHARACTERS:
        raise BadSignal("invalid_request", f"not a text of at most {MAX_CHARACTERS} characters")
    signed = parse_token(token)
    if signed is FailureReason.FORBIDDEN_ALGORITHM:
        raise BadSignal("authentication_failed", "alg is not supported")
    if isinstance(signed, FailureReason) or str(signed.type).lower() not in _TYPES:
        raise BadSignal("invalid_request", "not a signed token of type secevent+jwt")
    found = verified_claims(signed, keys, now)
    if isinstance(found, KeyMissing):
        raise BadSignal("invalid_key", "no signing key fits")
    if isinstance(found, FailureReason):
        raise BadSignal("authentication_failed", f"the signature is invalid: {found}")
    _, claims = found
    if claims.get("iss") != settings.issuer:
        raise BadSignal("invalid_issuer", "iss is not block.signals.issuer")
    audience = claims.get("aud")
    if settings.audience not in (audience if isinstance(audience, list) else [audience]):
        raise BadSignal("invalid_audience", "aud does not have block.signals.audience")
    return claims


def _criteria(subject: object) -> dict[str, Any]:
    """Return the criteria for a subject, or for the user of a complex one."""
    if isinstance(subject, dict) and subject.get("format") == "complex":
        subject = subject.get("user")
    found = subject if isinstance(subject, dict) else {}
    members = _SUBJECTS.get(str(found.get("format")))
    if members is None:
        raise BadSignal("invalid_request", f"sub_id names no {' or '.join(_SUBJECTS)}")
    given = {name: found.get(member) for member, name in members.items()}
    if not all(isinstance(value, str) and value for value in given.values()):
        raise BadSignal("invalid_request", "a member of sub_id is missing or not a text")
    return {name: f"User:{text}" if name == "principal" else text for name, text in given.items()}


def change_for(entries: Sequence[Block], blocks: Blocks) -> tuple[list[Block], list[str]]:
    """Return the entries to add to a list, and the ids of older ones for the same subjects."""

    def subject(block: Block) -> tuple[object, ...]:
        return (block.author, *(getattr(block, name) for name in PROVEN))

    listed = {subject(one): one for one in blocks.entries.values()}
    added: dict[tuple[object, ...], Block] = {}
    for one in entries:
        known = added.get(subject(one)) or listed.get(subject(one))
        if known is None or (known.issued_before or 0) < (one.issued_before or 0):
            added[subject(one)] = one
    return [*added.values()], [listed[key].id for key in added if key in listed]


class SignalService(RefreshSchedule):
    """Poller of one stream of signals."""

    def __init__(self, settings: config.Config) -> None:
        """Add entries to the block list of `settings`, which has `block.signals.endpoint.url`."""
        super().__init__(RETRY_MS, MAX_RETRY_MS)
        signals = self._settings = settings.block.signals
        keys = source_of(signals.jwks_endpoint_url)
        assert signals.endpoint_url is not None
        assert keys is not None
        self.keys: Final = KeyService(KeyCache(), keys)
        """Service that keeps the signing keys fresh; the caller runs it."""
        self._file = BlockFile(settings)
        self._url = signals.endpoint_url
        self._name = without_secrets(self._url)
        self._tokens = None if signals.token_file is None else FileTokens(signals.token_file)
        self._answers: dict[str, Any] = {}
        """Acknowledgements and errors that the next request takes along."""
        self._polled_at = monotonic()
        # From 0, so that an alert sees the first one
        self._results = Counter(blocked=0, ignored=0, refused=0)
        self._repeats = LogRateLimit()

    async def run(self) -> None:
        """Poll forever."""
        await self.keys.refresh()
        while True:
            await self.poll()
            pause = self.next_refresh(monotonic()) - monotonic()
            jitter = random.uniform(0.5, 1)  # noqa: S311 - no secret
            await asyncio.sleep(max(MIN_PAUSE_S, jitter * pause))

    async def poll(self) -> None:
        """Request signals once, and store their entries; a failure is logged and noted."""
        error = await failure_of(self._poll(), TIMEOUT_S, lambda: [urlsplit(self._url).query])
        if error is not None:
            self.failed(error, monotonic())
            self._repeats.warn(log, f"{self._name}: {error}", monotonic())

    async def _poll(self) -> None:
        answer = await self._request()
        sets = answer.get("sets")
        if not isinstance(sets, dict):
            raise Refused("the response has no object `sets`")
        self._answers = {}
        entries: dict[str, Block | None] = {}
        refused: dict[str, dict[str, str]] = {}
        some = dict(islice(sets.items(), MAX_EVENTS))
        for jti, token in some.items():
            await asyncio.sleep(0)  # clients have a turn
            try:
                now, cache = monotonic(), self.keys.cache
                entries[jti] = entry_of(jti, token, self._settings, cache, time(), now)
            except BadSignal as bad:
                if bad.error != "invalid_key" or await self._has_newest_keys():
                    refused[jti] = {"err": bad.error, "description": str(bad)}
                    text = f"{self._name}: refused, jti {fit_for_log(jti, ())}: {bad}"
                    self._repeats.warn(log, text, monotonic(), cause=str(bad))
        added = [one for one in entries.values() if one is not None]
        if added:
            await asyncio.to_thread(self._file.change, partial(change_for, added))
        self._answers = {"ack": [*entries], "setErrs": refused}
        ignored = len(entries) - len(added)
        self._results.update(blocked=len(added), ignored=ignored, refused=len(refused))
        if len(entries) + len(refused) < len(some):
            raise Refused(f"signing keys are unknown: {self.keys.cache.last_error or 'read again'}")
        self._polled_at = monotonic()
        has_more = bool(some) and answer.get("moreAvailable") is True
        if self.last_error is not None:
            log.info("%s: polled again", self._name)
        self._succeeded(self._polled_at + (0 if has_more else self._settings.poll_ms / 1000))

    async def _request(self) -> Mapping[str, Any]:
        headers = {"Accept": "application/json", "Content-Language": "en"}
        if self._tokens is not None:
            headers["Authorization"] = f"Bearer {await self._tokens.current()}"
        sent = {"maxEvents": MAX_EVENTS, "returnImmediately": True, **self._answers}
        status, body = await ask(
            "POST", self._url, max_bytes=MAX_ANSWER_BYTES, headers=headers, document=sent
        )
        if status != 200:
            raise Refused(describe_status(status))
        if len(body) > MAX_ANSWER_BYTES:
            raise Refused(f"the response has more than {MAX_ANSWER_BYTES} bytes")
        return read_object(body) or {}

    async def _has_newest_keys(self) -> bool:
        """Return whether a signal with an unknown key is to be refused now; it comes again if
        not."""
        cache = self.keys.cache
        if not cache.may_fetch_for_unknown_kid(monotonic()):
            return cache.last_error is None
        await self.keys.refresh()
        return False

    # Reports

    def condition(self) -> Condition:
        """Return the state of the polling, for the status page."""
        state = f"last polled {duration(monotonic() - self._polled_at)} ago"
        if self.last_error is not None:
            state = f"{self.last_error}; {state}"
        return Condition("signals", self._name, state, good=self.last_error is None)

    def collect(self, snapshot: Snapshot) -> None:
        """Add the number of signals, and the time since the last success."""
        for result, number in self._results.items():
            snapshot.count(registry.BLOCK_SIGNALS, number, result)
        snapshot.gauge(registry.BLOCK_SIGNALS_AGE, monotonic() - self._polled_at)
