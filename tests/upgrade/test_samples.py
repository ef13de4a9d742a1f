"""Files that an earlier version wrote (commit 62d0c143), and that this one must read.

The configurations have every setting of that version that still exists. Its own code wrote the
databases, of which `zookeeper.sql` is a copy of ZooKeeper, and the position of a delivery; the
events are three connections of its demo.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metrics.delivery.position import NAME
from metrics.delivery.selection import Selection, parse_target
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType, exactly
from proxy.cli import app
from proxy.config import Config, from_mapping
from proxy.config.document import parse
from proxy.delivery.loop import End, opened
from proxy.errors import ConfigError
from proxy.store import Store, open_store
from proxy.store.interface import StoreError
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.delivery import Lines
from tests.support.tables import table

SAMPLES = Path(__file__).parent / "samples"
EVENTS = SAMPLES / "events"
LOG = "events-proxy-1-0-20261127T234115Z-0.jsonl"


def configuration(name: str, old: str = "", new: str = "") -> Config:
    text = (SAMPLES / name).read_text()
    assert old in text
    return from_mapping(parse(text.replace(old, new, 1).encode()), base_dir=Path("/etc/proxy"))


@pytest.mark.parametrize("name", ["gateway.yaml", "sidecar.yaml", "transparent.yaml"])
def test_every_setting_is_known(name: str) -> None:
    config = configuration(name)
    assert config.listeners


@pytest.mark.parametrize(("old", "new", "problem"), table(__file__, "removed_values"))
def test_a_removed_value_names_what_replaces_it(old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configuration("gateway.yaml", old, new)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (["webhook", "--config", "x"], "admission policies add the sidecar"),
        (["report", "serve", "--out", "x"], "a web server serves the report's folder"),
    ],
)
def test_a_removed_command_names_what_replaces_it(command: list[str], instead: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"was removed; {instead}" in result.stderr


def database(path: Path, sample: str, then: str = "") -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((SAMPLES / sample).read_text() + then)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{database(tmp_path / 'state.db', 'state.sql')}")) as store:
        yield store


def test_users_can_still_log_in(store: Store) -> None:
    """Also with the same salts for users that do not exist."""
    verifiers = {
        ("alice", ScramMechanism.SCRAM_SHA_256): "alice-secret",
        ("bob", ScramMechanism.SCRAM_SHA_512): "bob-secret",
    }
    assert store.credential_snapshot().credentials == {
        (user, mechanism): ScramCredential.from_password(
            mechanism, password, b"0123456789abcdef", 4096
        )
        for (user, mechanism), password in verifiers.items()
    }
    assert store.scram_fake_secret().hex().startswith("5c88a0db0b7e34f1")
    assert store.version() == 4_790_100_657


def test_acls_quotas_and_brokers_are_kept(store: Store) -> None:
    assert store.acl_snapshot().acls == (
        Acl(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            "orders-",
            "User:alice",
            "*",
            Operation.WRITE,
            Permission.ALLOW,
        ),
        Acl(
            ResourceType.GROUP,
            PatternType.LITERAL,
            "*",
            "Group:analysts",
            "10.0.0.0/8",
            Operation.READ,
            Permission.ALLOW,
        ),
        Acl(
            ResourceType.CLUSTER,
            PatternType.LITERAL,
            "kafka-cluster",
            "User:bob",
            "192.0.2.1",
            Operation.ALTER,
            Permission.DENY,
        ),
    )
    changes = store.acl_changes(1_511_376_312)
    assert changes is not None
    assert [one.name for one in changes.deleted] == ["old"]
    quotas = store.quota_snapshot().quotas
    assert {
        entity.entity_path: {key.value: limit for key, limit in limits.items()}
        for entity, limits in quotas.items()
    } == {
        "users/alice": {"producer_byte_rate": 1_048_576.0},
        "users/alice/clients/app": {"request_percentage": 50.0},
    }
    assert store.brokers("127.0.0.1:9092") == {
        1: ("broker-1.example", 9092),
        2: ("broker-2.example", 9093),
    }
    assert store.mirror() is None


@pytest.mark.parametrize("scheme", ["sqlite", "broker"])
def test_a_copy_of_zookeeper_is_a_store(tmp_path: Path, scheme: str) -> None:
    """With the same users, salts, ACLs and quotas; `sqlite:` also changes ACLs and quotas."""
    url = f"{scheme}:{database(tmp_path / 'copy.db', 'zookeeper.sql')}"
    with closing(open_store(url)) as store:
        start = store.begin()
    with closing(open_store(url, start=start)) as store:
        assert store.scram_fake_secret().hex().startswith("052f052b68cbe66b")
        ((alice, verifier),) = store.credential_snapshot().credentials.items()
        assert verifier == ScramCredential.from_password(
            ScramMechanism.SCRAM_SHA_256, "alice-secret", b"0123456789abcdef", 4096
        )
        (acl,) = store.acl_snapshot().acls
        assert (acl.name, acl.principal) == ("orders-", "User:alice")
        ((entity, limits),) = store.quota_snapshot().quotas.items()
        assert (entity.entity_path, [*limits.values()]) == ("users/alice", [1_048_576.0])
        assert store.alter_credentials(upsert={("bob", alice[1]): verifier}) == frozenset()
        if scheme == "sqlite":
            assert store.mirror() is None
            assert store.delete_acls([exactly(acl)]) == ((acl,),)
            store.alter_quotas({entity: dict.fromkeys(limits)})
    with closing(open_store(url)) as store:
        assert [user for user, _ in store.credential_snapshot().credentials] == ["alice", "bob"]
        assert bool(store.acl_snapshot().acls) is (scheme == "broker")
        assert bool(store.quota_snapshot().quotas) is (scheme == "broker")


@pytest.mark.parametrize("scheme", ["sqlite", "broker"])
def test_a_copy_of_zookeeper_that_may_be_old_is_refused(tmp_path: Path, scheme: str) -> None:
    """Users may have been removed since the proxy stopped."""
    unknown = "UPDATE mirror SET asked_at = NULL;"
    url = f"{scheme}:{database(tmp_path / 'copy.db', 'zookeeper.sql', unknown)}"
    with (
        closing(open_store(url)) as store,
        pytest.raises(StoreError, match="was not updated since the last start"),
    ):
        store.begin()


def test_a_proxy_that_follows_zookeeper_is_not_taken_over_from(tmp_path: Path) -> None:
    """It would continue to write users into the file."""
    file = database(tmp_path / "copy.db", "zookeeper.sql")
    with (
        closing(open_store(f"broker:{file}")) as store,
        pytest.raises(StoreError, match="another kind of"),
    ):
        store.join()


def test_a_report_reads_the_events(tmp_path: Path) -> None:
    out = tmp_path / "report"
    arguments = ["report", "--events", str(EVENTS), "--out", str(out), "--as-of", "2026-11-28"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    assert {name: count for name, count in report["lines"].items() if count} == {"lines": 12}
    assert {one["principal"]: one["verdict"] for one in report["clients"]} == {
        "User:orders": "ready",
        "User:ledger": "not_capable",
        None: "unknown",
    }


def test_a_delivery_goes_on_from_its_position(tmp_path: Path) -> None:
    log = shutil.copy(EVENTS / LOG, tmp_path)
    saved = json.loads((EVENTS / NAME).read_text())
    saved["files"][LOG][0] = Path(log).stat().st_ino
    (tmp_path / NAME).write_text(json.dumps(saved))
    end, sink = End(10.0), Lines(16_384)
    with opened(tmp_path, parse_target("kafka:reauth-events"), sink, Selection(), end) as loop:
        end.ask()
        loop.run()
    assert sink.taken == (EVENTS / LOG).read_bytes().splitlines()[3:]
