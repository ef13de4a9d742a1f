"""Worker as a process: from its inputs to its exit status."""

import asyncio
import gc
import logging
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from proxy import config
from proxy.store import StoreError
from proxy.worker.worker import Worker

if TYPE_CHECKING:
    from proxy.worker.inputs import WorkerInputs

log = logging.getLogger(__name__)

COLLECTOR_THRESHOLD: Final = 1_500
"""Allocations between two runs of the cycle collector. A closed connection is a cycle: with more
between two runs, one that finds thousands of them holds up all others for tens of milliseconds."""
SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which a thread beside the event loop, which computes a response of about 100,000
ACLs say, lets the loop go on. Python's own five milliseconds would be added to every iteration of
the loop."""
LOOK_EVERY: Final = 1.0
"""Seconds between two attempts to read the store."""


def run(
    path: Path, settings: config.Config, latest: config.Config, given: "WorkerInputs", lifeline: int
) -> int:
    """Run a worker process until it is stopped; return its exit status.

    `latest` are the settings as of the last reload, which a restarted worker must not lose;
    `settings` those that the proxy was started with.
    """

    async def main() -> int:
        worker = _made(path, settings, given, lifeline)
        if worker is None:
            return 0
        gc.freeze()  # nor are 100,000 ACLs
        if latest is not settings:
            worker.apply(latest)
        return await worker.run(lifeline)

    gc.freeze()  # what the parent made is not looked through again
    gc.set_threshold(COLLECTOR_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _made(
    path: Path, settings: config.Config, given: "WorkerInputs", lifeline: int
) -> Worker | None:
    """Make the worker as soon as its store can be read; None: its parent has ended before.

    That could be read when the proxy began: one that cannot be for a while is no reason for it to
    give up, and to close what the other workers serve.
    """
    said = ""
    while True:
        try:
            return Worker(path, settings, given)
        except StoreError as error:
            if str(error) != said:
                said = str(error)
                log.error("worker %d waits for its store: %s", given.number, said)
            given.heartbeat.begin()  # it does not hang
        if select.select([lifeline], [], [], LOOK_EVERY)[0]:
            return None
