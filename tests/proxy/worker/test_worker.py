"""What a worker does beside its connections. As a process: `test_server.py`."""

import asyncio
import os
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from metrics import registry
from proxy import config, handlers
from proxy.worker import store_service, worker
from proxy.worker.connection_limits import Shared
from proxy.worker.inputs import SharedConfiguration, WorkerInputs
from sasl.identity import Identity
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.store import describe_question


def configured(
    directory: Path, address: str, broker: int = 1, **more: Any
) -> tuple[Path, config.Config]:
    path = directory / "proxy.yaml"
    listener = {
        "name": "clients",
        "address": address,
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "reauth.enforcement": "observe",
    }
    settings = {
        "upstream": {"bootstrap.servers": f"127.0.0.1:{broker}"},
        "listeners": [listener],
        "store": {"url": f"sqlite:{directory / 'state.db'}"},
        "workers": 1,
        **more,
    }
    path.write_text(yaml.safe_dump(settings))
    return path, config.load(path)


def test_an_answer_in_steps_tells_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of it: finding what matches, and writing it."""
    monkeypatch.setattr(handlers, "thread_time_ns", lambda: 0)

    async def run(listening: socket.socket) -> int:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        _, settings = configured(tmp_path, address, authorizer={"mode": "enforce"})
        given = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
        with given.control, given.scrape:
            one = worker.Worker(settings, given)
            _, spent_ns = await one.consult(describe_question())
            await end(one)
            return spent_ns

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert asyncio.run(run(listening)) > 0


def ticks(one: worker.Worker) -> int:
    """How often it has looked at deadlines."""
    lags = one.tally.snapshot().histograms.get(registry.EVENT_LOOP_LAG.name, {})
    return sum(sum(lag.counts) for lag in lags.values())


async def test_whether_it_is_ready_is_told(tmp_path: Path) -> None:
    """As `/readyz` has it: nobody asks that for an alert."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with FakeBroker() as broker:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            _, settings = configured(tmp_path, address, broker.port)
            given = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
            with given.control, given.scrape:
                one = worker.Worker(settings, given)
                reported = [ready(one)]
                await one._open()
                reported.append(ready(one))
                one._stopping.set()
                reported.append(ready(one))
                assert reported == [{("0",): 0}, {("0",): 1}, {("0",): 0}]
                await end(one)


def ready(one: worker.Worker) -> dict[tuple[str, ...], float]:
    return one.tally.snapshot().values[registry.READY.name]


async def end(one: worker.Worker) -> None:
    one._endpoints.close()
    for task in list(one._tasks):
        task.cancel()
    await until(lambda: not one._tasks)
    one._store.close()


async def test_deadlines_do_not_wait_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that must be closed is closed, however long the store takes."""
    monkeypatch.setattr(worker, "TICK", 0.001)
    monkeypatch.setattr(store_service, "REFRESH_EVERY", 0.001)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _, settings = configured(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}")
        given = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
        with given.control, given.scrape, ThreadPoolExecutor(1) as threads:
            one = worker.Worker(settings, given)
            await one._open()
            asyncio.get_running_loop().set_default_executor(threads)
            busy = asyncio.create_task(asyncio.to_thread(over.wait, PATIENCE_SECONDS))
            try:
                await until(lambda: threads._work_queue.qsize() > 0)  # a look at the store waits
                before = ticks(one)
                await until(lambda: ticks(one) > before + 2)
            finally:
                over.set()
            await busy
            await end(one)


async def test_a_reload_takes_what_the_parent_judged(tmp_path: Path) -> None:
    """The file itself may hold something else by then, for some of the workers or for all."""
    path, settings = configured(tmp_path, "127.0.0.1:1")
    given = WorkerInputs(0, Shared.of_processes(1, [100]))
    with given.control, given.scrape:
        one = worker.Worker(settings, given)

        (listener,) = one._listeners

        def reloaded(pickled: bytes, *, is_stale: bool = False) -> tuple[str, bool]:
            given.shared_configuration.put(pickled, is_stale=is_stale)
            one._reload()
            terms = listener.terms(Identity("User:alice"), "SCRAM-SHA-256")
            (shown,) = [each for each in one._conditions() if each.what == "configuration"]
            assert shown.good is not is_stale
            assert ("refused" in shown.state) is is_stale
            return terms.enforcement, one._is_configuration_stale

        began = listener.terms_changed_at
        assert given.shared_configuration.take() is None
        path.write_text(path.read_text().replace("observe", "probe"))
        right = pickle.dumps(config.load(path))
        path.write_text("listeners: [")
        assert reloaded(right) == ("probe", False)
        changed = listener.terms_changed_at
        assert changed > began
        assert reloaded(right, is_stale=True) == ("probe", True)
        path.unlink()
        assert reloaded(right) == ("probe", False)
        assert listener.terms_changed_at == changed, "the terms are the same"
        await end(one)


@pytest.mark.parametrize("reloads", [[False], [False, True]], ids=["valid", "valid, then invalid"])
async def test_a_reload_while_a_worker_starts_is_in_effect(
    tmp_path: Path, reloads: list[bool]
) -> None:
    """Its parent's signal is ignored until then: it may have waited for its store for long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        path, settings = configured(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}")
        given = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
        lifeline, parent = os.pipe()
        with given.control, given.scrape:
            one = worker.Worker(settings, given)
            path.write_text(path.read_text().replace("observe", "probe"))
            for is_stale in reloads:
                text = pickle.dumps(config.load(path))
                given.shared_configuration.put(text, is_stale=is_stale)
            running = asyncio.create_task(one.run(lifeline))
            await until(lambda: given.heartbeat.beats > 0)
            (listener,) = one._listeners
            terms = listener.terms(Identity("User:alice"), "SCRAM-SHA-256")
            assert (terms.enforcement, one._is_configuration_stale) == ("probe", reloads[-1])
            os.close(parent)
            assert await running == 0
        os.close(lifeline)


def test_what_is_just_being_put_is_not_taken() -> None:
    shared_configuration = SharedConfiguration()
    shared_configuration.put(b"whole")
    os.truncate(f"/proc/self/fd/{shared_configuration._file}", 34)
    assert shared_configuration.take() is None
    shared_configuration.put(b"older", is_stale=True)
    assert shared_configuration.take() == (b"older", True)
    os.close(shared_configuration._file)
