"""Playbook: one connection with scripted bytes on both sides, and its transcript.

The connection, its session, its mechanisms and what it offers are the real ones; the clock is
`Playbook.now`. A side that the connection paused is not read, as with sockets.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from proxy.acl.administration import Administered
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.commands import (
    AnswerFromStore,
    AwaitBroker,
    AwaitMemory,
    AwaitTurn,
    CheckPassword,
    Close,
    CloseReason,
    CloseSideConnection,
    Command,
    ConnectToBroker,
    CountAuthenticated,
    CountUnread,
    DeriveKeys,
    GetIdentity,
    MoveToSideConnection,
    OpenSideConnection,
    PauseBroker,
    PauseClient,
    RefreshKeys,
    ResumeBroker,
    ResumeClient,
    RunLongTask,
    WakeAt,
)
from proxy.connection.connection import Connection
from proxy.connection.enforcement import EnforcementPolicy, Override
from proxy.connection.frames import Route
from proxy.connection.inflight import UNSAMPLED, Answer, LatencySampler
from proxy.connection.interfaces import (
    ConnectionQuotas,
    ConnectionRights,
    ConnectionRules,
    NoAuthorizer,
)
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.scheduling.steps import LongTask
from proxy.wire.api_versions import (
    UNKNOWN_BROKER,
    ApiVersionsAnswers,
    ApiVersionsRequest,
    BrokerIdentity,
    UpstreamVersions,
)
from proxy.wire.apis import APIS, METADATA
from proxy.wire.metadata import BrokerAddress
from sasl.credentials import ScramMechanism
from sasl.jwks import KeyCache
from sasl.login import ScramClient
from sasl.mechanism import Mechanism
from sasl.oauthbearer import OAuthBearerServer
from sasl.relayed import RelaySettings
from sasl.scram import ScramServer
from sasl.states import Authenticated, Enforcement, Failed
from tests.support.frames import (
    authenticate,
    bearer,
    handshake,
    name_of,
    read_answer,
    read_authenticated,
    sized,
)
from tests.support.processes import finish
from tests.support.sasl import FAKE_SECRET, NOW, SETTINGS, WALL, alice, cache_of, ed_key, only

# Observer calls as lines of a transcript


@dataclass
class Recorder:
    """Records observer calls in the transcript."""

    log: list[str]
    seen: list[Authenticated | Failed] = field(default_factory=list)

    def authenticated(self, _: Connection, session: Authenticated) -> None:
        self.seen.append(session)
        again = f" again ({session.reauthentications})" if session.reauthentications else ""
        self.log.append(f"authenticated {session.principal}{again}")

    def authentication_failed(self, _: Connection, failed: Failed, now: float) -> None:
        del now
        self.seen.append(failed)
        self.log.append(f"failed {failed.reason}")

    def expired(self, _: Connection, session: Authenticated, api_key: int, now: float) -> None:
        del now
        self.log.append(f"expired {session.enforcement} by {name_of(api_key)}")

    def misrouted(self, _: Connection, request: ApiVersionsRequest, now: float) -> None:
        del now
        self.log.append(f"misrouted: means node {request.node_id} of {request.cluster_id}")

    def administered(self, _: Connection, request: Administered) -> None:
        self.log.append(f"administered {name_of(request.key >> 16)}: {request.outcomes()}")

    def reached_broker(self, _: Connection) -> None:
        pass

    def logged_in(self, *, again: bool) -> None:
        self.log.append("logged in again" if again else "logged in")

    def login_failed(self, _: Connection, reason: str, *, again: bool) -> None:
        self.log.append(f"login failed{' again' * again}: {reason}")

    def closed(self, _: Connection, reason: CloseReason, now: float) -> None:
        del now
        self.log.append(f"closed {reason}")


SCRAM: Final = "SCRAM-SHA-256"
OAUTHBEARER: Final = "OAUTHBEARER"
HOUR_MS: Final = 3_600_000


VERSIONS: Final = UpstreamVersions(apis={api.key: (0, api.max_version) for api in APIS.values()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A broker's offer, as a plain value."""

    routes: Mapping[int, Route]
    api_versions: ApiVersionsAnswers | None
    sasl_version: int = 2
    identity: BrokerIdentity = UNKNOWN_BROKER
    offered: UpstreamVersions | None = None
    address: tuple[str, int] = ("broker", 9092)
    not_answered: frozenset[int] = frozenset()
    learned: dict[int, BrokerAddress] = field(default_factory=dict)

    def learn(self, brokers: Mapping[int, BrokerAddress]) -> None:
        self.learned.update(brokers)


