"""Delivery to a Kafka topic through librdkafka: idempotent, `acks=all`, zstd, keyed by connection.

Messages of one connection have one key, so they are in one partition, in their order. librdkafka
holds one batch at most: a topic that is not available costs no memory. It logs in again by itself
before a session ends (KIP-368). After an error, credentials are read again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from metrics.delivery.deliverer import DeliveryFailed
from metrics.delivery.selection import connection_of
from metrics.delivery.spool import Batch
from proxy.errors import ProxyError
from sasl.untrusted import fit_for_log

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Settings = Mapping[str, Any]
"""Settings of librdkafka."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Largest batch in bytes, of some 6,000 events."""
_MOST_LINES: Final = 65_536
"""Largest number of lines that are waited for together, more than batches have."""
_QUICK_SECONDS: Final = 5.0
"""If lines are stored within this many seconds, twice as many are tried next: these take far less
than the delivery time-out."""
_LOOK_SECONDS: Final = 2.0
"""Seconds to wait for the brokers to answer whether the topic exists."""
FLUSH_SECONDS: Final = 0.5
"""Seconds between two checks for the end of the delivery."""

_ALWAYS: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "zstd",
    "linger.ms": 20,
    "delivery.timeout.ms": 30_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 4 * 1024 * 1024,
    "log_level": 3,
    "allow.auto.create.topics": False,
}
"""Fixed settings of librdkafka. A batch has fewer messages than bytes. Messages that are not stored
within the delivery time-out are produced again, with fresh credentials and fewer at a time, so that
a topic with a low quota takes them within the time-out; a longer time-out would delay the error
that explains why nothing arrives."""

_quiet = logging.getLogger(f"{__name__}.librdkafka")
"""Logger of librdkafka, silenced: it repeats at each attempt the errors that are reported once."""
_quiet.setLevel(logging.CRITICAL + 1)

_NO_PRODUCER_ID: Final = "CLUSTER_AUTHORIZATION_FAILED"
_NO_RIGHT: Final = "it may write to no topic: it needs WRITE on this one"
"""Meaning of the error above: brokers give a producer id to every principal that may write to some
topic (KIP-679)."""


