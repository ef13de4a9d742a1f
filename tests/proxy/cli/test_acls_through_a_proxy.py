"""`reauth-proxy acls` through a running proxy, or Kafka: logged in, refused, in one round trip."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acls import acl
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.proxy_process import rows
from tests.support.proxy_process import run_acls as run

ALICE = ("--allow-principal", "User:alice")


@pytest.fixture
def peer() -> Iterator[Peer]:
    with in_a_thread(Peer(passwords={"admin": "admin-secret"})) as one:
        yield one


@pytest.fixture
def through(peer: Peer, tmp_path: Path) -> list[str]:
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="admin" password="admin-secret";\n'
    )
    return ["--bootstrap-server", peer.address, "--command-config", str(file)]


def test_through_a_proxy(peer: Peer, through: list[str]) -> None:
    assert run("add", "--topic", "t", *ALICE, "--operation", "Read", *through).exit_code == 0
    assert peer.acl_store.acls == {acl()}
    [row] = rows(run("list", *through, "--output", "json"))
    assert (row["name"], row["operation"]) == ("t", "READ")
    assert run("remove", "--topic", "t", "--force", *through).exit_code == 0
    assert peer.acl_store.acls == set()


def test_refused_by_a_proxy(peer: Peer, through: list[str]) -> None:
    peer.rights = False
    for command in (["list"], ["add", "--topic", "t", *ALICE], ["remove", "--topic", "t"]):
        result = run(*command, *through)
        assert result.exit_code == 1
        assert result.stderr == (
            "reauth-proxy: CLUSTER_AUTHORIZATION_FAILED: Cluster authorization failed.\n"
        )


def test_a_wrong_password(peer: Peer, through: list[str]) -> None:
    peer.passwords = {"admin": "changed"}
    result = run("list", *through)
    assert result.exit_code == 1
    assert "SASL_AUTHENTICATION_FAILED" in result.stderr
    assert "admin-secret" not in result.output


@pytest.mark.parametrize(("highest", "requests"), [(4, 1), (3, 2)])
def test_many_principals_in_one_round_trip(
    peer: Peer, through: list[str], highest: int, requests: int
) -> None:
    """Where the other end has KIP-888; else one after the other, and nobody notices."""
    peer.versions[29] = (0, highest)
    peer.acl_store.acls = {acl("a"), acl("b", "User:bob"), acl("c", "User:carol")}
    principals = ["--principal", "User:alice", "--principal", "User:bob"]
    found = rows(run("list", *principals, *through, "--output", "json"))
    assert [row["name"] for row in found] == ["a", "b"]
    assert peer.seen(29) == requests


def test_a_file_of_filters_is_one_round_trip(peer: Peer, through: list[str]) -> None:
    peer.versions[29] = (0, 4)
    peer.acl_store.acls = {acl("a", f"User:{number}") for number in range(300)}
    lines = "".join(f"--principal User:{number}\n" for number in range(200))
    found = rows(run("list", "--file", "-", *through, "--output", "json", stdin=lines))
    assert len(found) == 200
    assert peer.seen(29) == 1
