"""Supervisor of background tasks that run as long as the worker.

An error must not end it: deadlines would pass unseen, and revoked rights go on applying.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between a failure and the next attempt."""


async def supervised(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do `work` until it ends by itself; log what else ends it, and begin anew."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("a mistake of the proxy; what was going on begins anew")
        await asyncio.sleep(PAUSE)
