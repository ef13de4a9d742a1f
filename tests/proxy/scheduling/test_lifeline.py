"""Tasks that run as long as a worker."""

import asyncio
import logging

import pytest

from proxy.scheduling import lifeline
from proxy.scheduling.lifeline import supervised


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "PAUSE", 0.0)


def test_a_mistake_is_logged_and_is_not_its_end(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise KeyError("a mistake")

    asyncio.run(supervised(work))
    assert begun == 3, "twice by mistake, and then by itself"
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


async def test_it_ends_with_its_worker() -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(supervised(for_ever))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
