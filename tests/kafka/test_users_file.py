"""Two proxies with one file of SCRAM users: who is in it logs in at both, and nobody else does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka.clients import password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.transcript import Actor, logs_in
from tests.support.kafka.scram_client import ScramClient
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import SUPER_USER, ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

MECHANISM = "SCRAM-SHA-256"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    for name in ("carol", SUPER_USER):
        add(path, name, password_of(name))
    return path


@pytest.fixture
def proxies(
    kafka: KafkaCluster, jwks: Path, file: Path, tmp_path: Path
) -> Iterator[tuple[ProxyProcess, ProxyProcess]]:
    made = []
    for name, workers in (("first", 1), ("second", 2)):
        config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
        config |= {"store": {"users.file": str(file)}, "workers": workers}
        (tmp_path / name).mkdir()
        made.append(ProxyProcess(config, tmp_path / name))
    first, second = made
    with ExitStack() as stack:
        yield stack.enter_context(first), stack.enter_context(second)


def add(file: Path, name: str, password: str) -> None:
    users = (sys.executable, "-m", "proxy", "users", "add", name, "--users-file", str(file))
    options = ("--mechanism", MECHANISM, "--password-file", "-")
    subprocess.run([*users, *options], input=password, check=True, text=True, timeout=120)


def test_what_the_file_says_holds_at_both(
    proxies: tuple[ProxyProcess, ProxyProcess], file: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """With kafka-configs.sh, too, which is told what is there, and that it is not changed so."""

    def carol_logs_in(proxy: ProxyProcess, password: str) -> bool:
        return logs_in(proxy.addresses()["LONG"], issuer, MECHANISM, "carol", password)

    for proxy in proxies:
        assert carol_logs_in(proxy, password_of("carol"))
    admin = user(issuer, MECHANISM, SUPER_USER).java(tmp_path)
    address = str(proxies[0].addresses()["LONG"])
    who = ("--entity-type", "users", "--entity-name", "carol")
    described = admin.run_tool("kafka-configs", address, *who, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in described.stdout, described
    change = ("--alter", "--add-config", "SCRAM-SHA-256=[password=mine]")
    altered = admin.run_tool("kafka-configs", address, *who, *change)
    assert altered.exit_status == 1, altered
    said = altered.stdout + altered.stderr
    assert "PolicyViolationException: SCRAM users are in a file" in said, altered

    add(file, "carol", "another")
    for proxy in proxies:
        proxy.until_known()
        for _ in range(4):  # with one worker or the other
            assert carol_logs_in(proxy, "another")
            assert not carol_logs_in(proxy, password_of("carol"))
            assert not carol_logs_in(proxy, "mine")


def test_who_asks_both_does_not_learn_who_exists(
    proxies: tuple[ProxyProcess, ProxyProcess], issuer: Issuer
) -> None:
    """The salt of a name is the same at both, whether there is such a user or not."""
    first, second = (proxy.addresses()["LONG"] for proxy in proxies)
    for name in ("carol", "nobody", "nobody else"):
        assert salt(first, issuer, name) == salt(second, issuer, name)


def salt(address: Address, issuer: Issuer, name: str) -> str:
    scram = ScramClient(mechanism=MECHANISM, name=name, password="none")
    with WireClient(address) as client:
        actor = Actor(client, issuer)
        actor.handshake(MECHANISM)
        answer = actor.authenticate(scram.first(), 2, label="client-first")
    _, reported, _ = answer.decode().split(",")
    return reported
