"""How tests wait, in an event loop: for what they want to see, and for as long as it takes.

How fast the machine is, is no property of ours.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 90.0
"""For what a busy machine does at last; nothing that works waits for it."""


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds; raises TimeoutError if it never does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def turns(count: int = 50) -> None:
    """Let the event loop turn: what is there to be done in it is done then."""
    for _ in range(count):
        await asyncio.sleep(0.001)
