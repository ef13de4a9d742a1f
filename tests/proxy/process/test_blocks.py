"""Three proxies that share a block list, under load."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from tests.support import transmitter
from tests.support.blocked_fleet import fleet
from tests.support.processes import until
from tests.support.proxy_process import Proxy
from tests.support.sasl import document, rsa_key


def wait(proxy: Proxy) -> Result:
    return CliRunner().invoke(app, ["blocks", "--wait", "--config", str(proxy.path)])


def logged(proxy: Proxy, text: str) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return text in proxy.log()

    return found


@pytest.mark.slow
def test_a_block_or_a_revoked_key_ends_sessions_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.cli.blocks.WAIT_S", 90.0)

    async def test() -> None:
        async with fleet(tmp_path, 3, 200, pause=0.5, workers=2) as running:
            victims = running.of(user=7)
            others = [one for one in running.sessions if one.user != 7]
            path = running.file
            whole = path.read_bytes()
            path.write_bytes(whole.replace(b": 0}", b": 1}"))
            for proxy in running.proxies:
                await proxy.until(logged(proxy, "is incomplete"))
            path.write_bytes(whole)
            running.block(principal="User:u7", reason="tested")
            await until(lambda: all(one.ended_at for one in victims))
            waited = await asyncio.to_thread(wait, running.proxies[0])
            assert waited.exit_code == 0, waited.stderr
            seen = {one.name: running.broker.last.get(one.name) for one in victims}
            assert await running.may_log_in(7) == [False] * 3
            assert await running.may_log_in(6) == [True] * 3
            answers = [one.answers for one in others]
            await until(
                lambda: all(one.answers > old for one, old in zip(others, answers, strict=True))
            )
            assert [one.name for one in others if one.ended_at is not None] == []
            assert {one.name: running.broker.last.get(one.name) for one in victims} == seen
            for proxy in running.proxies:
                conditions = (await proxy.fetch_json("/sessions.json"))["conditions"]
                rows = [one for one in conditions if one["what"] == "block list"]
                assert {"version 1 with 1 entries" in one["state"] for one in rows} == {True}
                assert "blocked: principal 'User:u7'" in proxy.log()
            status, metrics = await running.proxies[0].fetch("/metrics")
            assert status == 200
            assert "kafka_reauth_proxy_blocks_max_age_seconds 5.0" in metrics
            last = running.proxies[2]
            (last.path.parent / "jwks.json").write_bytes(document(rsa_key().jwk()))
            of_last = [one for one in others if one.proxy is last]
            await until(lambda: all(one.ended_at for one in of_last))
            assert {one.proxy for one in others if one.ended_at} == {last}
            assert "signing key was removed" in last.log()

    asyncio.run(asyncio.wait_for(test(), 300))


def test_a_worker_that_is_killed_during_a_block_enforces_it_after_its_restart(
    tmp_path: Path,
) -> None:
    """The block is an identity provider's signal, which the killed worker polls."""
    (tmp_path / "idp.json").write_bytes(document(rsa_key().jwk()))

    async def test() -> None:
        async with transmitter.transmitting() as idp:
            signals = {
                "endpoint.url": idp.url,
                "jwks.endpoint.url": f"file:{tmp_path / 'idp.json'}",
                "issuer": "https://idp.test",
                "audience": "kafka-proxies",
                "poll.ms": 1_000,
            }
            async with fleet(tmp_path, 1, 20, pause=0.05, workers=2, signals=signals) as running:
                (proxy,) = running.proxies
                await until(lambda: len(idp.requests) > 0)
                victims = running.of(user=7)
                others = [one for one in running.sessions if one.user != 7]
                subject = transmitter.ALICE | {"sub": "u7"}
                idp.sets["1"] = transmitter.signal("1", time.time(), subject=subject)
                killed = proxy.children()[0]
                os.kill(killed, signal.SIGKILL)
                await until(lambda: all(one.ended_at for one in victims))
                await until(lambda: idp.acknowledged == ["1"])
                waited = await asyncio.to_thread(wait, proxy)
                assert waited.exit_code == 0, waited.stderr
                late = [await running.may_log_in(7) for _ in range(4)]
                assert late == [[False]] * 4
                assert await running.may_log_in(6) == [True]
                assert any(one.ended_at is None for one in others), "those of the other worker"
                assert "reason 'session-revoked'" in proxy.log()
                assert "Traceback" not in proxy.log()
                status, metrics = await proxy.fetch("/metrics")
                assert status == 200
                assert 'block_signals_total{result="blocked"} 1.0' in metrics
                rows = (await proxy.fetch_json("/sessions.json"))["conditions"]
                assert [one["good"] for one in rows if one["what"] == "signals"] == [True]

    asyncio.run(asyncio.wait_for(test(), 120))
