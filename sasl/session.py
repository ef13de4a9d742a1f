"""SASL session of one connection (KIP-368): authenticate, re-authenticate, expire.

Security barrier: each state has legal requests. Any other request ends the connection, and no such
request reaches a broker before `Authenticated`.

    state            legal requests                        what follows
    AwaitHandshake   ApiVersions (once), SaslHandshake     Authenticating, or Failed
    Authenticating   SaslAuthenticate, or raw tokens       Authenticated, or Failed
                     after SaslHandshake v0
    Authenticated    everything; once `deadline` has       a SaslHandshake begins a
                     passed, SaslHandshake alone           re-authentication: Authenticating
    Failed           nothing                               the connection is closed

Without SASL (Kafka's PLAINTEXT and SSL), `admit` leads from AwaitHandshake to Authenticated, and
the session has no end, because nothing could renew it.

Time is monotonic seconds and always an argument.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sasl import messages
from sasl.identity import USER_TYPE, Identity, LoginFacts
from sasl.mechanism import (
    MAX_QUOTED_CHARACTERS,
    Challenge,
    Failure,
    FailureReason,
    KeysNeeded,
    Mechanism,
    PasswordCheck,
    Success,
)
from sasl.states import (
    Authenticated,
    Authenticating,
    AwaitHandshake,
    Channel,
    Enforcement,
    State,
    Terms,
    failed,
)

MIN_REAUTHENTICATION_INTERVAL = 1.0
"""Minimum time between two re-authentications in seconds (Kafka's `KafkaChannel`)."""

MAX_SESSION_LIFETIME_MS = 10 * 365 * 24 * 3600 * 1000
"""Maximum lifetime of a session in milliseconds, ten years: a bound on the deadline that a hostile
token, or a typo in the configuration, can cause."""

ALREADY_AUTHENTICATED = "SaslAuthenticate request received after successful authentication"
"""Kafka's message for a SaslAuthenticate without a SaslHandshake before it."""


class Outcome(NamedTuple):
    """Result of a message: the connection's next action. `Session.state` is the new state."""

    reply: bytes | None = None
    """Body of the response, or content of the frame for raw tokens; None for no response."""
    awaits: KeysNeeded | PasswordCheck | None = None
    """Signing keys to fetch, or a password to check, before anything else; then call `resume`.
    None if the message was processed."""
    relay_to: Channel | None = None
    """Connection to the broker for the unchanged frame; pass the answer to
    `RelayedSession.answered` before anything else. None if the frame is not relayed."""
    confirms: bool = False
    """True if the broker must be asked at once whether the exchange is complete
    (`RelayedSession.confirmed`)."""
    is_refusal: bool = False
    """True if a re-authentication is refused, and the session continues."""


NO_REPLY = Outcome()

Admission = Callable[[Identity, LoginFacts, float], FailureReason | None]
"""Function `admits(identity, facts, now)` that returns why valid credentials are refused; None if
they are not."""


def admit_all(_identity: Identity, _facts: LoginFacts, _now: float) -> None:
    """Refuse no client."""


class Session:
    """SASL session of one connection: its state, and all transitions."""

    __slots__ = (
        "_admits",
        "_mechanisms",
        "_pending_token",
        "_reauthentication_began",
        "_terms",
        "state",
    )

    def __init__(
        self,
        mechanisms: Mapping[str, Mechanism],
        terms: Callable[[Identity, str], Terms],
        admits: Admission = admit_all,
    ) -> None:
        """Offer `mechanisms`, by name; `terms(identity, mechanism)` returns the rules of a
        session.

        All are read at each authentication, so they may change in between.
        """
        self._mechanisms = mechanisms
        self._terms = terms
        self._admits = admits
        self._reauthentication_began: float | None = None
        self._pending_token: tuple[int | None, bytes] | None = None
        self.state: State = AwaitHandshake()

    def admit(self, identity: Identity, now: float) -> Authenticated:
        """Accept a client without SASL; its session does not expire."""
        assert isinstance(self.state, AwaitHandshake)
        self.state = Authenticated(
            identity=identity,
            mechanism=None,
            handshake_version=None,
            authenticate_version=None,
            enforcement=Enforcement.OBSERVE,
            authenticated_at=now,
            latency=0.0,
            session_lifetime_ms=0,
            credential_lifetime_ms=None,
            deadline=None,
            killed_after=None,
            reauthentications=0,
        )
        return self.state

    def api_versions_answered(self) -> None:
        """Record that an ApiVersions was answered without an error."""
        if isinstance(self.state, AwaitHandshake):
            self.state = AwaitHandshake(api_versions_answered=True)

    def handshake(self, version: int, body: bytes, now: float) -> Outcome:
        """Process a SaslHandshake request (v0, v1). Raises MalformedMessage for an invalid one in a
        session that may not be renewed now, because Kafka parses it before it rejects it."""
        state = self.state
        if isinstance(state, Authenticating):
            self._fail(FailureReason.ILLEGAL_STATE)
            return Outcome(reply=messages.handshake_response(messages.ILLEGAL_SASL_STATE, ()))
        if isinstance(state, Authenticated) and not self._may_reauthenticate(state, now):
            messages.handshake_mechanism(body)  # only checked
            reply = messages.handshake_response(messages.ILLEGAL_SASL_STATE, ())
            return Outcome(reply=reply, is_refusal=True)
        try:
            name = messages.handshake_mechanism(body)
        except messages.MalformedMessage:
            return self._fail(FailureReason.BAD_MESSAGE)
        if isinstance(state, Authenticated):
            self._reauthentication_began = now
            return self._begin(name, version, now, previous=state)
        return self._begin(name, version, now, previous=None)

    def authenticate(self, version: int, body: bytes, now: float) -> Outcome:
        """Process a SaslAuthenticate request (v0 to v2). Raises MalformedMessage for an invalid one
        in a session."""
        if isinstance(self.state, Authenticated):
            messages.authenticate_token(version, body)  # only checked
            return Outcome(
                reply=messages.authenticate_response(
                    version,
                    error_code=messages.ILLEGAL_SASL_STATE,
                    error_message=ALREADY_AUTHENTICATED,
                )
            )
        try:
            token = messages.authenticate_token(version, body)
        except messages.MalformedMessage:
            return self._fail(FailureReason.BAD_MESSAGE)
        return self._step(version, token, now)

    def raw_token(self, token: bytes, now: float) -> Outcome:
        """Process a token without a request header, as clients send it after SaslHandshake v0."""
        return self._step(None, token, now)

    def resume(self, now: float) -> Outcome:
        """Process the waiting token again, whether or not newer keys were found, or the password
        could be checked."""
        assert self._pending_token is not None
        version, token = self._pending_token
        self._pending_token = None
        return self._step(version, token, now)

    def illegal_request(self) -> None:
        """Record a request that is not legal in this state; the connection answers it and
        closes."""
        self._fail(FailureReason.ILLEGAL_STATE)

    def abandon(self) -> None:
        """Record that the client took too long to authenticate, or disconnected meanwhile."""
        self._fail(FailureReason.TIMEOUT)

    def may_begin_reauthentication(self, now: float) -> bool:
        """Return whether a SaslHandshake would begin a re-authentication now."""
        return isinstance(self.state, Authenticated) and self._may_reauthenticate(self.state, now)

    def _may_reauthenticate(self, state: Authenticated, now: float) -> bool:
        if state.deadline is None:
            return False
        began = self._reauthentication_began
        return began is None or now - began >= MIN_REAUTHENTICATION_INTERVAL

    def _begin(
        self, name: str, version: int, now: float, *, previous: Authenticated | None
    ) -> Outcome:
        mechanism = self._mechanisms.get(name)
        offered = tuple(self._mechanisms)
        if mechanism is None:
            self._fail(FailureReason.UNSUPPORTED_MECHANISM)
            if previous is not None:  # Kafka closes such a re-authentication without a response
                return NO_REPLY
            return Outcome(
                reply=messages.handshake_response(messages.UNSUPPORTED_SASL_MECHANISM, offered)
            )
        same = previous is None or previous.mechanism == name
        self.state = Authenticating(
            mechanism=name,
            handshake_version=version,
            exchange=mechanism.exchange() if same else None,
            started_at=now,
            previous=previous,
        )
        return Outcome(reply=messages.handshake_response(messages.NONE, offered))

    def _step(self, version: int | None, token: bytes, now: float) -> Outcome:
        state = self.state
        if not isinstance(state, Authenticating):
            return self._fail(FailureReason.ILLEGAL_STATE)
        if state.exchange is None:
            return self._fail(FailureReason.MECHANISM_CHANGED)
        step = state.exchange.step(token, now)
        match step:
            case Challenge():
                return _token_reply(version, step.data, 0)
            case KeysNeeded() | PasswordCheck():
                self._pending_token = (version, token)
                return Outcome(awaits=step)
            case Failure():
                return self._refuse(state, version, step)
            case Success():
                return self._succeed(state, version, step, now)

    def _succeed(
        self, state: Authenticating, version: int | None, success: Success, now: float
    ) -> Outcome:
        identity = success.identity
        principal, previous = identity.principal, state.previous
        if previous is not None and previous.principal != principal:
            message = principal_changed(previous.principal, principal)
            changed = Failure(reason=FailureReason.PRINCIPAL_CHANGED, message=message)
            return self._refuse(state, version, changed)
        refused = self._admits(identity, success.facts, now)
        if not success.is_current():  # it changed since the first message
            refused = FailureReason.BAD_CREDENTIALS
        if refused is not None:
            claimed = principal.removeprefix(USER_TYPE)
            return self._refuse(state, version, Failure(reason=refused, claimed=claimed))
        terms = self._terms(identity, state.mechanism)
        credential_ms = remaining_ms(success.credential_deadline, now)
        if credential_ms == 0 and not terms.closes_at_token_expiry:
            claimed = principal.removeprefix(USER_TYPE)
            expired = Failure(reason=FailureReason.EXPIRED, claimed=claimed)
            return self._refuse(state, version, expired)
        lifetime_ms = session_lifetime_ms(terms, credential_ms)
        killed_after_ms = enforced_lifetime_ms(terms, credential_ms)
        self.state = Authenticated(
            identity=identity,
            mechanism=state.mechanism,
            handshake_version=state.handshake_version,
            authenticate_version=version,
            enforcement=terms.enforcement,
            authenticated_at=now,
            latency=now - state.started_at,
            session_lifetime_ms=lifetime_ms,
            credential_lifetime_ms=credential_ms,
            deadline=end_of(lifetime_ms, credential_ms, now),
            killed_after=now + killed_after_ms / 1000 if killed_after_ms else None,
            reauthentications=0 if previous is None else previous.reauthentications + 1,
            facts=success.facts,
            is_current=success.is_current,
        )
        return _token_reply(version, success.data, lifetime_ms)

    def _refuse(self, state: Authenticating, version: int | None, failure: Failure) -> Outcome:
        self._fail(failure.reason, failure.claimed, detail=failure.detail)
        message = failure.message
        if version is None:  # raw tokens have no response for an error
            return NO_REPLY
        if message is None:
            message = invalid_credentials(state)
        return Outcome(
            reply=messages.authenticate_response(
                version, error_code=messages.SASL_AUTHENTICATION_FAILED, error_message=message
            )
        )

    def _fail(
        self, reason: FailureReason, claimed: str | None = None, *, detail: str = ""
    ) -> Outcome:
        self.state = failed(self.state, reason, claimed, detail=detail)
        return NO_REPLY


def session_lifetime_ms(terms: Terms, credential_ms: int | None) -> int:
    """Return the lifetime to announce, in milliseconds; 0 for no limit (KIP-368, KAFKA-13848).

    It is the smaller of `connections.max.reauth.ms` and the remaining lifetime of the credential;
    in `observe` only the latter counts.
    """
    if terms.enforcement is Enforcement.OBSERVE:
        return enforced_lifetime_ms(terms, credential_ms)
    return shortest_ms(terms.max_reauth_ms or None, credential_ms)


def enforced_lifetime_ms(terms: Terms, credential_ms: int | None) -> int:
    """Return the milliseconds after which using the session closes it; 0 for no limit."""
    if terms.enforcement is Enforcement.ENFORCE:
        return session_lifetime_ms(terms, credential_ms)
    return shortest_ms(credential_ms) if terms.enforces_token_expiry else 0


def shortest_ms(*lifetimes_ms: int | None) -> int:
    """Return the shortest lifetime, within bounds; 0 without lifetimes, or if one has ended."""
    given = [each for each in lifetimes_ms if each is not None]
    return min(*given, MAX_SESSION_LIFETIME_MS) if given else 0


def invalid_credentials(state: Authenticating) -> str:
    """Return Kafka's message for a failure without a message of its own."""
    what = "authentication" if state.previous is None else "re-authentication"
    return (
        f"Authentication failed during {what} due to invalid credentials "
        f"with SASL mechanism {state.mechanism}"
    )


def principal_changed(previous: str, principal: str) -> str:
    """Return Kafka's message for a re-authentication as another principal."""
    was, now = (name.replace(":", ".", 1)[:MAX_QUOTED_CHARACTERS] for name in (previous, principal))
    return f"Cannot change principals during re-authentication from {was}: {now}"


def remaining_ms(deadline: float | None, now: float) -> int | None:
    """Return the milliseconds until a credential expires; 0 if it has expired, None if it never
    expires.

    Less than a millisecond is rounded up to 1.
    """
    if deadline is None:
        return None
    return max(1, int((deadline - now) * 1000)) if deadline > now else 0


def end_of(lifetime_ms: int, credential_ms: int | None, now: float) -> float | None:
    """Return the end of a session that begins `now`; None if it has no end."""
    return now + lifetime_ms / 1000 if lifetime_ms or credential_ms == 0 else None


def _token_reply(version: int | None, data: bytes, lifetime_ms: int) -> Outcome:
    if version is None:
        return Outcome(reply=data)
    return Outcome(
        reply=messages.authenticate_response(
            version, auth_bytes=data, session_lifetime_ms=lifetime_ms
        )
    )
