"""SASL session of a connection whose broker authenticates the client (`sasl.termination: broker`).

The counterpart of `sasl.session.Session`: the same states, but each message is relayed and the
broker's answer decides. Rules:

- Only SaslHandshake, SaslAuthenticate and the tokens after SaslHandshake v0 are relayed, one at a
  time: the next message waits for the broker's answer.
- The broker's answers are passed on byte for byte, except for `session_lifetime_ms`. An answer that
  breaks the protocol is a `MalformedMessage`, and ends the connection.
- A raw token of an opaque exchange may be the last one, which brokers do not answer. The next
  message does not wait for an answer then (`is_unconfirmed`).
- A client is authenticated once the broker has accepted it. If the messages do not reveal the end
  of the exchange (`Progress`), the proxy sends the broker a request that it answers only to
  authenticated clients (`confirmed`).
- If the proxy verifies messages of a mechanism as well (`RelaySettings.verifiers`), both sides must
  accept them: a message that the proxy rejects reaches no broker, and the identity that the proxy
  verified counts.
- On a side connection a client is authenticated only if that connection also leads to the broker of
  its requests, as far as brokers identify themselves (`confirms_aside`).
- `observe` changes no message: a lifetime that the broker announces reaches the client, and the
  broker enforces it.
- A session whose token the proxy verified is not used after the token's expiry, in any mode,
  because the token's groups have permissions. With `Terms.enforces_token_expiry` False, this
  applies in `enforce` only.
- A re-authentication goes to the connection on which it can succeed. A broker that announces
  lifetimes itself accepts it on the connection of the requests. Any other broker would refuse it
  there (ILLEGAL_SASL_STATE), so it goes to a side connection. The session then moves to the side
  connection unless the name in the login is known and unchanged, so that the broker always serves
  the client under the identity that it proved last.

Time is monotonic seconds and always an argument.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from sasl import messages
from sasl.identity import Identity, LoginFacts
from sasl.learned import Progress, Reader, reader_of
from sasl.mechanism import (
    Challenge,
    Exchange,
    Failure,
    FailureReason,
    KeysNeeded,
    Mechanism,
    Success,
)
from sasl.messages import MalformedMessage
from sasl.oauthbearer import ERROR_ACKNOWLEDGED
from sasl.session import (
    MIN_REAUTHENTICATION_INTERVAL,
    NO_REPLY,
    Admission,
    Outcome,
    admit_all,
    end_of,
    enforced_lifetime_ms,
    invalid_credentials,
    principal_changed,
    remaining_ms,
    shortest_ms,
)
from sasl.states import (
    Authenticated,
    Authenticating,
    Authenticator,
    AwaitHandshake,
    Channel,
    Enforcement,
    State,
    Terms,
    failed,
)

MAX_MESSAGES: Final = 16
"""Maximum number of tokens of one login: a bound on the work that a client can cause at a broker.
SCRAM needs two, GSSAPI three or four."""
_REFUSALS: Final = {
    messages.UNSUPPORTED_SASL_MECHANISM: FailureReason.UNSUPPORTED_MECHANISM,
    messages.ILLEGAL_SASL_STATE: FailureReason.ILLEGAL_STATE,
}
"""Reasons for failed handshakes, by the broker's error code."""
_MECHANISM: Final = re.compile(r"[A-Z0-9_-]{1,20}")
"""Pattern of a mechanism's name (RFC 4422 section 3.1): it becomes a label of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Settings of relayed logins."""

    mechanisms: tuple[str, ...] = ()
    """Mechanisms that clients may use; empty for all that the broker offers."""
    sub_claim_name: str = "sub"
    """Claim of a token that holds the principal's name."""
    opaque_principal: Callable[[str], str]
    """Function from a description of an opaque principal, e.g. `GSSAPI@192.0.2.1`, to its name with
    its type."""
    verifiers: Mapping[str, Mechanism] = field(default_factory=dict)
    """Mechanisms of one message, by name, that the proxy verifies before the broker does: at most
    OAUTHBEARER. The mapping is read for each message, so it may change."""


