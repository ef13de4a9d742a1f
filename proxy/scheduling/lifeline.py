"""Signals of a child process, and its end when the parent ends."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from proxy.scheduling.heartbeats import BEAT_EVERY, Heartbeat


def heed_parent(
    lifeline: int, heartbeat: Heartbeat, *, reload: Callable[[], None] = lambda: None
) -> asyncio.Event:
    """Return an event that is set at SIGTERM, or when `lifeline` ends with the parent; call
    `reload` at SIGHUP.

    `heartbeat` beats for as long as the event loop runs. SIGINT, which a terminal sends to all
    processes, is ignored: the parent decides what to do.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGHUP, reload)
    loop.add_reader(lifeline, stopping.set)

    def beat() -> None:
        heartbeat.beat()
        loop.call_later(BEAT_EVERY, beat)

    beat()
    return stopping


async def run_until(stopping: asyncio.Event, work: Iterable[Coroutine[None, None, None]]) -> None:
    """Run coroutines that never end until `stopping` is set, then cancel them.

    Raises what any of them raises, after the others were cancelled.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        await stopping.wait()
        for task in tasks:
            task.cancel()


log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between a failure and the next attempt."""


async def supervised(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` until it returns; log any exception, and run it again after `PAUSE`."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("internal error: a background task failed and is restarted")
        await asyncio.sleep(PAUSE)
