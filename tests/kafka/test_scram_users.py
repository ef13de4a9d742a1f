"""Administration of SCRAM users: through the APIs, in a shared file, and compared with Kafka."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proxy.wire.schema import Message, replace
from tests.support.kafka.clients import (
    JavaClient,
    User,
    add_users,
    confluent_admin,
    password_of,
    user,
)
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import Finished
from tests.support.kafka.sasl_differential.transcript import Actor, logs_in
from tests.support.kafka.scram_client import ScramClient
from tests.support.kafka.wire_client import Address, WireClient, ask
from tests.support.proxy_process import SUPER_USER, ProxyProcess, gateway_config
from tests.support.sasl import Issuer
from tests.support.store import SEEN, Change, request_of, upsert

pytestmark = pytest.mark.kafka

DEADLINE = 120.0
NAME = "dave"
MECHANISM = "SCRAM-SHA-256"


def test_users_are_administered_by_a_super_user(
    gateway: ProxyProcess, issuer: Issuer, tmp_path: Path
) -> None:
    """Users are added and deleted on every worker; `test_python_administers_users` has the rest."""
    admin = user(issuer, MECHANISM, SUPER_USER).java(tmp_path)
    address = gateway.addresses()["LONG"]

    first = "SCRAM-SHA-512=[iterations=8192,password=first]"
    done = _configs(admin, address, "--alter", "--add-config", first)
    assert "Completed updating config" in done.stdout, done
    assert (NAME, "SCRAM-SHA-512") in gateway.users()
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=True)

    gone = ("--alter", "--delete-config", "SCRAM-SHA-512")
    assert _configs(admin, address, *gone).exit_status == 0
    assert NAME not in {name for name, _ in gateway.users()}
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=False)


def test_python_administers_users(gateway: ProxyProcess, issuer: Issuer) -> None:
    """librdkafka encodes the same messages and creates its own salts."""
    admin = confluent_admin.AdminClient(
        user(issuer, MECHANISM, SUPER_USER).confluent(str(gateway.addresses()["LONG"]))
    )
    mechanism = confluent_admin.ScramMechanism.SCRAM_SHA_256
    info = confluent_admin.ScramCredentialInfo(mechanism, 4096)
    upsertion = confluent_admin.UserScramCredentialUpsertion("erin", info, b"erin-secret")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(DEADLINE)
    described = admin.describe_user_scram_credentials(["erin"])["erin"].result(DEADLINE)
    assert [one.iterations for one in described.scram_credential_infos] == [4096]
    erin = User(name="erin", mechanism=MECHANISM, issuer=issuer)
    assert erin.name in {name for name, _ in gateway.users()}
    _known(gateway, issuer, MECHANISM, password_of("erin"), is_let_in=True, name="erin")
    deletion = confluent_admin.UserScramCredentialDeletion("erin", mechanism)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(DEADLINE)
    assert "erin" not in {name for name, _ in gateway.users()}


def test_in_audit_nobody_gets_rights_by_giving_them(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Audit mode denies changes of users and ACLs, because they would be permanent."""
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["authorizer"]["mode"] = "audit"
    process = ProxyProcess(config, tmp_path)
    add_users(process)
    everything = ["--allow-principal", "User:carol", "--operation", "All", "--cluster"]
    with process:
        bootstrap = str(process.addresses()["LONG"])
        client = user(issuer, MECHANISM).java(tmp_path)
        takes = ("--entity-type", "users", "--entity-name", SUPER_USER, "--alter")
        mine = ("--add-config", "SCRAM-SHA-256=[password=mine]")
        done = client.run_tool("kafka-configs", bootstrap, *takes, *mine)
        assert "ClusterAuthorizationException" in done.stderr + done.stdout, done
        limit = ("--entity-type", "users", "--entity-name", "carol", "--alter")
        quota = ("--add-config", "producer_byte_rate=99999999")
        done = client.run_tool("kafka-configs", bootstrap, *limit, *quota)
        assert "ClusterAuthorizationException" in done.stderr + done.stdout, done
        done = client.run_tool("kafka-acls", bootstrap, "--add", *everything)
        assert "ClusterAuthorizationException" in done.stderr + done.stdout, done
        address, password = process.addresses()["LONG"], password_of(SUPER_USER)
        assert logs_in(address, issuer, MECHANISM, SUPER_USER, password)
        assert json.loads(process.command("acls", "list", "--output", "json")) == []
        assert json.loads(process.command("quotas", "list", "--output", "json")) == []


