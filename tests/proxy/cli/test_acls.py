"""The commands for ACLs, on a store and through a running proxy."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store import open_store
from tests.support.acls import acl
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.proxy_process import refusal, rows
from tests.support.proxy_process import run_acls as run
from tests.support.tables import table

ALICE = ("--allow-principal", "User:alice")
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
GROUP, CLUSTER = ResourceType.GROUP, ResourceType.CLUSTER


def kept(file: Path) -> set[Acl]:
    with closing(open_store(f"sqlite:{file}")) as opened:
        return set(opened.acl_snapshot().acls)


def put(file: Path, *acls: Acl) -> None:
    with closing(open_store(f"sqlite:{file}")) as opened:
        opened.create_acls(acls)


def every(*operations: Operation, **fields: Any) -> set[Acl]:
    return {acl(operation=operation, **fields) for operation in operations}


TXN = ResourceType.TRANSACTIONAL_ID
IDEMPOTENT = every(Operation.IDEMPOTENT_WRITE, name="kafka-cluster", resource_type=CLUSTER)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--topic t", every(Operation.ALL)),
        ("--topic t --operation Read", every(READ)),
        ("--topic t --operation read --operation WRITE", every(READ, WRITE)),
        ("--topic t --operation DescribeConfigs", every(Operation.DESCRIBE_CONFIGS)),
        ("--topic t --operation describe_configs", every(Operation.DESCRIBE_CONFIGS)),
        ("--topic t --topic u", every(Operation.ALL) | every(Operation.ALL, name="u")),
        ("--topic * --operation Read", every(READ, name="*")),
        ("--group g --operation Read", every(READ, name="g", resource_type=GROUP)),
        (
            "--cluster --operation ClusterAction",
            every(Operation.CLUSTER_ACTION, name="kafka-cluster", resource_type=CLUSTER),
        ),
        ("--transactional-id x --operation Write", every(WRITE, name="x", resource_type=TXN)),
        (
            "--delegation-token d --operation Describe",
            every(DESCRIBE, name="d", resource_type=ResourceType.DELEGATION_TOKEN),
        ),
        (
            "--user-principal User:bob --operation CreateTokens",
            every(Operation.CREATE_TOKENS, name="User:bob", resource_type=ResourceType.USER),
        ),
        (
            "--topic t --resource-pattern-type PREFIXED --operation Read",
            every(READ, pattern_type=PatternType.PREFIXED),
        ),
        (
            "--topic t --operation Read --allow-host 10.0.0.0/8 --allow-host ::1",
            every(READ, host="10.0.0.0/8") | every(READ, host="::1"),
        ),
        (
            "--topic t --operation Read --deny-principal User:bob --deny-host h",
            every(READ) | every(READ, principal="User:bob", host="h", permission=Permission.DENY),
        ),
        ("--producer --topic t", every(WRITE, DESCRIBE, Operation.CREATE)),
        (
            "--producer --topic t --transactional-id x",
            every(WRITE, DESCRIBE, Operation.CREATE)
            | every(WRITE, DESCRIBE, name="x", resource_type=TXN),
        ),
        (
            "--producer --idempotent --topic t",
            every(WRITE, DESCRIBE, Operation.CREATE) | IDEMPOTENT,
        ),
        (
            "--consumer --topic t --group g",
            every(READ, DESCRIBE) | every(READ, name="g", resource_type=GROUP),
        ),
        (
            "--producer --consumer --topic t --group g",
            every(READ, WRITE, DESCRIBE, Operation.CREATE)
            | every(READ, name="g", resource_type=GROUP),
        ),
    ],
)
def test_add_and_remove(store_path: Path, options: str, expected: set[Acl]) -> None:
    """What kafka-acls.sh makes of the same options; `remove` takes the same away, and no more."""
    other = acl("t", "User:other", operation=Operation.ALTER)
    put(store_path, other)
    words = [*options.split(), *ALICE, "--store", store_path, "--output", "json"]

    added = rows(run("add", *words))
    assert kept(store_path) == expected | {other}
    assert {row["status"] for row in added} == {"added"}
    assert {row["status"] for row in rows(run("add", *words))} == {"exists"}

    removed = rows(run("remove", *words, "--force"))
    assert len(removed) == len(added) == len(expected)
    assert kept(store_path) == {other}


@pytest.mark.parametrize("options", table(__file__, "acl_misuse"))
def test_add_is_misused(store_path: Path, options: str) -> None:
    result = run("add", *options.split(), "--store", store_path)
    assert result.exit_code == 2, result.output
    assert kept(store_path) == set()


@pytest.mark.parametrize("name", ["", " ", "x" * 9_000, "\udcff"])
def test_names_that_cannot_be(store_path: Path, name: str) -> None:
    """The last is what Python makes of an argument that is not UTF-8."""
    assert run("add", "--topic", name, *ALICE, "--store", store_path).exit_code == 2
    assert (
        run("add", "--topic", "t", *ALICE, "--allow-host", name, "--store", store_path).exit_code
        == 2
    )


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ("--topic * --resource-pattern-type prefixed --allow-principal alice", "a prefixed '*'"),
        ("--topic t --deny-principal user:alice", "'user:alice' matches no client"),
        ("--topic t --allow-principal Group:g --resource-pattern-type prefixed", ""),
    ],
)
def test_add_warns_of_an_acl_that_matches_nothing(
    store_path: Path, options: str, warning: str
) -> None:
    result = run("add", *options.split(), "--store", store_path)
    assert result.exit_code == 0
    assert ("warning" in result.stderr) == bool(warning)
    assert warning in result.stderr
    assert len(kept(store_path)) == 1


def test_remove_without_a_principal_takes_all_of_the_resource(store_path: Path) -> None:
    mine = {acl(), acl(principal="User:b"), acl(operation=WRITE)}
    others = {acl("u"), acl(pattern_type=PatternType.PREFIXED)}
    put(store_path, *mine, *others)
    assert len(
        rows(run("remove", "--topic", "t", "--store", store_path, "--force", "--output", "json"))
    )
    assert kept(store_path) == others


@pytest.mark.parametrize("options", ["--operation Read", "--producer", ""])
def test_remove_never_takes_more_than_was_said(store_path: Path, options: str) -> None:
    """kafka-acls.sh takes all ACLs of the topic away for the first two."""
    put(store_path, acl(), acl(operation=WRITE))
    topic = ["--topic", "t"] if options else []
    result = run("remove", *topic, *options.split(), "--store", store_path, "--force")
    assert result.exit_code == 2
    assert len(kept(store_path)) == 2


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_remove_asks(store_path: Path, answer: str, left: int) -> None:
    put(store_path, acl())
    result = run("remove", "--topic", "t", "--store", store_path, stdin=answer)
    assert result.exit_code == (1 if left else 0)
    assert "User:alice" in result.stderr
    assert len(kept(store_path)) == left


@pytest.mark.parametrize("force", [("--force",), ()])
def test_nothing_to_remove_is_status_1(store_path: Path, force: tuple[str, ...]) -> None:
    result = run("remove", "--topic", "t", "--store", store_path, *force)
    assert result.exit_code == 1
    assert result.stderr == "reauth-proxy: there is no such ACL\n"


@pytest.mark.parametrize(("options", "names"), table(__file__, "acl_lists"))
def test_list(store_path: Path, options: str, names: list[str]) -> None:
    put(
        store_path,
        acl("a"),
        acl("*"),
        acl("ab", "User:bob"),
        acl("a", pattern_type=PatternType.PREFIXED),
        acl("g", resource_type=GROUP),
        acl("kafka-cluster", resource_type=CLUSTER),
    )
    found = rows(run("list", *options.split(), "--store", store_path, "--output", "json"))
    assert sorted(row["name"] for row in found) == sorted(names)


def test_what_programs_get(store_path: Path) -> None:
    put(store_path, acl(host="10.0.0.0/8", permission=Permission.DENY))
    assert rows(run("list", "--store", store_path, "--output", "json")) == [
        {
            "resource_type": "TOPIC",
            "pattern_type": "LITERAL",
            "name": "t",
            "principal": "User:alice",
            "host": "10.0.0.0/8",
            "operation": "READ",
            "permission": "DENY",
        }
    ]


@pytest.mark.parametrize(("options", "status"), table(__file__, "without_acls"))
def test_where_there_are_no_acls(store_path: Path, options: str, status: int) -> None:
    """One line, and a status that shows if another attempt may help."""
    store_path.with_name("broken.db").write_bytes(b"not a database" * 100)
    store_path.with_name("empty").write_text("")
    result = run("list", *options.format(store_path.parent).split())
    assert result.exit_code == status, result.output
    assert not store_path.with_name("missing.db").exists()


# ---------------------------------------------------------------------- a file of filters


FILTERS = """\
# whom we look after
--principal User:alice