def marked(content: bytes) -> bytes:
    """A visible rewrite that changes the length."""
    return content + b"<rewritten>"


@cache
def answers() -> ApiVersionsAnswers:
    return ApiVersionsAnswers(VERSIONS)


@cache
def everything(
    *,
    rewritten: frozenset[int] = frozenset({METADATA}),
    metered: bool = False,
    enforces_acls: bool = True,
) -> Offer:
    """An offer of all APIs and versions; responses in `rewritten` are `marked`.

    Made once.
    """
    broker = DiscoveredBroker(None, "broker", 9092, versions=VERSIONS)
    view = BrokerView(broker, resolve=None, enforces_acls=enforces_acls, metered=metered)
    for route in view.routes.values():
        if route.api_key in rewritten:
            route.transform = marked
    return Offer(routes=view.routes, api_versions=answers())


NOTHING: Final = Offer(routes={}, api_versions=None)


_AWAITED: Final = {
    RefreshKeys: "seek keys",
    AwaitBroker: "await broker",
    CheckPassword: "check password",
}


class Playbook:
    """One connection; `take()` gives the transcript since it was last taken."""

    reads_bulk = True
    """Whether input is passed as views of a reused buffer instead of bytes."""

    def __init__(
        self,
        *,
        enforcement: Enforcement = Enforcement.ENFORCE,
        max_reauth_ms: int = HOUR_MS,
        overrides: tuple[Override, ...] = (),
        enforces_token_expiry: bool = True,
        offer: Offer | None = None,
        keys: KeyCache | None = None,
        connects: bool = True,
        wanted: int | None = None,
        request_max_bytes: int = 104_857_600,
        sasl_max_receive_size: int = 524_288,
        rights: ConnectionRights | None = None,
        quotas: ConnectionQuotas | None = None,
        memory: MemoryBudget | None = None,
        logs_in: bool = False,
        relays: RelaySettings | None = None,
        latency: LatencySampler = UNSAMPLED,
    ) -> None:
        self.now = NOW
        self.log: list[str] = []
        self.recorder = Recorder(self.log)
        self.connects = connects
        self.to_client, self.to_broker, self.to_side = bytearray(), bytearray(), bytearray()
        """All bytes sent."""
        self.asked: dict[int, tuple[int, int]] = {}
        """API key and version by correlation id, to decode responses."""
        self.received: list[bytes] = []
        """Contents of the frames that the client received."""
        self.raw = False
        """Whether responses have no headers, as after a SaslHandshake v0."""
        self.commands: list[Command] = []
        self.long_tasks: list[LongTask] = []
        """Requested long tasks that have not run yet."""
        self.runs_long_tasks_at_once = True
        self.waiting: list[Callable[[], None]] = []
        """Callbacks that wait for their turn."""
        self.turns_come_at_once = True
        self.wakes_at = 0.0
        """The connection's latest deadline."""
        self.in_socket = 0
        """Number of the client's bytes in the socket when a session ends."""
        self.client_takes = self.broker_takes = True
        self._sent = bytearray()
        self._unread = {"client": b"", "broker": b""}
        self._paused = {"client": False, "broker": False}
        self._seen_by_client = self._seen_by_broker = self._seen_by_side = 0
        policy = EnforcementPolicy(
            enforcement=enforcement,
            max_reauth_ms=max_reauth_ms,
            mechanism_max_reauth_ms={},
            overrides=overrides,
            enforces_token_expiry=enforces_token_expiry,
        )
        rules = ConnectionRules(
            listener="clients",
            mechanisms=self._mechanisms(keys or cache_of(ed_key())),
            terms=policy.terms_for,
            rights=rights or NoAuthorizer(),
            sasl_max_receive_size=sasl_max_receive_size,
            request_max_bytes=request_max_bytes,
            authentication_timeout=10.0,
            max_idle=600.0,
            failed_authentication_delay=0.1,
            quotas=quotas,
            logs_in=logs_in,
            relays=relays,
            latency=latency,
            memory=memory or MemoryBudget(),
        )
        self.open(rules, offer or everything(), wanted)

    def open(
        self, rules: ConnectionRules, target: Offer | None = None, wanted: int | None = None
    ) -> None:
        """Open a connection in place of the last one."""
        self.rules = rules
        self.connection = Connection(
            connection_id="c1",
            peer_host="192.0.2.1",
            rules=rules,
            target=target or everything(),
            observer=self.recorder,
            to_client=self._write_to_client,
            now=self.now,
            wanted=wanted,
        )

    def _mechanisms(self, keys: KeyCache) -> dict[str, Mechanism]:
        scram = ScramServer(
            mechanism=ScramMechanism.SCRAM_SHA_256, credentials=alice(), fake_secret=FAKE_SECRET
        )
        oauthbearer = OAuthBearerServer(
            issuers=only(keys, SETTINGS._replace(groups_claim_name="groups")),
            wall_clock=lambda: WALL + self.now - NOW,
        )
        return {SCRAM: scram, OAUTHBEARER: oauthbearer}

    # Actions of the peers

    def client(self, *pieces: bytes) -> None:
        """The client sends bytes in one piece."""
        data = b"".join(pieces)
        self._sent += data
        while (frame := whole_frame(self._sent, 0)) is not None:
            del self._sent[: 4 + len(frame)]
            if len(frame) >= 8:
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                self.asked[correlation_id] = key, version
        self._unread["client"] += data
        self._read("client")

    def broker(self, *pieces: bytes) -> None:
        """The broker sends bytes in one piece."""
        self._unread["broker"] += b"".join(pieces)
        self._read("broker")

    def call(self, what: Callable[[Connection, float], None]) -> None:
        """Call the connection like the relay does."""
        if not self.connection.closed:
            what(self.connection, self.now)
            self.carry_out()

    def broker_connects(self) -> None:
        self.call(lambda connection, now: connection.broker_connected(self._write_to_broker, now))

    def side_connects(self) -> None:
        self.call(
            lambda connection, now: connection.relayed_login.side_connected(
                self._write_to_side, now
            )
        )

    def side(self, *pieces: bytes) -> None:
        """The broker sends bytes on the side connection in one piece."""
        data = b"".join(pieces)
        self.call(lambda connection, now: connection.relayed_login.side_bytes(data, now))

    def run_long_tasks(self) -> None:
        """Run the first waiting long task."""
        long_task = self.long_tasks.pop(0)
        result = finish(long_task.steps)
        self.call(lambda connection, now: connection.long_work.done(long_task, result, now))

    def expire(self) -> None:
        """Advance the clock past the session's end and run the timer."""
        self.wait_for(self.connection.stages.expires_at)
        self.now += 0.125  # exact in binary: no rounding of lifetimes

    def wait_for(self, deadline: float | None) -> None:
        """Advance the clock to the deadline and run the timer."""
        assert deadline is not None
        self.now = deadline
        self.call(Connection.timer)

    # Results

    @property
    def paused(self) -> set[str]:
        """Sides whose reading is paused."""
        return {side for side, paused in self._paused.items() if paused}

    def take(self) -> list[str]:
        """The transcript since the last call."""
        taken, self.log[:] = list(self.log), []
        return taken

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the connection buffers."""
        requests, responses = self.connection.requests, self.connection.responses
        gathered = [one[0] for one in (requests.gathered, responses._gathered) if one]
        own = [one.frame for _, one in self.connection.inflight.queue if isinstance(one, Answer)]
        kept = (requests.rest, responses.rest, *gathered, *own)
        return sum(map(len, kept))

    @property
    def owed(self) -> list[int]:
        """Correlation ids of unanswered requests, in order."""
        queue = self.connection.inflight.queue
        return [number for number, route in queue if not isinstance(route, Answer)]

    @property
    def session(self) -> Authenticated:
        state = self.connection.session.state
        assert isinstance(state, Authenticated)
        return state

    # The relay's role

    def _read(self, side: str) -> None:
        while self._unread[side] and not self._paused[side] and not self.connection.closed:
            read = self._unread[side][:BUFFER_BYTES]
            self._unread[side] = self._unread[side][BUFFER_BYTES:]
            buffer = bytearray(read)
            data = memoryview(buffer) if self.reads_bulk else read
            if side == "client":
                self.connection.client_bytes(data, self.now)
            else:
                self.connection.broker_bytes(data, self.now)
            buffer[:] = b"\xee" * len(buffer)  # exposes code that keeps the buffer
            self.carry_out()

    def carry_out(self) -> None:
        """Execute and record the connection's commands."""
        commands, self.connection.commands = self.connection.commands, []
        for command in commands:
            self.commands.append(command)
            self._carry_out(command)
        while self.long_tasks and self.runs_long_tasks_at_once:
            self.run_long_tasks()
        if self.turns_come_at_once:
            self.turns_come_at_once = False  # callbacks return here
            while self.waiting:
                self.waiting.pop(0)()
            self.turns_come_at_once = True

    def _carry_out(self, command: Command) -> None:
        match command:
            case PauseClient() | ResumeClient():
                self._pause("client", isinstance(command, PauseClient))
            case PauseBroker() | ResumeBroker():
                self._pause("broker", isinstance(command, PauseBroker))
            case ConnectToBroker():
                self.log.append("connect")
                if self.connects:
                    self.broker_connects()
            case RefreshKeys() | AwaitBroker() | CheckPassword():
                self.log.append(_AWAITED[type(command)])
            case WakeAt(when):
                self.wakes_at = when
            case CountAuthenticated():
                pass
            case OpenSideConnection() | CloseSideConnection() | MoveToSideConnection():
                self._carry_out_aside(command)
            case Close():
                self._close(command)
            case _:
                self._work_long(command)

    def _carry_out_aside(
        self, command: OpenSideConnection | CloseSideConnection | MoveToSideConnection
    ) -> None:
        match command:
            case OpenSideConnection(until):
                self.log.append(f"open side until {until - NOW:g}")
            case CloseSideConnection():
                self.log.append("close side")
            case MoveToSideConnection():
                self.log.append("move to side")

    def _work_long(
        self,
        command: AwaitMemory
        | AwaitTurn
        | CountUnread
        | RunLongTask
        | GetIdentity
        | DeriveKeys
        | AnswerFromStore,
    ) -> None:
        match command:
            case CountUnread():
                self.connection.session_ended(self.in_socket, self.now)
            case AnswerFromStore():
                self.log.append(f"consult {name_of(command.request.api_key)}")
            case AwaitTurn():
                self.waiting.append(lambda: self.call(Connection.turn_came))
            case GetIdentity() | DeriveKeys():
                self.log.append(type(command).__name__)
            case AwaitMemory(size):
                self.log.append(f"wait for memory: {size}")
                self.connection.await_memory(size, self.call)
            case RunLongTask(long_task):
                self.log.append("run long task")
                self.long_tasks.append(long_task)

    def _pause(self, side: str, paused: bool) -> None:
        self._paused[side] = paused
        self._read(side)

    def _close(self, close: Close) -> None:
        delay = f" after {close.delay} s" if close.delay else ""
        behind = " after the broker has" if close.after_broker else ""
        self.log.append(f"close{delay}{behind}")
        if close.farewell is not None:
            self._write_to_client(close.farewell)

    def _write_to_client(self, data: bytes | memoryview) -> None:
        self.to_client += data
        while (frame := whole_frame(self.to_client, self._seen_by_client)) is not None:
            self._seen_by_client += 4 + len(frame)
            self.received.append(frame)
            self.log.append(f"to client: {self._read_by_client(frame)}")
        if not self.client_takes and not self.connection.client_is_full:
            self.connection.client_full(True, self.now)
            self.carry_out()

    def _read_by_client(self, frame: bytes) -> str:
        if self.raw:
            return f"raw {len(frame)} bytes" if frame else "raw nothing"
        return read_answer(frame, self.asked)

    def _write_to_broker(self, data: bytes | memoryview) -> None:
        state = self.connection.session.state
        relays = self.rules.relays is not None
        assert relays or isinstance(state, Authenticated), "nothing reaches the broker before that"
        self.to_broker += data
        while (frame := whole_frame(self.to_broker, self._seen_by_broker)) is not None:
            self._seen_by_broker += 4 + len(frame)
            self.log.append(f"to broker: {self._read_by_broker(frame)}")
        if not self.broker_takes and not self._paused_by_broker():
            self.connection.broker_full(True, self.now)
            self.carry_out()

    def _write_to_side(self, data: bytes | memoryview) -> None:
        self.to_side += data
        while (frame := whole_frame(self.to_side, self._seen_by_side)) is not None:
            self._seen_by_side += 4 + len(frame)
            self.log.append(f"to side: {self._read_by_broker(frame)}")

    def _read_by_broker(self, frame: bytes) -> str:
        if self.raw:
            return f"raw {len(frame)} bytes"
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        return f"{name_of(key)} v{version} #{correlation_id}"

    def _paused_by_broker(self) -> bool:
        return bool(self.connection.holds & 4)


