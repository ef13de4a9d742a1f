"""Authentication stage, with the proxy's other answers: ApiVersions, ACLs, quotas and users.

Each request is answered, makes the connection wait for an answer, or ends it. `sasl.session`
defines which requests are legal in which state.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from proxy.acl.model import Operation
from proxy.connection.commands import (
    Answer,
    AnswerFromStore,
    CheckPassword,
    Close,
    CloseReason,
    Misrouted,
    RefreshKeys,
    Relay,
    SessionChanged,
    Verdict,
    Wait,
)
from proxy.connection.frames import SIZE, route_key
from proxy.connection.interfaces import ConnectionRights, UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.errors import BrokerFault, ClientFault
from proxy.rollout import Claimed
from proxy.wire import api_versions
from proxy.wire.api_versions import ApiVersionsAnswers, ApiVersionsRequest
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    answered_here,
    response_body_at,
)
from proxy.wire.primitives import Malformed
from proxy.wire.request import MAX_CHARACTERS_KEPT, Request, parse_request, response_frame
from sasl.identity import Identity
from sasl.mechanism import KeysNeeded
from sasl.messages import (
    API_VERSIONS,
    ILLEGAL_SASL_STATE,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE,
    SASL_HANDSHAKE_VERSIONS,
    MalformedMessage,
)
from sasl.relayed import RelayedSession
from sasl.session import Outcome, Session
from sasl.states import Authenticated, Authenticating, AwaitHandshake, Failed

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization

MAX_BYTES_KNOWN: Final = 256
"""Maximum length of an ApiVersions request whose content is cached, in bytes."""

_OF_SASL: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
_RIGHTS: Final[Mapping[int, Operation]] = {
    DESCRIBE_ACLS: Operation.DESCRIBE,
    CREATE_ACLS: Operation.ALTER,
    DELETE_ACLS: Operation.ALTER,
    DESCRIBE_CLIENT_QUOTAS: Operation.DESCRIBE_CONFIGS,
    ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
    DESCRIBE_USER_SCRAM_CREDENTIALS: Operation.DESCRIBE,
    ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
}
"""Permission on the cluster that each API answered from the store requires."""


def _refusal(request: Request) -> bytes | None:
    """Return the answer to a request during an authentication; None to close without an answer.

    Kafka answers each API in its own format. The proxy only answers ApiVersions, which clients do
    send: unauthenticated clients must not reach the encoders of sixty APIs.
    """
    if request.api_key != API_VERSIONS:
        return None
    content = api_versions.refusal(request.api_version, request.correlation_id, ILLEGAL_SASL_STATE)
    return SIZE.pack(len(content)) + content


def _parsed(version: int, body: bytes) -> ApiVersionsRequest:
    """Return the content of an ApiVersions request. Raises ClientFault."""
    known = len(body) <= MAX_BYTES_KNOWN
    return (_parsed_before if known else api_versions.parse_request)(version, body)


_parsed_before: Final = lru_cache(maxsize=256)(api_versions.parse_request)
"""There are few client libraries, and each sends the same request on all of its connections."""


def _answer_of(version: int, content: bytes) -> Answer:
    """Return an ApiVersions answer, given its content from the correlation id on."""
    return Answer(SIZE.pack(len(content)) + content, route_key(API_VERSIONS, version))


class Authentication:
    """Answers of the proxy on one connection."""

    __slots__ = (
        "_pipe",
        "_relayed",
        "_rights",
        "_target",
        "_waiting_content",
        "client_id",
        "client_software_name",
        "client_software_version",
        "session",
        "waiting",
    )

    def __init__(
        self,
        session: Session | RelayedSession,
        pipe: RequestPipe,
        target: UpstreamBroker,
        rights: ConnectionRights,
    ) -> None:
        self.session = session
        self._pipe = pipe
        self._target = target
        self._rights = rights
        self.client_id: str | None = None
        """Client id of the last request that the proxy answered; None if it is unknown."""
        self.client_software_name: str | None = None
        """Software name that the client sent (KIP-511); None if it is unknown."""
        self.client_software_version: str | None = None
        self.waiting: Request | None = None
        """Request whose answer waits for keys, a check or the store; None if no request waits, or
        the message is a raw token."""
        self._waiting_content = b""
        """Frame that waits for keys or a check, without its size."""
        self._relayed: Relay | None = None
        """Relayed message that the broker has yet to answer; None if no answer is due."""

    @property
    def established(self) -> Authenticated | None:
        """Last authentication, also during a re-authentication; None before the first."""
        session = self.session.state
        if isinstance(session, Authenticating):
            return session.previous
        return session if isinstance(session, Authenticated) else None

    @property
    def identity(self) -> Identity | None:
        """Authenticated identity, also during a re-authentication; None before the login."""
        established = self.established
        return None if established is None else established.identity

    @property
    def claimed(self) -> Claimed:
        """Client id and software that the client claims."""
        return self.client_id, self.client_software_name, self.client_software_version

    @property
    def ever_succeeded(self) -> bool:
        """True if the client was ever authenticated."""
        state = self.session.state
        return isinstance(state, Authenticated) or (
            isinstance(state, Authenticating | Failed) and state.previous is not None
        )

    def may_begin_again(self, now: float) -> bool:
        """Return whether a SaslHandshake would begin a re-authentication now."""
        return self.session.may_begin_reauthentication(now)

    def answer(
        self, content: bytes, authorization: "RequestAuthorization | None", now: float
    ) -> Verdict:
        """Answer a frame that is not forwarded: SASL, ApiVersions, ACLs, quotas or users.

        `authorization` decides who may administer the proxy; None if only super users may.
        """
        state = self.session.state
        try:
            if isinstance(state, Authenticating) and state.raw:
                return self._follow(self.session.raw_token(content, now), None, content)
            request = parse_request(content)
            if request.client_id is not None:
                self.client_id = request.client_id
            if isinstance(state, Authenticated) and request.api_key not in _OF_SASL:
                self._pipe.answered(len(content), now)
            return self._answer(request, authorization, now)
        except (ClientFault, MalformedMessage):
            return Close(reason=CloseReason.MALFORMED_FRAME)

    def _answer(
        self, request: Request, authorization: "RequestAuthorization | None", now: float
    ) -> Verdict:
        key, version, state = request.api_key, request.api_version, self.session.state
        if key == SASL_HANDSHAKE and version in SASL_HANDSHAKE_VERSIONS:
            outcome = self.session.handshake(version, request.body, now)
            return self._follow(outcome, request, request.content)
        if isinstance(state, AwaitHandshake):
            if key == API_VERSIONS and not state.api_versions_answered:
                return self._answer_api_versions(request)
            return Close(reason=CloseReason.ILLEGAL_STATE)
        if key == SASL_AUTHENTICATE and version in SASL_AUTHENTICATE_VERSIONS:
            outcome = self.session.authenticate(version, request.body, now)
            return self._follow(outcome, request, request.content)
        if isinstance(state, Authenticating):
            self.session.illegal_request()
            return SessionChanged(_refusal(request))
        if key == API_VERSIONS:
            return self._answer_api_versions(request)
        if isinstance(state, Authenticated) and answered_here(key, version):
            self.waiting = request
            if authorization is None:
                authorized = self._rights.is_super_user(state.identity)
            else:
                authorized = authorization.may_administer(_RIGHTS[key])
            question = AnswerFromStore(request=request, authorized=authorized)
            return Wait(PauseReason.WAITING, question)
        return Close(reason=CloseReason.UNSUPPORTED_API)

    def _answer_api_versions(self, request: Request) -> Verdict:
        version, correlation_id = request.api_version, request.correlation_id
        answers = self._target.api_versions
        if not 0 <= version <= api_versions.HIGHEST_VERSION:
            return _answer_of(0, api_versions.unsupported_version(correlation_id))
        if answers is None:
            return Close(reason=CloseReason.BROKER_UNREACHABLE)
        return self._introduced(_parsed(version, request.body), version, correlation_id, answers)

    def _introduced(
        self,
        request: ApiVersionsRequest,
        version: int,
        correlation_id: int,
        answers: ApiVersionsAnswers,
    ) -> Verdict:
        """Answer an ApiVersions request, which may name the client's software, and the broker that
        the client means."""
        software = request.software
        if version >= api_versions.FIRST_FLEXIBLE and not request.valid:
            error_code = api_versions.INVALID_REQUEST
            return _answer_of(version, api_versions.refusal(version, correlation_id, error_code))
        if software.name:
            self.client_software_name = software.name[:MAX_CHARACTERS_KEPT]
            self.client_software_version = software.version[:MAX_CHARACTERS_KEPT]
        if not self._target.identity.is_meant_by(request):
            error_code = api_versions.REBOOTSTRAP_REQUIRED
            refusal = api_versions.refusal(version, correlation_id, error_code)
            return Misrouted(_answer_of(version, refusal), request)
        self.session.api_versions_answered()
        return _answer_of(version, answers.response(version, correlation_id))

    def _follow(self, outcome: Outcome, request: Request | None, content: bytes) -> Verdict:
        """Return the verdict for a step of the session; a raw token has no `request`."""
        if outcome.relay_to is not None:
            frame = SIZE.pack(len(content)) + content
            self._relayed = Relay(outcome.relay_to, frame, request)
            return self._relayed
        if (awaited := outcome.awaits) is not None:
            self.waiting, self._waiting_content = request, content
            return Wait(
                PauseReason.WAITING,
                RefreshKeys(awaited.issuer)
                if isinstance(awaited, KeysNeeded)
                else CheckPassword(awaited),
            )
        if outcome.reply is None:
            return SessionChanged(None)
        if request is None:
            return SessionChanged(SIZE.pack(len(outcome.reply)) + outcome.reply)
        frame = response_frame(request, outcome.reply)
        return SessionChanged(frame, is_refusal=outcome.is_refusal)

    def store_answered(self, body: bytes) -> Answer:
        """Return the answer to an `AnswerFromStore`, given its body."""
        assert self.waiting is not None
        request, self.waiting = self.waiting, None
        key = route_key(request.api_key, request.api_version)
        return Answer(response_frame(request, body), key)

    def resume(self, now: float) -> Verdict:
        """Continue the login after signing keys were fetched, or a password was checked, or could
        not be."""
        request, self.waiting = self.waiting, None
        content, self._waiting_content = self._waiting_content, b""
        return self._follow(self.session.resume(now), request, content)

    def relayed(self, content: bytes, now: float) -> SessionChanged:
        """Continue the login with the broker's response to a relayed message, without its size.

        Raises BrokerFault if it does not parse.
        """
        assert isinstance(self.session, RelayedSession)
        assert self._relayed is not None
        relay, self._relayed = self._relayed, None
        try:
            at = 0
            if relay.correlation_id is not None:
                at = response_body_at(relay.api_key, relay.api_version, content)
            if at > len(content):
                raise Malformed("ends inside its header")
            outcome = self.session.answered(content[at:], now)
        except (Malformed, MalformedMessage):
            raise BrokerFault("an answer to a login that does not parse") from None
        if outcome.reply is None:
            return SessionChanged(None, is_relayed=True)
        reply = content[:at] + outcome.reply
        return SessionChanged(
            SIZE.pack(len(reply)) + reply,
            confirms=outcome.confirms,
            is_relayed=True,
            is_refusal=outcome.is_refusal,
        )