class _Asked(NamedTuple):
    """Message that the broker has not answered yet."""

    version: int | None
    """Version of SaslHandshake or SaslAuthenticate; None for a raw token."""
    handshake: str | None
    """Mechanism of a SaslHandshake; None for a token."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grant:
    """Session that the broker's last answer grants, or may grant."""

    identity: Identity
    broker_name: str | None
    """Name in the messages, before mapping rules of the proxy; None if it is unknown."""
    opaque: bool
    terms: Terms
    version: int | None
    broker_ms: int
    """Lifetime that the broker announced, in milliseconds; 0 if it announced no lifetime."""
    credential_ms: int | None
    """Remaining lifetime of the token that the proxy verified, in milliseconds; None if it
    verified no token."""
    at: float
    """Time of the broker's answer, at which the lifetime begins."""
    facts: LoginFacts
    is_current: Callable[[], bool]

    @property
    def lifetime_ms(self) -> int:
        """Lifetime of the session in milliseconds; 0 for no limit."""
        return relayed_lifetime_ms(self.terms, self.broker_ms, self.credential_ms)

    @property
    def killed_after_ms(self) -> int:
        """Lifetime after which using the session closes it, in milliseconds; 0 for no limit."""
        if self.terms.enforcement is Enforcement.ENFORCE:
            return self.lifetime_ms
        return enforced_lifetime_ms(self.terms, self.credential_ms)

    @property
    def announced_ms(self) -> int:
        """Lifetime that the client is sent, in milliseconds."""
        is_observed = self.terms.enforcement is Enforcement.OBSERVE
        return self.broker_ms if is_observed else self.lifetime_ms