--principal=User:bob --topic "b c"
--group g --resource-pattern-type PREFIXED
--cluster
"""


@pytest.mark.parametrize("given", ["file", "stdin"])
def test_a_file_of_filters(store_path: Path, given: str) -> None:
    put(
        store_path,
        acl("a"),
        acl("b c", "User:bob"),
        acl("d", "User:bob"),
        acl("g", "User:bob", resource_type=GROUP),
        acl("g", "User:bob", resource_type=GROUP, pattern_type=PatternType.PREFIXED),
        acl("kafka-cluster", "User:bob", resource_type=CLUSTER),
    )
    file = store_path.with_name("filters")
    file.write_text(FILTERS)
    words = ("list", "--store", store_path, "--output", "json", "--file")
    found = rows(run(*words, file) if given == "file" else run(*words, "-", stdin=FILTERS))
    assert [row["name"] for row in found] == ["a", "b c", "g", "kafka-cluster"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--principal User:a\n--topic t --topic u\n", "line 2: a line is one filter: one resource"),
        ("--principal User:a --principal User:b\n", "line 1: a line is one filter: one resource"),
        ("--topic t --resource-pattern-type some\n", "'some' is not one of 'literal'"),
        ("--topic ''\n", "line 1: a name must not be empty"),
    ],
)
def test_a_file_that_says_something_else(store_path: Path, text: str, problem: str) -> None:
    """One line with the place, and status 2; quotas have the same parser, and more cases."""
    words = ("acls", "list", "--file", "-", "--store", store_path)
    assert problem in refusal(*words, stdin=text)


@pytest.mark.parametrize("options", ["--topic t", "--principal User:a", "--cluster"])
def test_a_file_goes_alone(store_path: Path, options: str) -> None:
    words = ("list", "--file", "-", *options.split(), "--store", store_path)
    assert run(*words, stdin=FILTERS).exit_code == 2


# `reauth-proxy acls` through a running proxy, or Kafka: logged in, refused, in one round trip


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


def test_refused_by_a_proxy(peer: Peer, through: list[str]) -> None:
    peer.rights = False
    for command in (["list"], ["add", "--topic", "t", *ALICE], ["remove", "--topic", "t"]):
        result = run(*command, *through)
        assert result.exit_code == 1
        assert result.stderr == (
            "reauth-proxy: CLUSTER_AUTHORIZATION_FAILED: Cluster authorization failed.\n"
        )


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
