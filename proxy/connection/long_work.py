"""Share of one connection in its worker: memory for long requests, time slices, its turn.

Laws: a connection of which much is not forwarded at a first look waits now and then, so that others
have their turn, however little each request takes; the room that a request takes is left when the
broker has it, or it is answered; a closed connection has neither room nor work under way.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from proxy.connection.commands import AwaitMemory, AwaitTurn, CloseReason, RunLongTask, WakeAt
from proxy.connection.long_requests import changed_in_steps
from proxy.connection.pause_reasons import PauseReason
from proxy.errors import BrokerFault
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS
from proxy.scheduling.steps import LongTask, Steps

if TYPE_CHECKING:
    from proxy.connection.connection import Connection

MAX_IN_A_TURN: Final = 64
"""Parts of a turn, of some twenty microseconds: a small request takes one."""
LOOK_SECONDS: Final = 1.0
"""Between two looks whether others wait for the room of a slow client."""
_BYTES_OF_A_PART: Final = 32
"""Size of a part of a request, in bytes; denials of small items take ten µs per byte at worst."""
_MAX_PARTS: Final = 16
"""Number of parts of a request; one with more is judged in steps."""

_IN_NEED: Final = PauseReason.WAITING | PauseReason.AUTHORIZING | PauseReason.BROKER_FULL
"""Reasons for which a client is held while its request is in memory."""

Tell = Callable[[Callable[["Connection", float], None]], None]
"""Has a connection told something by its shell."""
TellLater = Callable[[Callable[["Connection", float], None]], None]
"""Has a connection told something by its shell, in a turn of its own."""


class LongWork:
    """Share of one connection in the memory and time of its worker for long requests."""

    __slots__ = (
        "_connection",
        "_looks_at",
        "_patient_until",
        "_room",
        "_room_of_strangers",
        "_spent",
        "_tenant",
        "_under_way",
    )

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        connection.responses.change = self.change
        self._room = 0
        """Bytes."""
        self._patient_until = inf
        """Deadline of the client to send and take what is long, in monotonic seconds."""
        self._looks_at = inf
        """Time of the next look whether others wait for the memory, in monotonic seconds."""
        self._tenant = ""
        """The principal that has the room, whatever becomes of the session."""
        self._room_of_strangers = False
        self._under_way: list[LongTask] = []
        self._spent = 0
        """Parts of its turn."""

    # Turns

    def spend(self, size: int) -> None:
        """A request of so many bytes is dealt with, which is not forwarded at a first look."""
        self._spent += min(1 + size // _BYTES_OF_A_PART, _MAX_PARTS)
        if self._spent >= MAX_IN_A_TURN:
            self._spent = 0
            self._connection.hold(PauseReason.TURN)
            self._connection.commands.append(AwaitTurn())

    def await_turn(self, wait: Callable[[str, Callable[[], None]], object], tell: Tell) -> None:
        """Go on when it is this principal's turn; strangers have one together."""
        wait(self._who, lambda: tell(_take_turn))

    # Room

    def has_room(self, size: int, now: float) -> bool:
        """Return whether a request of this size may be gathered; if not, the connection waits."""
        if size < LONG_BYTES or size == self._room:
            return True
        self._give_room_back()
        if self._connection.rules.room.take(self._who, size):
            self._take_room(self._who, size)
            self._be_patient(now)
            return True
        self._connection.hold(PauseReason.NO_MEMORY)
        self._connection.commands.append(AwaitMemory(size))
        return False

    def admits_stranger(self, size: int, now: float) -> bool:
        """Return whether a long frame may be gathered before authentication is known; if not, it is
        the end of the connection: the unauthenticated wait for nothing."""
        connection = self._connection
        if connection.principal is not None or self._room_of_strangers:
            return True
        if connection.rules.strangers.take(connection.connection_id, size):
            self._room_of_strangers = True
            return True
        connection.end(CloseReason.OVERSIZE_FRAME, now)
        return False

    def wait_for_memory(self, size: int, tell_later: TellLater) -> None:
        """Take room when there is, and go on."""
        who, room = self._who, self._connection.rules.room

        def found() -> None:
            if self._connection.closed:
                room.give_back(who)
                return
            self._take_room(who, size)
            tell_later(self._go_on)

        room.wait(who, size, found)

    def _take_room(self, who: str, size: int) -> None:
        self._tenant, self._room = who, size
        self._patient_until = self._looks_at = inf

    def _be_patient(self, now: float) -> None:
        self._patient_until = self._looks_at = now + WAIT_SECONDS
        self._connection.commands.append(WakeAt(self._looks_at))

    def _go_on(self, connection: "Connection", now: float) -> None:
        self._be_patient(now)
        connection.release(PauseReason.NO_MEMORY, now)

    def release_memory(self, released: int = 0) -> None:
        """Leave the room if it is not needed any more, now that a hold is released."""
        if (
            (released != PauseReason.NO_MEMORY or self._connection.holds)  # else it is needed now
            and (self._room or self._room_of_strangers)
            and not self._connection.holds & _IN_NEED
            and self._connection.requests.gathered is None
        ):
            self._give_room_back()

    def next_deadline(self) -> float:
        """Return when `timer` has anything to do, in monotonic seconds; infinity: never."""
        return self._looks_at if self._room else inf

    def timer(self, now: float) -> None:
        """Close a connection whose client is slow where others wait for its room."""
        self._looks_at = max(self._patient_until, now + LOOK_SECONDS)
        connection = self._connection
        if (
            self._room
            and now >= self._patient_until
            and not connection.holds & PauseReason.AUTHORIZING
            and connection.rules.room.is_wanted
        ):
            connection.finish(CloseReason.IDLE, now)

    def _give_room_back(self) -> None:
        if self._room:
            self._room = 0
            self._connection.rules.room.give_back(self._tenant)
        if self._room_of_strangers:
            self._room_of_strangers = False
            self._connection.rules.strangers.give_back(self._connection.connection_id)

    @property
    def _who(self) -> str:
        return self._connection.principal or ""

    # Steps

    def change(self, transform: Callable[[bytes], bytes], content: bytes) -> None:
        """Have a response changed."""
        self.do(changed_in_steps(transform, content), len(content), self._changed)
        self._connection.read_broker()

    def _changed(self, content: bytes | BrokerFault, now: float) -> None:
        connection = self._connection
        if isinstance(content, BrokerFault):
            connection.finish(CloseReason.BROKER_FAULT, now)
            return
        connection.responses.changed(content)
        connection.broker_bytes(b"", now)  # for what came meanwhile
        connection.read_broker()

    def do(self, steps: Steps[Any], size: int, then: Callable[[Any, float], None]) -> None:
        """Have work done, about so many bytes; `then(result, now)` is told."""
        if (stopwatch := self._connection.stopwatch) is not None:
            steps = stopwatch.timed(steps)
        long_task = LongTask(self._who, steps, then, size=size)
        self._under_way.append(long_task)
        self._connection.commands.append(RunLongTask(long_task))

    def done(self, long_task: LongTask, result: Any, now: float) -> None:
        """A work was done."""
        self._under_way.remove(long_task)
        long_task.done(result, now)

    def drop(self, now: float) -> None:
        """The connection is closed: let go of all that its requests hold.

        A closed connection is a cycle, which is found when it is old.
        """
        requests = self._connection.requests
        requests.gathered = requests.admission = None
        self._connection.pipe.forget()
        self._connection.inflight.clear()
        self._give_room_back()
        for long_task in self._under_way:
            long_task.drop()
        self._under_way.clear()
        if self._connection.stopwatch is not None:
            self._connection.stopwatch.close(now)
        if requests.throttle is not None:
            requests.throttle.used.closed(now)


def _take_turn(connection: "Connection", now: float) -> None:
    connection.release(PauseReason.TURN, now)
