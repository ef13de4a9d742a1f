"""Files that an earlier version wrote (commit 62d0c143), and that this one must read.

The configurations have every setting of that version. Its own code wrote the database and the
position of a delivery; the events are three connections of its demo.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metrics.delivery.position import NAME
from metrics.delivery.selection import Selection
from metrics.delivery.target import parse_target
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.cli import app
from proxy.config import Config, from_mapping
from proxy.config.document import parse
from proxy.delivery.loop import End, opened
from proxy.errors import ConfigError
from proxy.store import Store, open_store
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.delivery import Lines

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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        *(
            (
                "kafka:reauth-events",
                target,
                "events.deliver.to: must be kafka:TOPIC; a log shipper brings event files"
                " elsewhere: docs/fleet.md",
            )
            for target in ("file:///mnt/events", "s3a://bucket/events")
        ),
        (
            "acme.quotas:Groups",
            "proxy.quota.examples.groups:GroupQuotas",
            "quotas.client.quota.callback.class: proxy.quota.examples.groups is not part of the"
            " program any more: copy it from tests/support/quota_callbacks/ of the sources into a"
            " package of your own (docs/quotas.md)",
        ),
        *(
            (
                "RULE:^(.*)@example$/$1/L,DEFAULT",
                f"'RULE:{pattern}/$1/'",
                "listeners[0].sasl.scram.principal.mapping.rules: has a pattern that cannot be"
                f" used, {pattern!r}: {construct} is not supported; docs/tls.md lists the"
                " supported constructs",
            )
            for pattern, construct in (
                ("(?<name>.*)", "a named group"),
                ("(?>.*)", "an atomic group"),
                ("(?=.)(.*)", "a lookahead"),
                ("(.*+)", "*+"),
            )
        ),
    ],
)
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.executescript((SAMPLES / "state.sql").read_text())
    connection.close()
    store = open_store(f"sqlite:{path}")
    yield store
    store.close()


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
