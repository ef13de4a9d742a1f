"""Answers to the client: SASL, ApiVersions, and what needs the store.

Whatever is not forwarded ends here: each request is answered, makes the connection wait for an
answer, or ends it. Which is legal when, is `sasl.session`'s table.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from proxy.acl.model import Operation
from proxy.connection.commands import AnswerFromStore, CloseReason, RefreshKeys
from proxy.connection.frames import REQUEST_HEAD, SIZE, Bytes, route_key
from proxy.connection.pause_reasons import PauseReason
from proxy.errors import ClientFault
from proxy.wire import api_versions
from proxy.wire.api_versions import ClientSoftware
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    answered_here,
)
from proxy.wire.request import (
    MAX_CHARACTERS_KEPT,
    Request,
    kept_characters,
    parse_request,
    response_frame,
)
from sasl.messages import (
    API_VERSIONS,
    ILLEGAL_SASL_STATE,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE,
    SASL_HANDSHAKE_VERSIONS,
    MalformedMessage,
)
from sasl.session import Outcome
from sasl.states import Authenticated, Authenticating, AwaitHandshake, Failed

if TYPE_CHECKING:
    from proxy.connection.connection import Connection

MAX_BYTES_KNOWN: Final = 256
"""Length of an ApiVersions request whose answer is remembered, in bytes."""

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
"""Right on the cluster that each API answered from the store needs."""


def _refusal(request: Request) -> bytes | None:
    """The answer to a request in the middle of an authentication; None: closed without one.

    Kafka answers each API in its own format. Here only ApiVersions is, which clients do send:
    a stranger shall not reach the encoders of sixty APIs.
    """
    if request.api_key != API_VERSIONS:
        return None
    content = api_versions.refusal(request.api_version, request.correlation_id, ILLEGAL_SASL_STATE)
    return SIZE.pack(len(content)) + content


def _software(version: int, body: bytes) -> ClientSoftware:
    """Return the client software of an ApiVersions request. Raises ClientFault."""
    known = len(body) <= MAX_BYTES_KNOWN
    return (_known_software if known else api_versions.parse_request)(version, body)


_known_software: Final = lru_cache(maxsize=256)(api_versions.parse_request)
"""There are few libraries, and each says the same on all of its connections."""


class Authentication:
    """The proxy's own answers on one connection."""

    __slots__ = ("_connection", "waiting")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.waiting: Request | None = None
        """The request whose answer waits for keys or for the store; None: none, or a raw token."""

    def admit(self, principal: str, now: float) -> None:
        """Know a client without SASL: by what its listener is, or by its certificate."""
        connection = self._connection
        session = connection.session.admit(principal, now)
        connection.requests.relaying = connection.requests.nameless = True
        connection.authenticated(session, now)

    def learn_client_id(self, data: Bytes, pos: int, end: int) -> bool:
        """Know what the client of the request at `pos` calls itself, where no login has told it.

        False: not before more bytes come.
        """
        connection = self._connection
        size, _, _, length = REQUEST_HEAD.unpack_from(data, pos)
        begin = pos + REQUEST_HEAD.size
        behind = begin + length
        if length < 0 or behind > pos + SIZE.size + size:  # null; or it is not for us to refuse
            return True
        if behind > end:
            return False
        connection.requests.nameless = False
        connection.client_id = kept_characters(bytes(data[begin:behind]))
        connection.meter()
        return True

    def answer_whole(self, content: bytes, now: float) -> None:
        """Answer a frame that is not forwarded: SASL, ApiVersions, and what the store knows."""
        state = self._connection.session.state
        if isinstance(state, Authenticating) and state.raw:
            self._follow(self._connection.session.raw_token(content, now), None, now)
            return
        try:
            request = parse_request(content)
            if request.client_id is not None:
                self._connection.client_id = request.client_id
            if self._connection.requests.relaying and request.api_key not in _OF_SASL:
                self._connection.pipe.answered(len(content), now)
            self._answer(request, now)
        except (ClientFault, MalformedMessage):
            self._connection.end(CloseReason.MALFORMED_FRAME, now)

    def _answer(self, request: Request, now: float) -> None:
        connection, session = self._connection, self._connection.session
        key, version, state = request.api_key, request.api_version, session.state
        if key == SASL_HANDSHAKE and version in SASL_HANDSHAKE_VERSIONS:
            self._follow(session.handshake(version, request.body, now), request, now)
        elif isinstance(state, AwaitHandshake):
            if key == API_VERSIONS and not state.api_versions_answered:
                self._answer_api_versions(request, now)
            else:
                connection.end(CloseReason.ILLEGAL_STATE, now)
        elif key == SASL_AUTHENTICATE and version in SASL_AUTHENTICATE_VERSIONS:
            self._follow(session.authenticate(version, request.body, now), request, now)
        elif isinstance(state, Authenticating):
            session.illegal_request()
            failed = session.state
            assert isinstance(failed, Failed)
            connection.refused(failed, _refusal(request), now)
        elif key == API_VERSIONS:
            self._answer_api_versions(request, now)
        elif isinstance(state, Authenticated) and answered_here(key, version):
            self.waiting = request
            authorized = self._may_administer(key, state.principal)
            self._wait(AnswerFromStore(request=request, authorized=authorized))
        else:
            connection.end(CloseReason.UNSUPPORTED_API, now)

    def _may_administer(self, api_key: int, principal: str) -> bool:
        """Return whether a principal has the right on the cluster that an API needs."""
        admission = self._connection.requests.admission
        if admission is None:
            return self._connection.rules.rights.is_super_user(principal)
        return admission.may_administer(_RIGHTS[api_key])

    def _answer_api_versions(self, request: Request, now: float) -> None:
        version, correlation_id = request.api_version, request.correlation_id
        if not 0 <= version <= api_versions.HIGHEST_VERSION:
            content = api_versions.unsupported_version(correlation_id)
            version = 0  # of the answer
        elif self._connection.target.api_versions is None:
            self._connection.end(CloseReason.BROKER_UNREACHABLE, now)
            return
        else:
            software = _software(version, request.body)
            if version >= api_versions.FIRST_FLEXIBLE and not software.valid:
                content = api_versions.refusal(
                    version, correlation_id, api_versions.INVALID_REQUEST
                )
            else:
                self._know_software(software)
                self._connection.session.api_versions_answered()
                content = self._connection.target.api_versions.response(version, correlation_id)
        key = route_key(API_VERSIONS, version)
        self._connection.send(SIZE.pack(len(content)) + content, now, key)

    def _know_software(self, software: ClientSoftware) -> None:
        if software.name:
            self._connection.client_software_name = software.name[:MAX_CHARACTERS_KEPT]
            self._connection.client_software_version = software.version[:MAX_CHARACTERS_KEPT]

    def _wait(self, command: RefreshKeys | AnswerFromStore) -> None:
        """Take no further request until `command` was carried out."""
        self._connection.hold(PauseReason.WAITING)
        self._connection.commands.append(command)

    def store_answered(self, body: bytes, now: float) -> None:
        """The body of the answer to a `AnswerFromStore` is there."""
        assert self.waiting is not None
        request, self.waiting = self.waiting, None
        key = route_key(request.api_key, request.api_version)
        self._connection.send(response_frame(request, body), now, key)
        self._connection.release(PauseReason.WAITING, now)

    def misunderstood(self, now: float) -> None:
        """The request of a `AnswerFromStore` does not parse."""
        self.waiting = None
        self._connection.end(CloseReason.MALFORMED_FRAME, now)

    def _follow(self, outcome: Outcome, request: Request | None, now: float) -> None:
        """Carry out what the session says, and take notice of where it stands now."""
        connection = self._connection
        if outcome.wants_keys:
            self.waiting = request
            self._wait(RefreshKeys())
            return
        frame = None
        if outcome.reply is not None:
            frame = (
                SIZE.pack(len(outcome.reply)) + outcome.reply
                if request is None
                else response_frame(request, outcome.reply)
            )
        state = connection.session.state
        if isinstance(state, Failed):
            connection.refused(state, frame, now)
            return
        if frame is not None:
            connection.send(frame, now)
        was_relaying = connection.requests.relaying
        connection.requests.relaying = isinstance(state, Authenticated)
        if isinstance(state, Authenticated) and not was_relaying:
            connection.authenticated(state, now)

    def keys_refreshed(self, now: float) -> None:
        """The search for newer keys is over, whatever it found."""
        request, self.waiting = self.waiting, None
        self._follow(self._connection.session.keys_refreshed(now), request, now)
        self._connection.release(PauseReason.WAITING, now)
