"""What a worker does beside its connections. As a process: `test_server.py`."""

import asyncio
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from metrics import registry
from proxy import config, handlers
from proxy.store import open_store
from proxy.worker import store_service, worker
from proxy.worker.connection_limits import Shared
from proxy.worker.inputs import SharedConfiguration, WorkerInputs
from sasl.identity import Identity
from tests.support.authenticating_broker import Client
from tests.support.client_identity import Issuing, client
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.settings import SCRAM, mapping
from tests.support.settings import configured as settings_of
from tests.support.store import SHA_256, describe_question, verifier


@pytest.fixture
def given() -> Iterator[WorkerInputs]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
        with one.control, one.scrape:
            yield one


def configured(
    directory: Path, given: WorkerInputs, broker: int = 1, **more: Any
) -> tuple[Path, config.Config]:
    path = directory / "proxy.yaml"
    port = given.listening["clients"].getsockname()[1]
    listener = SCRAM | {"address": f"127.0.0.1:{port}", "reauth.enforcement": "observe"}
    upstream = {"bootstrap.servers": f"127.0.0.1:{broker}"}
    store = {"url": f"sqlite:{directory / 'state.db'}"}
    path.write_text(yaml.safe_dump(mapping(listener, upstream, store=store, workers=1, **more)))
    return path, config.load(path)


async def test_an_answer_in_steps_tells_their_time(
    tmp_path: Path, given: WorkerInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of it: finding what matches, and writing it."""
    monkeypatch.setattr(handlers, "thread_time_ns", lambda: 0)
    one = worker.Worker(configured(tmp_path, given, authorizer={"mode": "enforce"})[1], given)
    _, spent_ns = await one.consult(describe_question())
    assert spent_ns > 0
    await end(one)


def ticks(one: worker.Worker) -> int:
    """How often it has looked at deadlines."""
    lags = one.tally.snapshot().histograms.get(registry.EVENT_LOOP_LAG.name, {})
    return sum(sum(lag.counts) for lag in lags.values())


async def test_whether_it_is_ready_is_told(tmp_path: Path, given: WorkerInputs) -> None:
    """As `/readyz` has it: nobody asks that for an alert."""
    async with FakeBroker() as broker:
        one = worker.Worker(configured(tmp_path, given, broker.port)[1], given)
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
    tmp_path: Path, given: WorkerInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that must be closed is closed, however long the store takes."""
    monkeypatch.setattr(worker, "TICK", 0.001)
    monkeypatch.setattr(store_service, "REFRESH_EVERY", 0.001)
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        one = worker.Worker(configured(tmp_path, given)[1], given)
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


async def test_a_reload_takes_what_the_parent_judged(tmp_path: Path, given: WorkerInputs) -> None:
    """The file itself may hold something else by then, for some of the workers or for all."""
    path, settings = configured(tmp_path, given)
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
    tmp_path: Path, given: WorkerInputs, reloads: list[bool]
) -> None:
    """Its parent's signal is ignored until then: it may have waited for its store for long."""
    path, settings = configured(tmp_path, given)
    lifeline, parent = os.pipe()
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


async def test_a_revoked_user_loses_sessions_and_delegation_tokens_at_once(
    tmp_path: Path, given: WorkerInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of another replica as well; those of other users stay."""
    monkeypatch.setattr(worker, "TICK", 0.02)
    monkeypatch.setattr(store_service, "REFRESH_EVERY", 0.02)
    (tmp_path / "password").write_text("secret")
    port = given.listening["clients"].getsockname()[1]
    listener = {
        **SCRAM,
        "address": f"127.0.0.1:{port}",
        "revoke.sessions": "at-once",
        "upstream.identity": "delegation-token",
        "upstream.identity.mechanism": "SCRAM-SHA-256",
        "upstream.identity.allow.prefixes": ["User:"],
        "upstream.identity.super.users": [],
    }
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "proxy",
        "sasl.password": f"file:{tmp_path / 'password'}",
    }
    async with Issuing() as peer:
        upstream = {"bootstrap.servers": f"127.0.0.1:{peer.port}", **login}
        settings = settings_of(tmp_path, listener, upstream)
        with closing(open_store(settings.store.url)) as store:
            users = {(name, SHA_256): verifier() for name in ("alice", "bob")}
            store.alter_credentials(upsert=users)
            one = worker.Worker(settings, given)
            await one._open()
            sessions = {}
            for name in ("alice", "bob"):
                await one._listeners[0].exchange(client(f"User:{name}"), ("127.0.0.1", peer.port))
                sessions[name] = Client(*await asyncio.open_connection("127.0.0.1", port))
                assert await sessions[name].log_in(user=name) >= 0
            peer.issued.append(peer.issued[0] | {"token_id": "other", "hmac": b"other"})
            store.alter_credentials(delete=[("alice", SHA_256)], upsert={})
            assert await sessions["alice"].is_closed()
            await until(lambda: [token["principal_name"] for token in peer.issued] == ["bob"])
            assert len(one._listeners[0].clients) == 1
            for session in sessions.values():
                session.writer.close()
            await end(one)
