"""Threads for reading from a place that may never answer: they do not keep the process alive."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

MAX_THREADS: Final = 16
"""Largest number of threads; what is asked for beyond them waits."""

T = TypeVar("T")


class ReadingThreads:
    """Daemon threads, one for each call, which asyncio's own threads are not: a loop and the
    interpreter wait for those before they end."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_THREADS)

    async def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises.

        A call that is cancelled keeps its thread until `work` is done.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: Future[T] = Future()

        def run() -> None:
            done.set_running_or_notify_cancel()
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._free.release)

        threading.Thread(target=run, name="reading", daemon=True).start()
        return await asyncio.wrap_future(done)