def _configs(client: JavaClient, address: Address, *arguments: str) -> Finished:
    who = ("--entity-type", "users", "--entity-name", NAME)
    return client.run_tool("kafka-configs", str(address), *who, *arguments)


def _known(
    proxy: ProxyProcess,
    issuer: Issuer,
    mechanism: str,
    password: str,
    *,
    is_let_in: bool,
    name: str = NAME,
) -> None:
    proxy.until_known()
    address = proxy.addresses()["LONG"]
    for _ in range(4):  # on either worker
        assert logs_in(address, issuer, mechanism, name, password) is is_let_in


# --- Kafka's answers in tests/support/store.py

_ALTER, _DESCRIBE = 51, 50


def test_the_expected_answers_are_kafkas(kafka: KafkaCluster) -> None:
    """Each case has its own users."""
    for number, (changes, answer) in enumerate(SEEN):
        _alter(kafka, (_renamed(upsert("old"), number),))
        expected = {_name(user, number): outcome for user, outcome in answer.items()}
        assert _alter(kafka, [_renamed(one, number) for one in changes]) == expected, changes

    described = ask(kafka.address(), _DESCRIBE, 0, {"users": [{"name": "x"}, {"name": "x"}]})
    assert [(one.user, one.error_code.name, one.error_message) for one in described.results] == [
        (
            "x",
            "duplicate_resource",
            "Cannot describe SCRAM credentials for the same user twice in a single request: x",
        )
    ]


def _alter(kafka: KafkaCluster, changes: Any) -> dict[str, tuple[str, str | None]]:
    response = ask(kafka.address(), _ALTER, 0, _plain(request_of(changes)))
    return {one.user: (one.error_code.name, one.error_message) for one in response.results}


def _renamed(change: Change, number: int) -> Change:
    return replace(change, name=_name(change.name, number))


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {one.name: _plain(getattr(value, one.name)) for one in value.FIELDS}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _name(name: str, number: int) -> str:
    return f"{number}-{name}" if name else ""


# --- two proxies with one file of users


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
    """kafka-configs.sh cannot change them."""

    def carol_logs_in(proxy: ProxyProcess, password: str) -> bool:
        return logs_in(proxy.addresses()["LONG"], issuer, MECHANISM, "carol", password)

    for proxy in proxies:
        assert carol_logs_in(proxy, password_of("carol"))
    admin = user(issuer, MECHANISM, SUPER_USER).java(tmp_path)
    address = str(proxies[0].addresses()["LONG"])
    who = ("--entity-type", "users", "--entity-name", "carol")
    change = ("--alter", "--add-config", "SCRAM-SHA-256=[password=mine]")
    altered = admin.run_tool("kafka-configs", address, *who, *change)
    assert altered.exit_status == 1, altered
    said = altered.stdout + altered.stderr
    assert "PolicyViolationException: SCRAM users are in a file" in said, altered

    add(file, "carol", "another")
    for proxy in proxies:
        proxy.until_known()
        for _ in range(4):  # on either worker
            assert carol_logs_in(proxy, "another")
            assert not carol_logs_in(proxy, password_of("carol"))
            assert not carol_logs_in(proxy, "mine")


def test_who_asks_both_does_not_learn_who_exists(
    proxies: tuple[ProxyProcess, ProxyProcess], issuer: Issuer
) -> None:
    """Both proxies return the same salt for a name, whether the user exists or not."""
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
