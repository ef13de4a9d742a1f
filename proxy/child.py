"""What a child process of the proxy's does about signals, and about the end of its parent."""

import asyncio
import signal
from collections.abc import Callable


def heed_parent(
    stopping: asyncio.Event, lifeline: int, *, reload: Callable[[], None] = lambda: None
) -> None:
    """Set `stopping` at SIGTERM, or when `lifeline` ends with the parent; `reload` at SIGHUP.

    SIGINT, which a terminal sends to all of them, is for the parent to decide about.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGHUP, reload)
    loop.add_reader(lifeline, stopping.set)
