"""In-flight queue of one connection: responses owed, in the order of the requests.

Laws:

- Nobody else appends to the queue, amends what is in it, or takes or drops anything; but for the
  pipes, which append plain routes and take them, several at once.
- Responses leave in the order of their requests, whoever answers: what is owed at the head of the
  queue is the next that leaves.
- An entry is a correlation id and one of four: a `Route`, whose response the broker owes; an
  `Amendment` in its place, where this one response is changed; a `Question`, whose answer the proxy
  takes; an `Answer` of the proxy's own that waits for those before it. There is no fifth.
"""

from collections.abc import Callable
from typing import Final

from proxy.connection.frames import Amendment, Owed, Route
from proxy.connection.latency import TimedRequest
from proxy.wire.apis import FETCHES

MAX_IN_FLIGHT: Final = 1_024
"""Requests a client may have unanswered before it is not read any further."""
MAX_KEPT_BYTES: Final = 4_194_304
"""Bytes of own answers and of amendments that may wait before the client is not read."""

ASKED_ID: Final = 0
"""Correlation id of the proxy's own requests: answers come in order, so any would do."""
_ANSWER_ID: Final = 1 << 32
"""Stands for a correlation id, which has 32 bits, where the proxy answers itself."""

Taken = Callable[[bytes, float], None]
"""Is given the broker's answer to a `Question`, from behind its size, and the time. Raises
BrokerFault if it does not parse."""


def _not_passed_on(_content: bytes) -> bytes:
    raise AssertionError("nothing of it is passed on")


class Question(Route):
    """Stands for a request of the proxy's own, or of a relayed login; the proxy takes the answer,
    and nothing of it is passed on by itself."""

    __slots__ = ("is_raw", "taken")

    def __init__(
        self, api_key: int, api_version: int, taken: Taken, *, is_raw: bool = False
    ) -> None:
        super().__init__(api_key, api_version, transform=_not_passed_on)
        self.taken = taken
        """Function that takes the answer."""
        self.is_raw = is_raw
        """True if the answer has no header, not even a correlation id: it answers a raw token."""


class Answer(Route):
    """Stands for a request that the proxy answered, until the answer may leave."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        super().__init__(-1, -1, transform=_not_passed_on)
        self.frame = frame


class InFlight:
    """Responses that one client is owed."""

    __slots__ = ("_answers", "_kept_bytes", "queue", "timed")

    def __init__(self) -> None:
        self.queue: list[Owed] = []
        """Correlation ids, and what is owed for them. A list, as an idle connection's deque takes
        700 bytes, and as several are taken from it at once."""
        self._answers = 0
        self._kept_bytes = 0
        """Bytes of answers that wait, and of amendments to responses."""
        self.timed: TimedRequest | None = None
        """The request that is timed; None: none is."""

    def __len__(self) -> int:
        return len(self.queue)

    # What is owed

    def owe(self, correlation_id: int, route: Route) -> None:
        """A request was forwarded, of which the broker owes the response."""
        if isinstance(route, Amendment):
            self._kept_bytes += route.keeps
        self.queue.append((correlation_id, route))

    def ask(self, question: Question, correlation_id: int = ASKED_ID) -> None:
        """A request whose answer the proxy takes was written."""
        self.queue.append((correlation_id, question))

    def answer(self, frame: bytes) -> None:
        """The proxy answers a request itself, and others before it are not answered yet."""
        self.queue.append((_ANSWER_ID, Answer(frame)))
        self._answers += 1
        self._kept_bytes += len(frame)

    def amend_last(
        self, may: Callable[[Route], bool], amended: Callable[[Route], Amendment]
    ) -> None:
        """Amend the last response that the broker owes the client and that `may` be."""
        for index in range(-1, -len(self.queue) - 1, -1):
            correlation_id, owed = self.queue[index]
            if not isinstance(owed, Answer | Question) and may(owed):
                entry: Owed = correlation_id, amended(owed)
                if self.timed is not None and self.timed.owed == self.queue[index]:
                    self.timed.owed = entry
                self.queue[index] = entry
                return

    def forget_last(self) -> None:
        """The last request will not come to its end, and not be answered."""
        self.queue.pop()

    @property
    def owes_raw(self) -> bool:
        """Return whether the last answer that is owed is one to a raw token."""
        last = self.queue[-1][1] if self.queue else None
        return isinstance(last, Question) and last.is_raw

    def clear(self) -> None:
        """The connection is over."""
        self.queue.clear()
        self.timed = None
        self._answers = self._kept_bytes = 0

    # What is paid

    @property
    def next(self) -> Owed | None:
        """The entry that is owed next; None: there is none."""
        return self.queue[0] if self.queue else None

    def pop(self) -> Route:
        """Take what is owed next: the broker's answer begins."""
        _, route = self.queue.pop(0)
        if isinstance(route, Amendment):
            self._kept_bytes -= route.keeps
        return route

    def pop_answer(self) -> bytes | None:
        """Take an answer of the proxy's own whose turn has come; None: there is none."""
        if not self._answers:
            return None
        route = self.queue[0][1]
        if not isinstance(route, Answer):
            return None
        del self.queue[0]
        self._answers -= 1
        self._kept_bytes -= len(route.frame)
        return route.frame

    @property
    def owes_timed(self) -> bool:
        """Return whether the broker has not begun to answer the request that is timed."""
        return self.timed is not None and self.timed.owed in self.queue

    # How much it is

    @property
    def waits(self) -> bool:
        """Return whether answers of the proxy's own wait for their turn."""
        return self._answers > 0

    @property
    def owes_fetch(self) -> bool:
        """Return whether the broker has not begun to answer a Fetch or ShareFetch."""
        return any(route.api_key in FETCHES for _, route in self.queue)

    @property
    def owes_much(self) -> bool:
        """Return whether the client is owed so much that it is not read any further."""
        return len(self.queue) > MAX_IN_FLIGHT or self._kept_bytes > MAX_KEPT_BYTES

    @property
    def owes_little(self) -> bool:
        """Return whether it is owed so little again that it is read on."""
        return len(self.queue) <= MAX_IN_FLIGHT // 2 and self._kept_bytes <= MAX_KEPT_BYTES // 2