class TopicSink:
    """Sink that produces to a topic."""

    batch_bytes = BATCH_BYTES

    def __init__(
        self, topic: str, settings: Callable[[], Settings], ending: Callable[[], bool]
    ) -> None:
        """Produce to `topic`.

        `settings` returns the connection's, with credentials as they are now; it may raise a
        ProxyError. `ending` returns whether the delivery must end now.
        """
        self._topic = topic
        self._settings = settings
        self._ending = ending
        self._producer: Producer | None = None
        self._problem = ""
        """librdkafka's last error of the connection since the last success; empty without an
        error."""
        self._refused = False
        """True if that error is a refused login."""
        self._lines_at_once = _MOST_LINES
        """The number of lines that are waited for together: halved by each failure, doubled when
        they are stored quickly."""
        self._begun = _NOTHING

    def deliver(self, batch: Batch) -> int:
        """Produce lines, wait until all are stored, and return how many are too large.

        Raises DeliveryFailed.
        """
        from confluent_kafka import KafkaException

        producer = self._producer or self._connect()
        try:
            if self._producer is None:
                self._check_topic(producer)
                self._producer = producer
            refused = self._store_in_portions(producer, batch)
        # KafkaException and SystemError: librdkafka failed for good, here or in a callback.
        except (DeliveryFailed, KafkaException, SystemError) as error:
            self._producer = None
            self._lines_at_once = max(1, min(self._lines_at_once, len(batch.lines)) // 2)
            with suppress(KafkaException, SystemError):
                producer.purge()
                producer.flush(0)
            fatal = error.__cause__ if isinstance(error, SystemError) else error
            if isinstance(fatal, KafkaException):
                self._note_problem(fatal.args[0])
            reason = self._problem or str(error)
            raise DeliveryFailed(fit_for_log(reason, ())) from None
        self._problem, self._refused = "", False
        return refused

    def _store_in_portions(self, producer: "Producer", batch: Batch) -> int:
        """Store the rest of a batch, as `_store` does."""
        begun = self._begun
        if not begun.is_of(batch):
            begun = self._begun = _Begun(batch=_name_of(batch))
        while begun.stored < len(batch.lines):
            portion = batch.lines[begun.stored : begun.stored + self._lines_at_once]
            started = time.monotonic()
            begun.refused += self._store(producer, portion)
            begun.stored += len(portion)
            begun.last_line = portion[-1]
            if time.monotonic() - started < _QUICK_SECONDS:
                self._lines_at_once = min(2 * self._lines_at_once, _MOST_LINES)
            if begun.stored < len(batch.lines) and self._ending():
                raise DeliveryFailed("the delivery ends")
        self._begun = _NOTHING
        return begun.refused

    def _store(self, producer: "Producer", lines: list[bytes]) -> int:
        """Store lines, and return how many are refused even alone. Raises DeliveryFailed.

        A broker checks `max.message.bytes` against a batch of messages, and refuses all of it:
        its halves may be stored.
        """
        results = _Results()
        for line in lines:
            self._produce(producer, line, results)
        while producer.flush(FLUSH_SECONDS):
            if self._ending():
                raise DeliveryFailed("the delivery ends")
            if self._refused:
                raise DeliveryFailed(self._problem)
        results.check()
        again = results.refused
        if not again or len(lines) == 1:
            return len(again)
        middle = len(again) // 2
        halves = again[:middle], again[middle:]
        return sum(self._store(producer, half) for half in halves if half)

    def _produce(self, producer: "Producer", line: bytes, results: "_Results") -> None:
        from confluent_kafka import KafkaException

        try:
            producer.produce(
                self._topic, value=line, key=connection_of(line), on_delivery=results.note
            )
        except KafkaException as error:
            results.refuse_or_fail(error.args[0], line)
        except BufferError:
            raise DeliveryFailed("librdkafka's queue is full") from None

    def _connect(self) -> "Producer":
        from confluent_kafka import KafkaException, Producer

        self._refused = False
        try:
            settings = {**self._settings(), **_ALWAYS, "error_cb": self._note_problem}
            return Producer(settings, logger=_quiet)
        except KafkaException as error:
            raise DeliveryFailed(error.args[0].str()) from None
        except SystemError as error:  # if a callback fails meanwhile
            raise DeliveryFailed(fit_for_log(self._problem or str(error), ())) from None
        except ProxyError as error:
            raise DeliveryFailed(str(error)) from None

    def _check_topic(self, producer: "Producer") -> None:
        """Raise DeliveryFailed if there is no such topic: librdkafka waits 30 s, and then reports a
        time-out."""
        from confluent_kafka import KafkaException

        try:
            found = producer.list_topics(self._topic, _LOOK_SECONDS).topics[self._topic].error
        except (KafkaException, KeyError):
            return
        if found is not None and found.name() == "UNKNOWN_TOPIC_OR_PART":
            raise DeliveryFailed(
                f"there is no topic {self._topic!r}; create it:"
                f" reauth-proxy events topic create {self._topic} --bootstrap-server HOST:PORT"
            )

    def _note_problem(self, error: "KafkaError") -> None:
        self._problem = _NO_RIGHT if error.name() == _NO_PRODUCER_ID else error.str()
        self._refused = error.name() == "_AUTHENTICATION"


def _name_of(batch: Batch) -> tuple[str, int, int]:
    return batch.file.name, batch.file.inode, batch.begin


@dataclass(slots=True)
class _Begun:
    """Batch of which some lines are stored; it is delivered again after a failure."""

    batch: tuple[str, int, int]
    """Name and inode of the file, and offset in it."""
    stored: int = 0
    """Number of lines from the first on that were stored or refused."""
    refused: int = 0
    """Number of these lines that were refused for good."""
    last_line: bytes = b""
    """The last of these lines."""

    def is_of(self, batch: Batch) -> bool:
        """Return whether a batch begins with these lines: its file may have been replaced."""
        if not 0 < self.stored <= len(batch.lines):
            return False
        return self.batch == _name_of(batch) and batch.lines[self.stored - 1] == self.last_line


_NOTHING: Final = _Begun(batch=("", 0, 0))


class _Results:
    """Results of the messages of one batch."""

    def __init__(self) -> None:
        self.refused: list[bytes] = []
        """Values of the messages that the client or a broker refused, alone or together with others
        of their batch."""
        self._failed = 0
        self._example = ""

    def note(self, error: "KafkaError | None", message: "Message") -> None:
        """Record the result of one message (called by librdkafka)."""
        if error is not None:
            value = message.value()
            assert value is not None
            self.refuse_or_fail(error, value)

    def refuse_or_fail(self, error: "KafkaError", value: bytes) -> None:
        """Note a message that was not stored."""
        if error.name() in ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "INVALID_RECORD"):
            self.refused.append(value)
        else:
            self._failed += 1
            self._example = error.str()

    def check(self) -> None:
        """Raise DeliveryFailed if a message may be tried again."""
        if self._failed:
            raise DeliveryFailed(f"{self._failed} events failed: {self._example}")
