"""What clients ask a worker's store: in nobody's way, and not asked for nobody."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from proxy import handlers
from proxy.store import Store, StoreError
from proxy.worker import store_service
from tests.support.acls import acl
from tests.support.processes import PATIENCE_SECONDS, turns
from tests.support.store import Reading, create_question, denied, describe_question, users_question
from tests.support.store import plain as plain


class Busy:
    """Threads of somebody's, kept busy until the end of the block."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        """Released by each that is busy."""
        self._over = threading.Event()

    def __call__(self) -> None:
        self.began.release()
        assert self._over.wait(PATIENCE_SECONDS)

    async def began_in(self, threads: int) -> None:
        for _ in range(threads):
            assert await asyncio.to_thread(self.began.acquire, timeout=PATIENCE_SECONDS)

    def __enter__(self) -> "Busy":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


async def test_questions_are_in_no_way_of_the_looks_at_the_store(plain: Store) -> None:
    """However many there are, and however long they take: what is removed ends within a second."""
    reading = Reading(plain)
    await reading.keeper.refresh()
    with Busy() as busy:
        reading.store.each["credential_snapshot"] = busy
        asked = [asyncio.create_task(reading.keeper.consult(users_question())) for _ in "x" * 99]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await busy.began_in(threads=2)
            plain.create_acls([acl("a")])
            await reading.keeper.refresh()
            assert not any(one.done() for one in asked)
    await asyncio.gather(*asked)
    assert reading.acls() == 1


async def test_questions_need_none_of_the_threads_of_others(plain: Store) -> None:
    """Nor do they have the store looked at: they change nothing."""
    reading = Reading(plain)
    with Busy() as busy:
        shared = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(shared)
        looking = asyncio.create_task(asyncio.to_thread(busy))
        async with asyncio.timeout(PATIENCE_SECONDS):
            for one in (users_question(), describe_question(), denied(create_question())):
                await reading.keeper.consult(one)
    await looking
    assert reading.store.looks == 0


async def test_who_has_no_right_is_in_the_way_of_none_who_has(plain: Store) -> None:
    reading = Reading(plain)
    with Busy() as busy:
        asyncio.get_running_loop().run_in_executor(reading.keeper._refusals, busy)
        refused = asyncio.create_task(reading.keeper.consult(denied(users_question())))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await busy.began_in(threads=1)
            for one in (users_question(), create_question()):
                await reading.keeper.consult(one)
            assert not refused.done()
    await refused
    assert reading.acls() == 1, "a change is in force when it is answered"


@pytest.mark.parametrize("given_up", ["late", "gone"])
def test_a_question_that_is_given_up_is_not_asked(
    plain: Store, monkeypatch: pytest.MonkeyPatch, given_up: str
) -> None:
    """When its time is over, or nobody awaits it any more."""
    reading = Reading(plain)
    asked: list[str] = []
    reading.store.each["acl_version"] = lambda: asked.append("late")

    async def run() -> None:
        keeper = reading.keeper
        with Busy() as busy:
            for _ in range(2):
                asyncio.get_running_loop().run_in_executor(keeper._questions, busy)
            await busy.began_in(threads=2)
            if given_up == "late":
                monkeypatch.setattr(store_service, "MAX_WAIT", 0.01)
                with pytest.raises(StoreError, match="no answer within"):
                    await keeper.consult(describe_question())
                monkeypatch.undo()
            else:
                question = asyncio.create_task(keeper.consult(describe_question()))
                await turns()
                question.cancel()
                await asyncio.gather(question, return_exceptions=True)
        await asyncio.wait_for(keeper.consult(users_question()), PATIENCE_SECONDS)

    asyncio.run(run())
    assert asked == []


def test_the_time_of_a_question_is_told(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(plain)
    clock = iter((5, 12))
    monkeypatch.setattr(handlers, "thread_time_ns", lambda: next(clock))
    _, spent_ns = asyncio.run(cast(Any, reading.keeper.consult(users_question())))
    assert spent_ns == 7


def test_acls_that_were_told_are_in_force(plain: Store) -> None:
    """Somebody else changed them; a client that sees the change here can rely on it here."""
    reading = Reading(plain)
    plain.create_acls([acl("a")])
    asyncio.run(cast(Any, reading.keeper.consult(describe_question())))
    assert (reading.acls(), reading.judged_anew) == (1, 1)
