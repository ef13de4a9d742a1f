"""Deliverer: a process of its own beside the workers, which know nothing of it."""

import asyncio
import logging
import time
from functools import partial
from threading import Thread
from typing import Final

from metrics.delivery.selection import Selection
from proxy import config
from proxy.delivery.counts import DeliveryCounts
from proxy.delivery.loop import DeliveryError, End, opened
from proxy.delivery.topic import Settings, TopicSink
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.lifeline import heed_parent
from proxy.scheduling.log_rate_limit import LogRateLimit

OPEN_EVERY: Final = 1.0
"""Seconds between two attempts to open the folder of the events."""
LAST_WORDS: Final = 1.0
"""Seconds beyond `events.deliver.drain.ms` for writing the position."""

log = logging.getLogger(__name__)


def run(
    settings: config.Config, counts: DeliveryCounts, lifeline: int, heartbeat: Heartbeat
) -> int:
    """Deliver until SIGTERM, or until `lifeline` ends, and then what is left; return the status."""
    return asyncio.run(_deliver(settings, counts, lifeline, heartbeat))


async def _deliver(
    settings: config.Config, counts: DeliveryCounts, lifeline: int, heartbeat: Heartbeat
) -> int:
    loop, stopping, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    heed_parent(stopping, lifeline, heartbeat)
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
    """Ask for the end when it is time; wait no longer for a disk or a network that hangs."""
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
        except DeliveryError as error:  # the folder is replaced, or another proxy's for now
            counts.failed()
            if (line := repeats.line(str(error), str(error), time.monotonic())) is not None:
                log.warning("%s", line)
            end.pause(OPEN_EVERY)


def _kafka_settings(settings: config.Config) -> Settings:
    """Return the settings of librdkafka, with credentials as they are now. Raises ConfigError."""
    from proxy.delivery.kafka_settings import of_configuration

    kafka = settings.events.deliver.kafka
    if not kafka.bootstrap_servers:
        servers = ",".join(map(str, settings.upstream.bootstrap_servers))
        return of_configuration(servers, settings.upstream)
    return of_configuration(",".join(map(str, kafka.bootstrap_servers)), kafka)