def refused(reason: str, *answers: str, close: str = "close after 0.1 s") -> list[str]:
    """The transcript of a failed authentication, and of the answers that precede the close."""
    return [f"failed {reason}", "closed authentication_failed", close, *answers]


def whole_frame(data: bytearray, at: int) -> bytes | None:
    """Content of the frame at `at`; None if it is incomplete."""
    if len(data) < at + 4:
        return None
    (size,) = struct.unpack_from(">i", data, at)
    return bytes(data[at + 4 : at + 4 + size]) if 0 <= size <= len(data) - at - 4 else None


def log_in(play: Playbook, *, version: int = 1, first_id: int = 1, **changes: object) -> None:
    """Authenticate with a token in two requests; `changes` override its claims."""
    play.client(handshake(first_id, OAUTHBEARER))
    play.client(authenticate(first_id + 1, bearer(**changes), version))


def logged_in(play: Playbook | None = None, *, version: int = 1, **changes: object) -> Playbook:
    """A connection after its login, with an empty transcript."""
    play = play or Playbook()
    log_in(play, version=version, first_id=1, **changes)
    assert isinstance(play.connection.session.state, Authenticated), play.log
    play.take()
    play.wakes_at = 0.0
    return play


def log_in_by_scram(
    play: Playbook,
    *,
    version: int | None,
    first_id: int = 1,
    user: str = "alice",
    secret: str = "secret",  # noqa: S107 - made up
) -> None:
    """Authenticate with a password; `version` of SaslAuthenticate, None for raw tokens."""
    client = ScramClient(mechanism=ScramMechanism.SCRAM_SHA_256, username=user, password=secret)
    play.client(handshake(first_id, SCRAM, 0 if version is None else 1))
    if version is None:
        play.raw = True
        play.client(sized(client.first()))
        play.client(sized(client.final(play.received[-1])))
        play.raw = False
        return
    play.client(authenticate(first_id + 1, client.first(), version))
    _, _, challenge, _ = read_authenticated(play.received[-1], version)
    play.client(authenticate(first_id + 2, client.final(challenge), version))
    if read_authenticated(play.received[-1], version)[0] == 0:
        client.verify(read_authenticated(play.received[-1], version)[2])
