"""What a worker does beside its connections. As a process: `test_server.py`."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from metrics import registry
from proxy import config, storekeeper, worker
from proxy.server import Worker as Given
from tests.proxy.waiting import PATIENCE_SECONDS, until


def configured(directory: Path, address: str) -> tuple[Path, config.Config]:
    path = directory / "proxy.yaml"
    listener = {
        "name": "clients",
        "address": address,
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "reauth.enforcement": "observe",
    }
    settings = {
        "upstream": {"bootstrap.servers": "127.0.0.1:1"},
        "listeners": [listener],
        "store": {"url": f"sqlite:{directory / 'state.db'}"},
        "workers": 1,
    }
    path.write_text(yaml.safe_dump(settings))
    return path, config.load(path)


def ticks(one: worker.Worker) -> int:
    """How often it has looked at deadlines."""
    lags = one._tally.snapshot().histograms.get(registry.EVENT_LOOP_LAG.name, {})
    return sum(sum(lag.counts) for lag in lags.values())


def test_deadlines_do_not_wait_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever must be closed is closed, however long the store takes to say what is new."""
    monkeypatch.setattr(worker, "TICK", 0.001)
    monkeypatch.setattr(storekeeper, "REFRESH_EVERY", 0.001)
    over = threading.Event()

    async def run(listening: socket.socket) -> None:
        path, settings = configured(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}")
        given = Given(0, listening={"clients": listening})
        with given.control, given.scrape, ThreadPoolExecutor(1) as threads:
            one = worker.Worker(path, settings, given)
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
            one._routing.close()
            for task in list(one._tasks):
                task.cancel()
            await until(lambda: not one._tasks)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(run(listening))
