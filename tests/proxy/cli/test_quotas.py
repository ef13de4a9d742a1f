"""`reauth-proxy quotas` as people script it."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.store import open_store
from proxy.wire.apis import DESCRIBE_CLIENT_QUOTAS
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.proxy_process import refusal, rows, run
from tests.support.tables import table


def quotas(store: Path, command: str, *arguments: str) -> Result:
    return run("quotas", command, "--store", store, *arguments)


def listed(store: Path, *arguments: str) -> object:
    return json.loads(quotas(store, "list", "--output", "json", *arguments).stdout)


def test_set_list_remove(store_path: Path) -> None:
    done = quotas(
        store_path, "set", "--user", "a", "producer_byte_rate=1024", "request_percentage=12.5"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == "user a: producer_byte_rate=1024, request_percentage=12.5\n"
    quotas(store_path, "set", "--user", "a", "--client-id-defaults", "consumer_byte_rate=7")
    quotas(store_path, "set", "--ip-defaults", "connection_creation_rate=5")
    of_user = {
        "entity": {"user": "a"},
        "quotas": {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
    }
    of_both = {"entity": {"user": "a", "client-id": None}, "quotas": {"consumer_byte_rate": 7.0}}
    of_ip = {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5.0}}
    assert listed(store_path) == [of_ip, of_user, of_both]
    assert listed(store_path, "--user", "a") == [of_user, of_both]
    assert listed(store_path, "--client-id-defaults") == [of_both]
    assert listed(store_path, "--user", "b") == []

    assert quotas(store_path, "remove", "--user", "a", "request_percentage").exit_code == 0
    gone = quotas(store_path, "remove", "--user", "a")
    assert gone.stdout == "user a: removed producer_byte_rate\n"
    assert quotas(store_path, "remove", "--user", "a").exit_code == 1
    assert listed(store_path, "--user", "a") == [of_both]


@pytest.mark.parametrize(("arguments", "problem"), table(__file__, "quota_misuse"))
def test_misuse_is_told_and_stores_nothing(store_path: Path, arguments: str, problem: str) -> None:
    words = ("quotas", "set", "--store", store_path)
    assert problem in refusal(*words, *arguments.split())
    assert listed(store_path) == []


def test_explain_says_which_and_why(store_path: Path) -> None:
    quotas(store_path, "set", "--user-defaults", "producer_byte_rate=10")
    quotas(store_path, "set", "--client-id", "c", "producer_byte_rate=20", "consumer_byte_rate=30")
    reported = quotas(store_path, "explain", "--user", "u", "--client-id", "c").stdout
    assert reported.splitlines()[:7] == [
        "producer_byte_rate: 10, shared by all clients of user u without a quota of their own",
        "  1. /config/users/u/clients/c: not set",
        "  2. /config/users/u/clients/<default>: not set",
        "  3. /config/users/u: not set",
        "  4. /config/users/<default>/clients/c: not set",
        "  5. /config/users/<default>/clients/<default>: not set",
        "  6. /config/users/<default>: applies",
    ]
    assert "consumer_byte_rate: 30, shared by all users with client id 'c'" in reported
    assert "request_percentage: no limit" in reported

    asked = ("explain", "--user", "u", "--client-id", "c", "--output", "json")
    first, _, third, *_ = rows(quotas(store_path, *asked))
    assert (first["limit"], first["applies"]) == (10.0, "/config/users/<default>")
    assert first["tags"] == {"user": "u", "client-id": ""}
    assert [one["row"] for one in first["considered"]] == list(range(1, 10))
    assert third["limit"] is None


def test_there_must_be_a_store(tmp_path: Path) -> None:
    """A mistyped path must not become a new, empty store."""
    missing = tmp_path / "typo.db"
    assert "there is no such store" in refusal(*asking(missing))
    assert not missing.exists()
    refusal("quotas", "list")


# ---------------------------------------------------------------------- many filters


ENTITIES = [
    QuotaEntity(ip="192.0.2.1"),
    QuotaEntity(ip=DEFAULT),
    QuotaEntity(user="a"),
    QuotaEntity(user="a", client_id="c"),
    QuotaEntity(user="a", client_id=DEFAULT),
    QuotaEntity(user="b", client_id="c"),
    QuotaEntity(user="c d"),
    QuotaEntity(user="<default>"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(user=DEFAULT, client_id="c"),
    QuotaEntity(client_id="c"),
]


@pytest.fixture
def filled(store_path: Path) -> Path:
    opened = open_store(f"sqlite:{store_path}")
    opened.alter_quotas({entity: limit(entity) for entity in ENTITIES})
    opened.close()
    return store_path


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    one.versions[DESCRIBE_CLIENT_QUOTAS] = (0, 2)
    one.quotas.quotas = {entity: limit(entity) for entity in ENTITIES}
    with in_a_thread(one):
        yield one


def limit(entity: QuotaEntity) -> dict[QuotaKey, float]:
    of_address = entity.ip is not None
    return {QuotaKey.CONNECTION_CREATION_RATE if of_address else QuotaKey.PRODUCER_BYTE_RATE: 1.0}


def found(where: Path | Peer, *options: str, stdin: str = "") -> list[str]:
    """Return whose quotas are listed, on the store or through a proxy."""
    return [
        " ".join(f"{kind}={name}" for kind, name in row["entity"].items())
        for row in rows(run(*asking(where, *options, "--output", "json"), stdin=stdin))
    ]


def asking(where: Path | Peer, *options: object) -> tuple[object, ...]:
    way = ("--store", where) if isinstance(where, Path) else ("--bootstrap-server", where.address)
    return ("quotas", "list", *way, *options)


@pytest.mark.parametrize(("options", "entities"), table(__file__, "many_entities"))
def test_many_entities(filled: Path, peer: Peer, options: str, entities: list[str]) -> None:
    """Every combination, as in `acls list`; on the store and in one round trip through a proxy."""
    kind = "ip" if "--ip" in options else "user"
    names = [f"{kind}={one}".replace("/", " client-id=") for one in entities]
    assert sorted(found(filled, *options.split())) == sorted(names)
    assert found(peer, *options.split()) == found(filled, *options.split())
    assert peer.requests.count((DESCRIBE_CLIENT_QUOTAS, 2)) == 1


@pytest.mark.parametrize("version", [0, 1])
def test_an_older_peer_is_asked_one_by_one(filled: Path, peer: Peer, version: int) -> None:
    """As Kafka 4.1, which has no KIP-888; nobody notices."""
    peer.versions[DESCRIBE_CLIENT_QUOTAS] = (0, version)
    options = ("--user", "a", "--user", "b", "--client-id", "c")
    assert found(peer, *options) == found(filled, *options)
    assert peer.seen(DESCRIBE_CLIENT_QUOTAS) == 2


def test_what_two_filters_find_is_listed_once(filled: Path, peer: Peer) -> None:
    lines = "--user a\n--client-id c --user a\n--user a\n"
    entities = ["user=a", "user=a client-id=None", "user=a client-id=c"]
    for where in (filled, peer):
        assert sorted(found(where, "--file", "-", stdin=lines)) == entities


FILTERS = """\
# whom we look after
--user b

