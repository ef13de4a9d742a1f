"""The proxy started as the manifests start it: what probes see, and what a restart does."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.demo import setup as identity
from proxy.demo.broker import BROKERS
from proxy.demo.setup import Program, read_report
from tests.support import deploy
from tests.support.deploy import OVERLAYS, kustomized, laid_out, missing
from tests.support.kafka import java
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.properties import BEHIND
from tests.support.processes import free_port_range, free_ports
from tests.support.proxy_process import ProxyProcess, sidecar_config

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 120.0
NAMES = ("orders", "payments")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[str]:
    """The address of one of librdkafka's mock brokers."""
    program = Program("broker", "proxy.demo.broker", [], tmp_path / "broker.log")
    yield program.wait_for_line(DEADLINE_SECONDS).partition(",")[0]
    program.ask_to_stop()
    program.ended(time.monotonic() + DEADLINE_SECONDS)


def _on_this_machine(overlay: str, directory: Path, upstream: str) -> dict[str, Any]:
    """The overlay's configuration with ports, brokers and signing keys that are here."""
    file = laid_out(kustomized(overlay), directory)
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    jwks = directory / "jwks.json"
    identity.write_jwks(jwks, identity.write_key(directory / "identity.pem"))
    (listener,) = config["listeners"]
    if listener.get("sasl.termination") == "broker":
        config["upstream"]["security.protocol"] = "SASL_PLAINTEXT"
    else:
        listener["sasl.oauthbearer.jwks.endpoint.url"] = jwks.as_uri()
        listener["sasl.oauthbearer.expected.issuer"] = identity.ISSUER
    first = free_port_range(BROKERS + 3)
    listener["address"] = f"127.0.0.1:{first}"
    config["http"]["address"] = f"127.0.0.1:{first + 1}"
    if listener["routing"] == "gateway":
        listener["broker.ports"] = f"{first + 2}-{first + 2 + BROKERS}"
    if listener["routing"] != "transparent":
        config["upstream"]["bootstrap.servers"] = upstream
    return config


def _status(config: dict[str, Any], probe: dict[str, Any]) -> int:
    url = f"http://{config['http']['address']}{probe['httpGet']['path']}"
    try:
        with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as answer:
            status: int = answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return status


def _becomes(config: dict[str, Any], probe: dict[str, Any], status: int) -> bool:
    """Whether it does at last: a probe may come too early, or not be answered in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            if _status(config, probe) == status:
                return True
        time.sleep(0.2)
    return False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_probe_is_answered(overlay: str, brokers: str, tmp_path: Path) -> None:
    sidecar = deploy.container(kustomized(overlay))
    config = _on_this_machine(overlay, tmp_path, brokers)
    with ProxyProcess(config, tmp_path):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert _becomes(config, sidecar[probe], 200), probe


def test_the_sidecar_starts_before_its_broker(tmp_path: Path) -> None:
    """The broker is started once the startup probe succeeds, so that must not wait for it."""
    sidecar = deploy.container(kustomized("ingress"))
    config = _on_this_machine("ingress", tmp_path, f"127.0.0.1:{free_ports(1)[0]}")
    with ProxyProcess(config, tmp_path):
        assert _becomes(config, sidecar["startupProbe"], 200)
        assert _becomes(config, sidecar["readinessProbe"], 503)


@pytest.mark.kafka
def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    """Idempotent producers and groups through three restarts: nothing lost, doubled, reordered."""
    try:
        java.class_path()
    except java.KafkaUnavailable as unavailable:
        missing(str(unavailable))
    jwks, key = tmp_path / "jwks.json", tmp_path / "identity.pem"
    identity.write_jwks(jwks, identity.write_key(key))
    port = free_ports(1)[0]
    bootstrap = ["--bootstrap-server", f"127.0.0.1:{port}"]
    with KafkaCluster(nodes=1, jwks=jwks, sidecar_port=port) as kafka:
        for name in NAMES:
            kafka.create_topic(name, partitions=3)
        upstream = str(kafka.address(listener=BEHIND))
        config = sidecar_config(upstream, jwks, listeners={"LONG": 20_000}, port=port)
        config["listeners"][0]["sasl.oauthbearer.expected.issuer"] = identity.ISSUER
        proxy = ProxyProcess(config, tmp_path)
        with proxy:
            clients = [
                Program(
                    name,
                    "proxy.demo.client",
                    [*bootstrap, "--client-id", name, "--topic", name, "--key-file", str(key)],
                    tmp_path / f"{name}.log",
                )
                for name in NAMES
            ]
            try:
                for target in (20, 60, 100):
                    _wait_until_delivered(clients, target)
                    proxy.stop()
                    proxy.start()
                _wait_until_delivered(clients, 140)
            finally:
                for client in clients:
                    client.ask_to_stop()
                ended = [client.ended(time.monotonic() + DEADLINE_SECONDS) for client in clients]
    assert ended == [True, True]
    for client in clients:
        report = read_report(client.last_line or "")
        assert report.undelivered == report.out_of_order == report.refused == 0, report
        assert report.received == report.delivered >= 140, report


def _wait_until_delivered(clients: list[Program], messages: int) -> None:
    deadline = time.monotonic() + 2 * DEADLINE_SECONDS
    while any(
        not one.last_line or read_report(one.last_line).delivered < messages for one in clients
    ):
        assert time.monotonic() < deadline, [client.last_line for client in clients]
        time.sleep(0.2)
