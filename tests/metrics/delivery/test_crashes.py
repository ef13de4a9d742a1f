"""Nothing is lost, and only whole lines arrive, whatever dies between any two steps."""

import os
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metrics.delivery.deliverer import Deliverer, DeliveryFailed
from metrics.delivery.position import NAME, Position, lock
from metrics.delivery.selection import Selection
from metrics.delivery.spool import Batch, Spool
from metrics.event_files import EventFile, recover_orphans
from metrics.event_log import EventLog, EventLogSettings

WORKERS = st.integers(0, 1)


class Topic:
    """Keeps what arrives; it may take a part and fail, as a broker that dies."""

    batch_bytes = 200

    def __init__(self, arrived: Counter[bytes]) -> None:
        self.arrived = arrived
        self.fails_after: int | None = None

    def deliver(self, batch: Batch) -> int:
        taken = batch.lines if self.fails_after is None else batch.lines[: self.fails_after]
        self.arrived.update(taken)
        if self.fails_after is not None:
            raise DeliveryFailed("the broker died")
        return 0


class Crashes(RuleBasedStateMachine):
    """Workers that write, rotate and die; retention; a deliverer that is killed at any step."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.logs = [self._log(0), self._log(1)]
        self.written: set[bytes] = set()
        self.unwritten = 0
        self.now = 0.0
        self.topic = Topic(Counter())
        self._start()

    def _log(self, worker: int) -> EventLog:
        settings = EventLogSettings(
            directory=self.directory,
            proxy_id="p",
            worker=worker,
            rotate_bytes=150,
            retention_bytes=600,
            delivered=True,
        )
        return EventLog(settings)

    def _start(self) -> None:
        self.spool = Spool(self.directory)
        self.lock = lock(self.spool.fd)
        position = Position.load(self.spool.fd, "topic")
        self.deliverer = Deliverer(self.spool, position, self.topic, Selection())

    def _kill(self) -> None:
        os.close(self.lock)
        self.spool.close()

    @rule(worker=WORKERS, sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4))
    def write(self, worker: int, sizes: list[int]) -> None:
        lines = [f"{len(self.written) + at:06}{'x' * size}" for at, size in enumerate(sizes)]
        self.logs[worker].append(lines, self.now, self.now)
        self.written.update(line.encode() for line in lines)
        self.now += 1.0

    @rule(worker=WORKERS)
    def rotate(self, worker: int) -> None:
        self.logs[worker].close(self.now)

    @rule(worker=WORKERS, half=st.binary(max_size=20))
    def worker_dies(self, worker: int, half: bytes) -> None:
        """In the middle of a write; the next one recovers what it left."""
        log = self.logs[worker]
        if log._file is not None:
            os.write(log._file._fd, half.replace(b"\n", b""))
            log._file.abandon()
        new = self._log(worker)
        new.undelivered = log.undelivered
        new.recover()
        self.logs[worker] = new

    @rule(steps=st.integers(0, 12), save=st.booleans())
    def deliver_and_die(self, steps: int, save: bool) -> None:
        for _ in islice(self.deliverer.steps(), steps):
            pass
        if save:
            self.deliverer.save()
        self._kill()
        self._start()

    @rule()
    def deliver(self) -> None:
        for _ in self.deliverer.steps():
            pass
        self.deliverer.save()

    @rule(taken=st.integers(0, 3))
    def deliver_to_a_broker_that_dies(self, taken: int) -> None:
        self.topic.fails_after = taken
        with suppress(DeliveryFailed):
            for _ in self.deliverer.steps():
                pass
        self.topic.fails_after = None
        self.deliverer.save()

    @rule(content=st.sampled_from([b"", b"{", b"[]", b'{"version": 1, "to": "topic", "files": 7}']))
    def position_is_damaged(self, content: bytes) -> None:
        (self.directory / NAME).write_bytes(content)
        self._kill()
        self._start()

    @invariant()
    def only_whole_lines_arrive(self) -> None:
        if hasattr(self, "topic"):
            assert self.topic.arrived.keys() <= self.written

    def teardown(self) -> None:
        if not hasattr(self, "topic"):
            return
        for log in self.logs:
            log.close(self.now)
        self.deliver()
        lost = self.written - self.topic.arrived.keys()
        assert len(lost) <= sum(log.undelivered for log in self.logs)
        waiting = self.deliverer.waiting()
        assert (waiting.bytes, waiting.since) == (0, None)
        self._kill()
        shutil.rmtree(self.directory)


Crashes.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a disk that is busy
)
test_crashes = Crashes.TestCase


def test_a_file_that_is_closed_keeps_its_position(tmp_path: Path) -> None:
    """The position is that of the final name: a rename does not deliver twice."""
    spool, topic = Spool(tmp_path), Topic(Counter())
    file = EventFile(tmp_path, "events-p-0-20260601T120000Z")
    deliverer = Deliverer(spool, Position("topic"), topic, Selection())
    for content in (b"one\ntwo\n", b"three\n"):
        file.write(content)
        for _ in deliverer.steps():
            pass
    file.close()
    for _ in deliverer.steps():
        pass
    assert topic.arrived == Counter({b"one": 1, b"two": 1, b"three": 1})
    assert recover_orphans(tmp_path) == []
    spool.close()
