"""Supervisor of background tasks that run as long as the worker.

An error must not end such a task: deadlines would be missed, and revoked rights would still apply.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between a failure and the next attempt."""


async def supervised(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` until it returns; log any exception, and run it again after `PAUSE`."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("an error of the proxy ended a background task, which is restarted")
        await asyncio.sleep(PAUSE)
