"""Loop of a delivery: passes over the folder, pauses, retries, and the end.

It blocks, on the disk and on the network, and runs in a thread of its own. In the proxy it has a
process of its own beside the workers, which know nothing of it.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from metrics.delivery.deliverer import Delivered, Deliverer, DeliveryFailed, Sink, Waiting
from metrics.delivery.position import DeliveredElsewhere, Position, lock
from metrics.delivery.selection import Selection, Target
from metrics.delivery.spool import Spool
from metrics.event_files import recover_orphans
from proxy import config
from proxy.delivery.counts import DeliveryCounts
from proxy.delivery.topic import Settings, TopicSink
from proxy.errors import ProxyError, printable
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.lifeline import heed_parent
from proxy.scheduling.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)

PASS_EVERY: Final = 1.0
"""Seconds between two passes over the folder."""
SAVE_EVERY: Final = 1.0
"""Seconds between two writes of the position in a long pass."""
LOOK_EVERY: Final = 0.2
"""Seconds between two checks for the end; without a lock, so that a signal handler can request
it."""
END_EVERY: Final = 0.2
"""Seconds between two passes at the end, while workers close their files."""
MAX_BACKOFF: Final = 30.0
"""Longest pause in seconds after failures, from one second doubled each time."""
OPEN_EVERY: Final = 1.0
"""Seconds between two attempts to open the folder of the events."""
LAST_WORDS: Final = 1.0
"""Seconds beyond `events.deliver.drain.ms` for writing the position."""


class DeliveryError(ProxyError):
    """A folder cannot be delivered."""


class End:
    """End of a delivery, which is requested and then takes a bounded time."""

    def __init__(self, drain_seconds: float) -> None:
        """Allow `drain_seconds` for delivering the rest."""
        self.drain_seconds = drain_seconds
        self._deadline: float | None = None

    def ask(self) -> None:
        """Request the end, from any thread or a signal handler."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self.drain_seconds

    @property
    def is_asked(self) -> bool:
        """True if the delivery ends once nothing is left."""
        return self._deadline is not None

    def is_over(self) -> bool:
        """Return whether it must end now, even if something is left."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def pause(self, seconds: float) -> None:
        """Wait, at most until the end is requested or the time for it is over."""
        was_asked, until = self.is_asked, time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.is_over():
            if self.is_asked and not was_asked:
                return
            time.sleep(min(left, LOOK_EVERY))


class DeliveryLoop:
    """Delivery of one folder to one target."""

    def __init__(
        self,
        folder: Path,
        target: Target,
        deliverer: Deliverer,
        spool: Spool,
        end: End,
        counts: DeliveryCounts,
    ) -> None:
        self._folder = folder
        self._target = target
        self._deliverer = deliverer
        self._spool = spool
        self._end = end
        self._counts = counts
        self._reported = Delivered()
        self._waiting = Waiting()
        self._saved_at = -math.inf  # save at once: the saved position may be another target's
        self._failures = 0
        self._repeats = LogRateLimit()

    @property
    def delivered(self) -> Delivered:
        """Counts since this process began."""
        return self._deliverer.delivered

    @property
    def left(self) -> bool:
        """True if the last pass did not deliver everything that it found."""
        return self._waiting.bytes > 0

    def run(self) -> None:
        """Deliver until the end is requested and nothing deliverable is left, or the time is over.

        Raises DeliveryError if the folder was replaced.
        """
        while True:
            ending = self._end.is_asked
            if ending:
                recover_orphans(self._folder)
            delivered = self.attempt()
            if self._end.is_over() or (ending and delivered and not self._waiting.bytes):
                return
            self._end.pause(self._pause(ending))

    def attempt(self) -> bool:
        """Make one pass over the folder; return whether everything deliverable was delivered."""
        if not self._spool.is_in_place():
            raise DeliveryError(f"{self._folder} was moved or replaced")
        try:
            whole = self._pass()
        except (DeliveryFailed, OSError) as error:
            self._failed(error)
            return False
        finally:
            self._publish()
        if whole:
            self._succeeded()
        return whole

    def _pass(self) -> bool:
        try:
            for _ in self._deliverer.steps():
                if self._end.is_over():
                    return False
                if time.monotonic() - self._saved_at >= SAVE_EVERY:
                    self._save()
                    self._publish()
        finally:
            self._save()
        return True

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        try:
            self._deliverer.save()
        except OSError as error:
            problem = f"the position of the delivery cannot be written: {error.strerror}"
            self._warn(f"{problem}; events may be delivered twice")

    def _publish(self) -> None:
        now, before = self._deliverer.delivered, self._reported
        self._counts.add(
            Delivered(
                events=now.events - before.events,
                bytes=now.bytes - before.bytes,
                set_aside=now.set_aside - before.set_aside,
                gone_files=now.gone_files - before.gone_files,
            )
        )
        self._reported = replace(now)
        for name in self._deliverer.gone:
            self._warn(f"{name} was removed before it was delivered", cause="gone")
        self._deliverer.gone.clear()
        self._waiting = self._deliverer.waiting()
        self._counts.set_waiting(self._waiting)

    def _pause(self, ending: bool) -> float:
        if self._failures:
            return min(2.0 ** min(self._failures - 1, 10), MAX_BACKOFF)
        return END_EVERY if ending else PASS_EVERY

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._counts.failed()
        if isinstance(error, OSError):
            self._warn(f"{self._folder} cannot be read: {error.strerror}", cause="failed")
        else:
            self._warn(f"events wait, {self._target} does not take them: {error}", cause="failed")

    def _succeeded(self) -> None:
        if self._failures:
            log.info("events are delivered again to %s", self._target)
        self._failures = 0
        self._counts.succeeded(time.time())

    def _warn(self, problem: str, *, cause: str | None = None) -> None:
        self._repeats.warn(log, printable(problem), time.monotonic(), cause=cause)


@contextmanager
def opened(
    folder: Path,
    target: Target,
    sink: Sink,
    selection: Selection,
    end: End,
    counts: DeliveryCounts | None = None,
) -> Iterator[DeliveryLoop]:
    """Open a folder for delivery, and lock it against other deliverers.

    Raises DeliveryError.
    """
    try:
        spool = Spool(folder)
    except OSError as error:
        raise DeliveryError(f"{folder} cannot be read: {error.strerror}") from None
    try:
        try:
            held = lock(spool.fd)
        except DeliveredElsewhere:
            raise DeliveryError(f"{folder}: another process delivers from it") from None
        except OSError as error:
            raise DeliveryError(f"{folder} cannot be written to: {error.strerror}") from None
        try:
            position = Position.load(spool.fd, str(target))
            deliverer = Deliverer(spool, position, sink, selection)
            yield DeliveryLoop(folder, target, deliverer, spool, end, counts or DeliveryCounts())
        finally:
            os.close(held)
    finally:
        spool.close()


def run(
    settings: config.Config, counts: DeliveryCounts, lifeline: int, heartbeat: Heartbeat
) -> int:
    """Deliver until SIGTERM, or until `lifeline` ends, and then the rest; return the status."""
    return asyncio.run(_deliver(settings, counts, lifeline, heartbeat))


async def _deliver(
    settings: config.Config, counts: DeliveryCounts, lifeline: int, heartbeat: Heartbeat
) -> int:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    stopping = heed_parent(lifeline, heartbeat)
    end = End(settings.events.deliver.drain_ms / 1000)
    failed = True

    def work() -> None:
        nonlocal failed
        try:
            _run_loop(settings, counts, end)
            failed = False
        except Exception:
            log.exception("the delivery failed")
        finally:
            loop.call_soon_threadsafe(ended.set)

    Thread(target=work, name="delivery", daemon=True).start()
    asking = asyncio.create_task(_ask(stopping, end, ended))
    await ended.wait()
    asking.cancel()
    return 1 if failed else 0


async def _ask(stopping: asyncio.Event, end: End, ended: asyncio.Event) -> None:
    """Request the end when it is time, and do not wait for a disk or a network that hangs."""
    await stopping.wait()
    end.ask()
    await asyncio.sleep(end.drain_seconds + LAST_WORDS)
    ended.set()


def _run_loop(settings: config.Config, counts: DeliveryCounts, end: End) -> None:
    deliver, folder = settings.events.deliver, settings.events.directory
    assert deliver.to is not None
    assert folder is not None
    sink = TopicSink(deliver.to.topic, partial(_kafka_settings, settings), end.is_over)
    selection = Selection(kinds=deliver.kinds, hide=frozenset(deliver.hide))
    repeats = LogRateLimit()
    while not end.is_asked:
        try:
            with opened(folder, deliver.to, sink, selection, end, counts) as loop:
                log.info("delivers the events in %s to %s", folder, deliver.to)
                loop.run()
        except DeliveryError as error:  # the folder was replaced, or another proxy has locked it
            counts.failed()
            repeats.warn(log, str(error), time.monotonic())
            end.pause(OPEN_EVERY)


def _kafka_settings(settings: config.Config) -> Settings:
    """Return the settings of librdkafka, with credentials as they are now. Raises ConfigError."""
    from proxy.delivery.kafka_settings import of_configuration

    kafka = settings.events.deliver.kafka
    if not kafka.bootstrap_servers:
        servers = ",".join(map(str, settings.upstream.bootstrap_servers))
        return of_configuration(servers, settings.upstream)
    return of_configuration(",".join(map(str, kafka.bootstrap_servers)), kafka)
