"""kafka-configs.sh against the proxy: users are made, changed and taken away while it runs."""

import json
from pathlib import Path

import pytest

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
from tests.support.kafka.sasl_differential.transcript import logs_in
from tests.support.kafka.wire_client import Address
from tests.support.proxy_process import SUPER_USER, ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

DEADLINE = 120.0
NAME = "dave"


def test_users_are_administered_by_a_super_user(
    gateway: ProxyProcess, issuer: Issuer, tmp_path: Path
) -> None:
    """Added, changed, listed and deleted; every worker follows."""
    admin = user(issuer, "SCRAM-SHA-256", SUPER_USER).java(tmp_path)
    address = gateway.addresses()["LONG"]

    first = "SCRAM-SHA-512=[iterations=8192,password=first]"
    done = _configs(admin, address, "--alter", "--add-config", first)
    assert "Completed updating config" in done.stdout, done
    assert (NAME, "SCRAM-SHA-512") in gateway.users()
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=True)

    done = _configs(admin, address, "--describe")
    assert "SCRAM-SHA-512=iterations=8192" in done.stdout, done

    second = "SCRAM-SHA-512=[password=second]"
    assert _configs(admin, address, "--alter", "--add-config", second).exit_status == 0
    _known(gateway, issuer, "SCRAM-SHA-512", "second", is_let_in=True)
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=False)

    gone = "SCRAM-SHA-512"
    assert _configs(admin, address, "--alter", "--delete-config", gone).exit_status == 0
    assert NAME not in {name for name, _ in gateway.users()}
    _known(gateway, issuer, "SCRAM-SHA-512", "second", is_let_in=False)


def test_others_may_not_administer_users(
    gateway: ProxyProcess, issuer: Issuer, tmp_path: Path
) -> None:
    before = gateway.users()
    carol = user(issuer, "SCRAM-SHA-256").java(tmp_path)
    change = ("--alter", "--add-config", "SCRAM-SHA-256=[password=mine]")
    done = _configs(carol, gateway.addresses()["LONG"], *change)
    assert "ClusterAuthorizationException" in done.stderr + done.stdout, done
    assert gateway.users() == before


def test_python_administers_users(gateway: ProxyProcess, issuer: Issuer) -> None:
    """librdkafka's encoder of the same messages, which salts by itself."""
    admin = confluent_admin.AdminClient(
        user(issuer, "SCRAM-SHA-256", SUPER_USER).confluent(str(gateway.addresses()["LONG"]))
    )
    mechanism = confluent_admin.ScramMechanism.SCRAM_SHA_256
    info = confluent_admin.ScramCredentialInfo(mechanism, 4096)
    upsertion = confluent_admin.UserScramCredentialUpsertion("erin", info, b"erin-secret")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(DEADLINE)
    described = admin.describe_user_scram_credentials(["erin"])["erin"].result(DEADLINE)
    assert [one.iterations for one in described.scram_credential_infos] == [4096]
    erin = User(name="erin", mechanism="SCRAM-SHA-256", issuer=issuer)
    assert erin.name in {name for name, _ in gateway.users()}
    _known(
        gateway,
        issuer,
        "SCRAM-SHA-256",
        password_of("erin"),
        is_let_in=True,
        name="erin",
    )
    deletion = confluent_admin.UserScramCredentialDeletion("erin", mechanism)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(DEADLINE)
    assert "erin" not in {name for name, _ in gateway.users()}


def test_in_audit_nobody_gets_rights_by_giving_them(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Everything else passes; but another's password or an ACL would be there for good."""
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["authorizer"]["mode"] = "audit"
    process = ProxyProcess(config, tmp_path)
    add_users(process)
    everything = ["--allow-principal", "User:carol", "--operation", "All", "--cluster"]
    with process:
        bootstrap = str(process.addresses()["LONG"])
        client = user(issuer, "SCRAM-SHA-256").java(tmp_path)
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
        assert logs_in(
            process.addresses()["LONG"],
            issuer,
            "SCRAM-SHA-256",
            SUPER_USER,
            password_of(SUPER_USER),
        )
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
    for _ in range(4):  # with one worker or the other
        assert logs_in(address, issuer, mechanism, name, password) is is_let_in
