"""Worker as a process: from its inputs to its exit status."""

import asyncio
import gc
import logging
import select
import sys
from typing import TYPE_CHECKING, Final

import uvloop

from proxy import config
from proxy.errors import ConfigError
from proxy.store import StoreError
from proxy.worker.worker import Worker

if TYPE_CHECKING:
    from proxy.worker.inputs import WorkerInputs

log = logging.getLogger(__name__)

COLLECTOR_THRESHOLD: Final = 1_500
"""Number of allocations between two runs of the cycle collector. A closed connection is a cycle:
with more allocations, a run may find thousands of them, and block the event loop for tens of
milliseconds."""
SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which another thread, which may be making a response about 100,000 ACLs, must let
the event loop run. Python's default, five milliseconds, would be added to every iteration of the
loop."""
CHECK_EVERY: Final = 1.0
"""Seconds between two attempts to start with what could not be read."""


def run(
    settings: config.Config,
    inputs: "WorkerInputs",
    lifeline: int,
) -> int:
    """Run a worker process until it is stopped; return its exit status.

    `settings` are those that the proxy was started with. `lifeline` ends with the parent.
    """

    async def main() -> int:
        worker = _made(settings, inputs, lifeline)
        if worker is None:
            return 0
        gc.freeze()  # the collector passes over what the worker has loaded, such as ACLs
        return await worker.run(lifeline)

    gc.set_threshold(COLLECTOR_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _made(settings: config.Config, inputs: "WorkerInputs", lifeline: int) -> Worker | None:
    """Make the worker as soon as its store and files can be read; None: the parent ended before.

    They could be read when the proxy started, so this worker waits for them: if it gave up, the
    proxy might end, and with it the connections of other workers.
    """
    logged = ""
    while True:
        try:
            return Worker(settings, inputs)
        except (StoreError, ConfigError) as error:
            if str(error) != logged:
                logged = str(error)
                log.error(
                    "worker %d waits for what it reads at its start: %s", inputs.number, logged
                )
            inputs.heartbeat.begin()  # a worker that waits does not hang
        if select.select([lifeline], [], [], CHECK_EVERY)[0]:
            return None
