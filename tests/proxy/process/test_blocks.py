"""Three proxies that share a block list, under load, while things go wrong."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from tests.support import transmitter
from tests.support.blocked_fleet import FAULTS, Fleet, fleet
from tests.support.processes import until
from tests.support.proxy_process import Proxy
from tests.support.sasl import document, ed_key, rsa_key

HOSTILE = {
    "unsigned": transmitter.signal("unsigned", time.time()).rpartition(".")[0] + ".",
    "of another key": transmitter.signal("of another key", time.time(), key=ed_key()),
    "for others": transmitter.signal("for others", time.time(), aud="others"),
    "from others": transmitter.signal("from others", time.time(), iss="https://evil.test"),
    "an access token": transmitter.signal("an access token", time.time(), typ="at+jwt"),
    "repeated": transmitter.signal("repeated", time.time() - 2 * 86_400),
}


def wait(proxy: Proxy) -> Result:
    return CliRunner().invoke(app, ["blocks", "--wait", "--config", str(proxy.path)])


async def enforced(running: Fleet, user: int) -> dict[str, float | None]:
    """Wait until a block is in force everywhere; return when the broker last had requests."""
    victims = running.of(user=user)
    await until(lambda: all(one.ended_at for one in victims))
    waited = await asyncio.to_thread(wait, running.proxies[0])
    assert waited.exit_code == 0, waited.stderr
    assert await running.may_log_in(user) == [False] * len(running.proxies)
    return {one.name: running.broker.last.get(one.name) for one in victims}


@pytest.mark.slow
def test_blocks_end_sessions_and_no_other_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks are off by an hour; blocks come from the command and from an identity provider."""
    monkeypatch.setattr("proxy.cli.blocks.WAIT_S", 90.0)
    (tmp_path / "idp.json").write_bytes(document(rsa_key().jwk()))

    async def test(idp: transmitter.Transmitter) -> None:
        signals = {
            "endpoint.url": idp.url,
            "jwks.endpoint.url": f"file:{tmp_path / 'idp.json'}",
            "issuer": "https://idp.test",
            "audience": "kafka-proxies",
            "poll.ms": 1_000,
        }
        async with fleet(tmp_path, 3, 200, pause=0.5, workers=2, signals=signals) as running:
            first, last = running.proxies[0], running.proxies[-1]
            seen: dict[str, float | None] = {}
            for user, fault in enumerate(FAULTS.values()):
                async with fault(running):
                    running.block(principal=f"User:u{user}", reason="tested")
                seen |= await enforced(running, user)
            idp.sets |= HOSTILE
            subject = transmitter.ALICE | {"sub": "u7"}
            idp.sets["1"] = transmitter.signal("1", time.time(), subject=subject)
            os.kill(first.children()[0], signal.SIGKILL)  # the worker that polls
            seen |= await enforced(running, 7)
            await until(lambda: idp.acknowledged == ["repeated", "1"])
            assert idp.errors.keys() == HOSTILE.keys() - {"repeated"}
            blocked = {*range(len(FAULTS)), 7}
            others = [one for one in running.sessions if one.user not in blocked]
            answers = {one.name: one.answers for one in others if one.ended_at is None}
            await until(
                lambda: all(
                    one.answers > answers[one.name] for one in others if one.name in answers
                )
            )
            killed = {one.proxy for one in others if one.ended_at is not None}
            assert killed == {first, last}, "sessions of killed processes alone"
            assert {one.name: running.broker.last.get(one.name) for one in running.sessions
                    if one.name in seen} == seen  # fmt: skip
            assert await running.may_log_in(6) == [True] * 3
            for proxy in running.proxies:
                conditions = (await proxy.fetch_json("/sessions.json"))["conditions"]
                rows = [one for one in conditions if one["what"] == "block list"]
                assert {"version 6 with 6 entries" in one["state"] for one in rows} == {True}
                assert "Traceback" not in proxy.log()
            assert "blocked: principal 'User:u0'" in first.log()
            assert "reason 'session-revoked'" in first.log()
            status, metrics = await first.fetch("/metrics")
            assert status == 200
            assert "kafka_reauth_proxy_blocks_max_age_seconds 5.0" in metrics
            assert 'block_signals_total{result="blocked"} 1.0' in metrics
            middle = running.proxies[1]
            (middle.path.parent / "jwks.json").write_bytes(document(rsa_key().jwk()))
            await until(lambda: all(one.ended_at for one in others if one.proxy is middle))
            assert "signing key was removed" in middle.log()

    async def run() -> None:
        async with transmitter.transmitting() as idp:
            await test(idp)

    asyncio.run(asyncio.wait_for(run(), 300))