--user="c d"
--user a --client-id-defaults
  --ip 192.0.2.1\r
"""


@pytest.mark.parametrize("given", ["file", "stdin"])
def test_a_file_of_filters(filled: Path, peer: Peer, given: str) -> None:
    file = filled.with_name("filters")
    file.write_text(FILTERS, newline="")
    options = ("--file", str(file) if given == "file" else "-")
    entities = ["ip=192.0.2.1", "user=a client-id=None", "user=b client-id=c", "user=c d"]
    for where in (filled, peer):
        assert sorted(found(where, *options, stdin=FILTERS)) == entities
    assert peer.seen(DESCRIBE_CLIENT_QUOTAS) == 1


def test_a_long_file_is_one_round_trip(peer: Peer) -> None:
    peer.quotas.quotas = {
        entity: limit(entity) for entity in (QuotaEntity(user=f"u{n}") for n in range(300))
    }
    lines = "".join(f"--user u{number}\n" for number in range(200))
    assert len(found(peer, "--file", "-", stdin=lines)) == 200
    assert peer.seen(DESCRIBE_CLIENT_QUOTAS) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *table(__file__, "other_quota_files"),
        (f"--user {'a' * 32_768}\n", "line 1: a name is longer than 32767 bytes"),
    ],
)
def test_a_file_that_says_something_else(peer: Peer, text: str, problem: str) -> None:
    """One line with the place, status 2, and no request."""
    assert problem in refusal(*asking(peer, "--file", "-"), stdin=text)
    assert peer.requests == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--user", "a", "--user", ""), "Empty user not supported"),
        (("--user", "a", "--ip", "192.0.2.1"), "should not be combined"),
        (("--client-id-defaults", "--ip-defaults"), "should not be combined"),
        (("--ip", "nowhere"), "not a valid IP"),
        (("--user", "\udcff"), "not UTF-8"),
        (("--user", "ü" * 16_384), "longer than 32767 bytes"),
        (("--file", "-", "--user", "a"), "--file excludes"),
        (("--file", "-", "--ip-defaults"), "--file excludes"),
    ],
)
def test_what_cannot_be_listed(
    filled: Path, peer: Peer, options: tuple[str, ...], problem: str
) -> None:
    for where in (filled, peer):
        assert problem in refusal(*asking(where, *options), stdin=FILTERS)
    assert peer.requests == []


def test_the_longest_name_can_be_asked_for(peer: Peer) -> None:
    """In every version: what the limit lets through must not break the request."""
    for version in (0, 1, 2):
        peer.versions[DESCRIBE_CLIENT_QUOTAS] = (0, version)
        assert found(peer, "--user", "a" * 32_767, "--user", "c d") == ["user=c d"]


def test_a_file_that_cannot_be_read(filled: Path) -> None:
    filled.with_name("binary").write_bytes(b"--user \xff")
    for file in (filled.with_name("missing"), filled.with_name("binary"), filled.parent):
        refusal(*asking(filled, "--file", file))


CERTIFIED = 'CN=Zoë\\, Müller + "x",OU=dev ops,O=Acme \\= Söhne,C=DE'


def test_a_user_may_be_a_certificates_name(store_path: Path, peer: Peer) -> None:
    """The store has it encoded, as Kafka's ZooKeeper nodes do; nobody who asks sees that."""
    done = quotas(store_path, "set", "--user", CERTIFIED, "producer_byte_rate=1024")
    assert done.stdout == f"user {CERTIFIED}: producer_byte_rate=1024\n"
    entry = {"entity": {"user": CERTIFIED}, "quotas": {"producer_byte_rate": 1024.0}}
    assert listed(store_path, "--user", CERTIFIED) == [entry]
    assert listed(store_path, "--user", "CN=Zoë") == []
    explained = quotas(store_path, "explain", "--user", CERTIFIED, "--output", "json")
    (applies,) = (row for row in json.loads(explained.stdout) if row["limit"] is not None)
    assert applies["limit"] == 1024.0

    peer.quotas.quotas = {QuotaEntity(user=CERTIFIED): {QuotaKey.PRODUCER_BYTE_RATE: 1024.0}}
    lines = f"--user {shlex.quote(CERTIFIED)}\n"
    for where in (store_path, peer):
        assert found(where, "--user", CERTIFIED) == [f"user={CERTIFIED}"]
        assert found(where, "--file", "-", stdin=lines) == [f"user={CERTIFIED}"]

    assert quotas(store_path, "remove", "--user", CERTIFIED).exit_code == 0
    assert listed(store_path) == []


def test_refused_by_a_proxy(peer: Peer) -> None:
    peer.rights = False
    told = refusal(*asking(peer, "--user", "a", "--user", "b"), status=1)
    assert told == "reauth-proxy: CLUSTER_AUTHORIZATION_FAILED"
