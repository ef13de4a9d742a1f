"""Trial of a configuration's connections, at brokers whose clients log in themselves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Routing, from_mapping
from proxy.errors import ConfigError
from proxy.process.connectivity import Outcome, outcomes
from tests.support.fake_broker import WantsLogin
from tests.support.processes import free_ports

BOOTSTRAP = "bootstrap.servers"


def tried(
    tmp_path: Path, broker: WantsLogin, *routings: Routing, more: tuple[str, ...] = ()
) -> list[Outcome]:
    """Outcomes of a trial at this broker, and at the addresses `more`."""

    async def trial() -> list[Outcome]:
        async with broker:
            settings = relaying(routings, [broker.address, *more])
            config = from_mapping(settings, base_dir=tmp_path)
            return [one async for one in outcomes(config)]

    return asyncio.run(trial())


def relaying(routings: tuple[Routing, ...], servers: list[str]) -> dict[str, Any]:
    listeners = []
    for port, routing in zip(free_ports(len(routings)), routings, strict=True):
        listener = {
            "name": routing.value,
            "address": f"127.0.0.1:{port}",
            "routing": routing.value,
            "sasl.termination": "broker",
        }
        if routing is Routing.GATEWAY:
            listener |= {"advertised.host": "127.0.0.1", "broker.ports": "9100-9109"}
        listeners.append(listener)
    upstream = {BOOTSTRAP: servers, "security.protocol": "SASL_PLAINTEXT"}
    return {"upstream": upstream, "listeners": listeners, "http": {"address": None}}


@pytest.mark.parametrize("routing", [Routing.SIDECAR, Routing.GATEWAY])
def test_brokers_are_asked_only_what_they_answer_before_a_login(
    tmp_path: Path, routing: Routing
) -> None:
    broker = WantsLogin()
    found = tried(tmp_path, broker, routing)
    assert f"broker {broker.address} answers; clients log in to it themselves" in found
    assert not [one for one in found if isinstance(one, ConfigError)]
    assert broker.requests
    assert {api_key for api_key, _ in broker.requests} == {18}


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_broker_that_is_not_there_is_named(tmp_path: Path, host: str) -> None:
    [missing] = free_ports(1)
    found = tried(tmp_path, WantsLogin(), Routing.GATEWAY, more=(f"{host}:{missing}",))
    [problem] = [one for one in found if isinstance(one, ConfigError)]
    assert problem.path == f"upstream.{BOOTSTRAP}[1]"
    assert problem.problem.endswith(f"broker {host}:{missing}: Connection refused")