@final
class RelayedSession:
    """Session of one connection. The module docstring has its rules."""

    __slots__ = (
        "_admits",
        "_asked",
        "_broker_lifetime_ms",
        "_broker_name",
        "_channel",
        "_messages",
        "_offered",
        "_opaque",
        "_peer",
        "_pending",
        "_reader",
        "_reauthentication_began",
        "_settings",
        "_terms",
        "_unconfirmed",
        "_verified",
        "confirms_aside",
        "moves",
        "state",
    )

    def __init__(
        self,
        settings: RelaySettings,
        terms: Callable[[Identity, str], Terms],
        peer: str,
        admits: Admission = admit_all,
    ) -> None:
        """`terms(identity, mechanism)` returns the rules of a session; `peer` is the client's
        address."""
        self._settings = settings
        self._terms = terms
        self._admits = admits
        self._peer = peer
        self._asked: _Asked | None = None
        self._reader: Reader | None = None
        """Reader of the exchange under way; None without an exchange, or if a re-authentication
        chose another mechanism."""
        self._pending: tuple[Exchange, int | None, bytes] | None = None
        """Message whose verification waits for signing keys; None if no message waits."""
        self._verified: Success | None = None
        """Success of the proxy's own verification of the last message; None without it."""
        self._channel = Channel.MAIN
        """Connection of the login under way."""
        self._messages = 0
        self._unconfirmed: _Grant | None = None
        """Session that the exchange grants if it is complete; None if it cannot be complete yet."""
        self._offered: tuple[str, ...] = ()
        """Mechanisms in the broker's last SaslHandshake response."""
        self._broker_lifetime_ms = 0
        """Lifetime that the broker announced last, in milliseconds; 0 if it announced no lifetime.
        """
        self._broker_name: str | None = None
        """Name in the login of the connection of the requests; None if it is unknown."""
        self._opaque = False
        """True if the principal of the session is opaque."""
        self._reauthentication_began: float | None = None
        self.confirms_aside = False
        """True if a login on a side connection counts only once it was `confirmed` that the
        connection leads to the broker of the requests."""
        self.moves = False
        """True if requests must move to the connection of the last login once those in flight are
        answered."""
        self.state: State = AwaitHandshake()

    # Messages of the client

    def api_versions_answered(self) -> None:
        """Record that an ApiVersions was answered without an error."""
        if isinstance(self.state, AwaitHandshake):
            self.state = AwaitHandshake(api_versions_answered=True)

    def handshake(self, version: int, body: bytes, now: float) -> Outcome:
        """Process a SaslHandshake request (v0, v1). Raises MalformedMessage for an invalid one in a
        session."""
        state = self.state
        try:
            name = messages.handshake_mechanism(body)
        except MalformedMessage:
            if isinstance(state, Authenticated):
                raise
            return self._fail(FailureReason.BAD_MESSAGE)
        if isinstance(state, Authenticated):
            if self._renews_aside(state):
                return self._renew_aside(state, name, version, now)
        elif self._settings.mechanisms and name not in self._settings.mechanisms:
            self._fail(FailureReason.UNSUPPORTED_MECHANISM)
            return Outcome(
                reply=messages.handshake_response(
                    messages.UNSUPPORTED_SASL_MECHANISM, self._settings.mechanisms
                )
            )
        if isinstance(state, Authenticating) and self._reader is None:
            return self._fail(FailureReason.MECHANISM_CHANGED)
        channel = self._channel if isinstance(state, Authenticating) else Channel.MAIN
        return self._relay(version, name, now, channel)

    def authenticate(self, version: int, body: bytes, now: float) -> Outcome:
        """Process a SaslAuthenticate request (v0 to v2). Raises MalformedMessage for an invalid one
        in a session."""
        if isinstance(self.state, Authenticated):
            messages.authenticate_token(version, body)  # only checked: the broker refuses it
            return self._relay(version, None, now, Channel.MAIN)
        try:
            token = messages.authenticate_token(version, body)
        except MalformedMessage:
            return self._fail(FailureReason.BAD_MESSAGE)
        return self._token(version, token, now)

    def raw_token(self, token: bytes, now: float) -> Outcome:
        """Process a token without a request header, as clients send it after SaslHandshake v0."""
        return self._token(None, token, now)

    def resume(self, now: float) -> Outcome:
        """Verify the waiting message again after a fetch of keys, successful or not."""
        assert self._pending is not None
        exchange, version, token = self._pending
        self._pending = None
        return self._verify(exchange, version, token, now)

    def illegal_request(self) -> None:
        """Record a request that is not legal in this state; the connection closes."""
        self._fail(FailureReason.ILLEGAL_STATE)

    def abandon(self, reason: FailureReason = FailureReason.TIMEOUT) -> None:
        """Record that a login cannot complete: it took too long, or the broker is gone."""
        self._fail(reason)

    @property
    def is_awaited(self) -> bool:
        """True if a login is under way on the connection of the requests."""
        under_way = self._asked is not None or isinstance(self.state, Authenticating)
        return under_way and self._channel is Channel.MAIN

    @property
    def closed_reason(self) -> FailureReason:
        """Reason of a login whose connection the broker closed: it refuses raw tokens like that,
        and answers all other messages before it closes."""
        refuses = isinstance(self.state, Authenticating) and self.state.raw
        return FailureReason.REFUSED_BY_BROKER if refuses else FailureReason.BROKER_UNAVAILABLE

    @property
    def is_unconfirmed(self) -> bool:
        """True if the exchange may be complete, which `confirmed` decides; the broker may then
        leave the message that was relayed last without an answer."""
        return self._unconfirmed is not None

    def may_begin_reauthentication(self, now: float) -> bool:
        """Return whether a SaslHandshake may begin a re-authentication now."""
        state = self.state
        if not isinstance(state, Authenticated):
            return False
        return not self._renews_aside(state) or self._may_renew_aside(now)

    # Answers of the broker

    def answered(self, body: bytes, now: float) -> Outcome:
        """Process the body of the broker's answer to the message that was relayed.

        Raises MalformedMessage if the body is not a valid answer to that message.
        """
        asked, self._asked = self._asked, None
        assert asked is not None
        if asked.handshake is not None:
            return self._handshake_answered(asked.handshake, asked, body)
        if asked.version is None:
            return self._accepted(None, body, None, body, now)
        response = messages.read_whole_authenticate_response(asked.version, body)
        if isinstance(self.state, Authenticated):
            if response.error_code == messages.NONE:
                raise MalformedMessage  # there was no SaslHandshake
            return Outcome(reply=body)
        if response.error_code != messages.NONE:
            self._fail(FailureReason.REFUSED_BY_BROKER)
            return Outcome(reply=body)
        return self._accepted(asked.version, response.auth_bytes, response, body, now)

    def moved(self) -> None:
        """Record that requests use the connection of the last login."""
        self.moves = False

    def confirmed(self, error_code: int, now: float) -> Outcome:
        """Process the answer to a request that the broker answers only to authenticated clients."""
        state, grant = self.state, self._unconfirmed
        assert isinstance(state, Authenticating)
        assert grant is not None
        if error_code != messages.NONE:
            return self._fail(FailureReason.REFUSED_BY_BROKER)
        refused = self._admits(grant.identity, grant.facts, now)
        if refused is not None:
            return self._fail(refused)
        self._succeed(state, grant, now)
        return NO_REPLY

    # Handshakes

    def _renews_aside(self, state: Authenticated) -> bool:
        """Return whether a re-authentication needs a side connection."""
        return (
            state.deadline is not None
            and not self._broker_lifetime_ms
            and state.enforcement is not Enforcement.OBSERVE
        )

    def _may_renew_aside(self, now: float) -> bool:
        began = self._reauthentication_began
        return began is None or now - began >= MIN_REAUTHENTICATION_INTERVAL

    def _renew_aside(self, state: Authenticated, name: str, version: int, now: float) -> Outcome:
        """Begin a re-authentication on a side connection. It is a first login for the broker, so
        the checks of a re-authentication are made here (KIP-368)."""
        if not self._may_renew_aside(now):
            reply = messages.handshake_response(messages.ILLEGAL_SASL_STATE, ())
            return Outcome(reply=reply, is_refusal=True)
        self._reauthentication_began = now
        if name == state.mechanism:
            return self._relay(version, name, now, Channel.SIDE)
        if name not in self._offered:
            return self._fail(FailureReason.UNSUPPORTED_MECHANISM)
        self._reader = None
        self.state = _authenticating(name, version, now, state)
        return Outcome(reply=messages.handshake_response(messages.NONE, self._offered))

    def _handshake_answered(self, name: str, asked: _Asked, body: bytes) -> Outcome:
        error_code, offered = messages.read_handshake_response(body)
        state = self.state
        if error_code != messages.NONE:
            if isinstance(state, Authenticated) and self._channel is Channel.MAIN:
                # the session continues, or the broker closes
                return Outcome(reply=body, is_refusal=error_code == messages.ILLEGAL_SASL_STATE)
            self._fail(_REFUSALS.get(error_code, FailureReason.REFUSED_BY_BROKER))
            return Outcome(reply=body)
        if isinstance(state, Authenticating) or name not in offered:
            raise MalformedMessage
        if _MECHANISM.fullmatch(name) is None or asked.version is None:
            raise MalformedMessage
        previous = state if isinstance(state, Authenticated) else None
        self._offered = offered
        self._messages = 0
        same = previous is None or previous.mechanism == name
        self._reader = reader_of(name, self._settings.sub_claim_name) if same else None
        self.state = _authenticating(name, asked.version, asked.at, previous)
        return Outcome(reply=body)

    # Tokens

    def _token(self, version: int | None, token: bytes, now: float) -> Outcome:
        if not isinstance(self.state, Authenticating):
            return self._fail(FailureReason.ILLEGAL_STATE)
        if self._reader is None:
            return self._fail(FailureReason.MECHANISM_CHANGED)
        self._messages += 1
        if self._messages > MAX_MESSAGES or self._asked is not None:
            return self._fail(FailureReason.ILLEGAL_STATE)
        self._unconfirmed = self._verified = None
        self._reader.heard(token)
        verifier = self._settings.verifiers.get(self.state.mechanism)
        if verifier is not None and token != ERROR_ACKNOWLEDGED:
            return self._verify(verifier.exchange(), version, token, now)
        if version is None and self._reader.is_opaque:
            self._unconfirmed = self._grant(self.state, self._reader, None, 0, now)
        return self._relay(version, None, now, self._channel)

    def _verify(self, exchange: Exchange, version: int | None, token: bytes, now: float) -> Outcome:
        """Verify a message, and relay or refuse it; it may have to wait for signing keys."""
        state = self.state
        if not isinstance(state, Authenticating):  # ended while it waited for keys
            return self._fail(FailureReason.ILLEGAL_STATE)
        step = exchange.step(token, now)
        if isinstance(step, KeysNeeded):
            self._pending = exchange, version, token
            return Outcome(awaits=step)
        if isinstance(step, Challenge):  # rejected; the reason follows the acknowledgement
            step = exchange.step(ERROR_ACKNOWLEDGED, now)
        if isinstance(step, Success):
            expired = remaining_ms(step.credential_deadline, now) == 0
            terms = self._terms(step.identity, state.mechanism)
            refused = self._admits(step.identity, step.facts, now)
            if expired and not terms.closes_at_token_expiry:
                refused = FailureReason.EXPIRED
            if refused is None:
                self._verified = step
                return self._relay(version, None, now, self._channel)
            step = Failure(reason=refused)
        assert isinstance(step, Failure)
        message = step.message or invalid_credentials(state)
        return self._refuse(step.reason, version, message, step.detail)

    def _relay(
        self, version: int | None, handshake: str | None, now: float, channel: Channel
    ) -> Outcome:
        self._channel = channel
        self._asked = _Asked(version, handshake, now)
        return Outcome(relay_to=channel)

    def _accepted(
        self,
        version: int | None,
        data: bytes,
        response: messages.AuthenticateResponse | None,
        body: bytes,
        now: float,
    ) -> Outcome:
        """Process a broker's answer without an error code; raw tokens have no `response`."""
        state, reader = self.state, self._reader
        assert isinstance(state, Authenticating)
        assert reader is not None
        broker_ms = 0 if response is None else response.session_lifetime_ms
        progress = reader.answered(data)
        if progress is Progress.REFUSED:
            self._fail(FailureReason.REFUSED_BY_BROKER)
            return Outcome(reply=body)
        if progress is Progress.CONTINUES:
            if broker_ms:
                raise MalformedMessage  # a lifetime before the end of the login
            return Outcome(reply=body)
        if self._verified is None and state.mechanism in self._settings.verifiers:
            message = invalid_credentials(state)  # the broker accepted an unverified message
            return self._refuse(FailureReason.BAD_CREDENTIALS, version, message)
        grant = self._grant(state, reader, version, broker_ms, now)
        if self._changes_principal(state, grant):
            assert state.previous is not None
            message = principal_changed(state.previous.principal, grant.identity.principal)
            return self._refuse(FailureReason.PRINCIPAL_CHANGED, version, message)
        refused = self._admits(grant.identity, grant.facts, now)
        if refused is not None:
            return self._refuse(refused, version, invalid_credentials(state))
        is_complete = progress is Progress.COMPLETE or broker_ms > 0
        if is_complete and not (self.confirms_aside and self._channel is Channel.SIDE):
            self._succeed(state, grant, now)
        else:
            self._unconfirmed = grant
        is_final = is_complete or progress is Progress.FINAL
        confirms = self._unconfirmed is not None and is_final
        if response is not None and version and grant.announced_ms != broker_ms:
            body = messages.with_lifetime(body, response.lifetime_at, grant.announced_ms)
        return Outcome(reply=body, confirms=confirms)

    def _grant(
        self, state: Authenticating, reader: Reader, version: int | None, broker_ms: int, now: float
    ) -> _Grant:
        verified, credential_ms = self._verified, None
        if verified is not None:
            identity = verified.identity
            credential_ms = remaining_ms(verified.credential_deadline, now)
        elif reader.name is not None:
            identity = Identity(f"User:{reader.name}")
        else:
            description = f"{state.mechanism}@{reader.description or self._peer}"
            identity = Identity(self._settings.opaque_principal(description))
        return _Grant(
            identity=identity,
            broker_name=reader.name,
            opaque=verified is None and reader.name is None,
            terms=self._terms(identity, state.mechanism),
            version=version,
            broker_ms=broker_ms,
            credential_ms=credential_ms,
            at=now,
            facts=reader.facts if verified is None else verified.facts,
            is_current=(lambda: True) if verified is None else verified.is_current,
        )

    def _changes_principal(self, state: Authenticating, grant: _Grant) -> bool:
        """Return whether a re-authentication presented another principal (KIP-368). For opaque
        principals that is unknown, and the connection of the last login counts."""
        if state.previous is None or self._opaque:
            return False
        return grant.opaque or grant.identity.principal != state.previous.principal

    def _refuse(
        self, reason: FailureReason, version: int | None, message: str, detail: str = ""
    ) -> Outcome:
        """Refuse a login with a response of the proxy's own."""
        self._fail(reason, detail)
        if version is None:  # raw tokens have no response for an error
            return NO_REPLY
        return Outcome(
            reply=messages.authenticate_response(
                version, error_code=messages.SASL_AUTHENTICATION_FAILED, error_message=message
            )
        )

    def _succeed(self, state: Authenticating, grant: _Grant, now: float) -> None:
        previous = state.previous
        is_aside = self._channel is Channel.SIDE
        same = grant.broker_name is not None and grant.broker_name == self._broker_name
        self.moves = is_aside and not same
        self._opaque, self._broker_name = grant.opaque, grant.broker_name
        self._broker_lifetime_ms = 0 if is_aside and same else grant.broker_ms
        self._asked = self._reader = self._unconfirmed = self._verified = None
        lifetime_ms, killed_after_ms = grant.lifetime_ms, grant.killed_after_ms
        self.state = Authenticated(
            identity=grant.identity,
            mechanism=state.mechanism,
            handshake_version=state.handshake_version,
            authenticate_version=grant.version,
            enforcement=grant.terms.enforcement,
            authenticated_at=grant.at,
            latency=now - state.started_at,
            session_lifetime_ms=lifetime_ms,
            announced_lifetime_ms=grant.announced_ms,
            credential_lifetime_ms=grant.credential_ms,
            deadline=end_of(lifetime_ms, grant.credential_ms, grant.at),
            killed_after=grant.at + killed_after_ms / 1000 if killed_after_ms else None,
            reauthentications=0 if previous is None else previous.reauthentications + 1,
            authenticator=Authenticator.BROKER,
            facts=grant.facts,
            is_current=grant.is_current,
        )

    def _fail(self, reason: FailureReason, detail: str = "") -> Outcome:
        claimed = None if self._reader is None else self._reader.name
        self._asked = self._reader = self._unconfirmed = self._verified = None
        self.state = failed(self.state, reason, claimed, detail=detail)
        return NO_REPLY


def relayed_lifetime_ms(terms: Terms, broker_ms: int, credential_ms: int | None = None) -> int:
    """Return the lifetime of a session, in milliseconds; 0 for no limit.

    It is the smallest of `connections.max.reauth.ms`, the lifetime that the broker announced, and
    the remaining lifetime of a token that the proxy verified (None if it verified no token). In
    `observe` only the last of these counts.
    """
    if terms.enforcement is Enforcement.OBSERVE:
        return enforced_lifetime_ms(terms, credential_ms)
    return shortest_ms(terms.max_reauth_ms or None, broker_ms or None, credential_ms)


def _authenticating(
    mechanism: str, version: int, started_at: float, previous: Authenticated | None
) -> Authenticating:
    return Authenticating(
        mechanism=mechanism,
        handshake_version=version,
        exchange=None,
        started_at=started_at,
        previous=previous,
    )
