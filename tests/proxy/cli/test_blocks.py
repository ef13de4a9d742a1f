"""`reauth-proxy block`, `unblock` and `blocks`."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import Result

from proxy.cli.common import operator
from proxy.connection.blocks import MAX_ENTRIES
from tests.support import proxy_process
from tests.support.blocks import document
from tests.support.settings import PLAINTEXT, SCRAM, mapping


def run(directory: Path, *arguments: str) -> Result:
    config = directory / "proxy.yaml"
    if not config.exists():
        config.write_text(json.dumps(mapping(PLAINTEXT)))
    return proxy_process.run(*arguments, "--config", config)


def test_an_entry_is_added_listed_and_removed(tmp_path: Path) -> None:
    now = time.time()
    given = ["--principal", "alice", "--issued-before", "now", "--until", "24h", "--margin", "30s"]
    added = run(tmp_path, "block", *given, "--reason", "lost")
    assert "id 1; this proxy alone applies it" in added.output
    path = tmp_path / "state.db.blocks"
    assert path.stat().st_mode & 0o777 == 0o644
    (entry,) = json.loads(run(tmp_path, "blocks", "-o", "json").output)
    assert entry.pop("issued_before") >= now, "a token of this second is blocked"
    assert now <= entry.pop("ends_at") - 86_400 <= time.time() + 1
    assert entry.pop("author").startswith(f"{operator()}@")
    assert entry.pop("created_at") >= int(now)
    assert entry == {
        "id": "1", "principal": "User:alice", "reason": "lost", "margin_s": 30.0,
    }  # fmt: skip
    settings = mapping(PLAINTEXT, block={"file": path.name})
    (tmp_path / "proxy.yaml").write_text(json.dumps(settings))
    second = run(tmp_path, "block", "--group", "a")
    assert f"id 2; every proxy that reads {path} applies it" in second.output
    assert "issued before 2" in run(tmp_path, "blocks").output
    assert run(tmp_path, "unblock", "1").exit_code == 0
    (entry,) = json.loads(run(tmp_path, "blocks", "-o", "json").output)
    assert (entry["id"], entry["group"]) == ("2", "Group:a")


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        ("block", 2, "needs at least one criterion"),
        ("block --address 10.1.2.3/8", 2, "must be an address or a network"),
        ("block --jti x --until soon", 2, "'soon' is neither an ISO 8601 time"),
        ("unblock 7", 1, "there is no block '7'"),
        ("block --jti x --dry-run", 1, "no proxy answers there"),
    ],
)
def test_mistakes(arguments: str, status: int, problem: str, tmp_path: Path) -> None:
    result = run(tmp_path, *arguments.split())
    assert (result.exit_code, problem in result.stderr) == (status, True), result.stderr
    assert not (tmp_path / "state.db.blocks").exists()


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        (document({"jti": "x"})[:-5], 2, "is incomplete"),
        (document(*[{"jti": "x"}] * MAX_ENTRIES), 1, "is full: unblock some"),
    ],
)
def test_a_list_that_is_full_or_broken_is_left_alone(
    content: bytes, status: int, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db.blocks"
    path.write_bytes(content)
    result = run(tmp_path, "block", "--jti", "y")
    assert (result.exit_code, problem in result.stderr) == (status, True), result.stderr
    assert path.read_bytes() == content


def test_an_entry_that_ended_more_than_a_day_ago_is_removed(tmp_path: Path) -> None:
    now = time.time()
    ended = [{"jti": str(days), "ends_at": now - days * 86_400} for days in (0.5, 1.5)]
    (tmp_path / "state.db.blocks").write_bytes(document(*ended))
    run(tmp_path, "block", "--jti", "x")
    found = json.loads(run(tmp_path, "blocks", "-o", "json").output)
    assert [one["jti"] for one in found] == ["0.5", "x"]


def test_removing_a_user_or_killing_sessions_may_revoke_everywhere(tmp_path: Path) -> None:
    rules = {"sasl.scram.principal.mapping.rules": "RULE:^(.*)$/$1@x/"}
    other = {**SCRAM, "name": "other", "address": "127.0.0.1:9095", **rules}
    settings = mapping()
    settings["listeners"] += mapping(other)["listeners"]
    (tmp_path / "proxy.yaml").write_text(json.dumps(settings))
    password = tmp_path / "password"
    password.write_text("secret")
    add = ["--mechanism", "SCRAM-SHA-256", "--password-file", str(password)]
    assert run(tmp_path, "users", "add", "alice", *add).exit_code == 0
    removed = run(tmp_path, "users", "remove", "alice", "--revoke")
    assert "this proxy alone applies it" in removed.output
    killed = run(tmp_path, "sessions", "kill", "--client-id", "app", "--revoke")
    assert (killed.exit_code, "no proxy answers there" in killed.stderr) == (1, True)
    found = json.loads(run(tmp_path, "blocks", "-o", "json").output)
    assert [(one["id"], one.get("principal"), one.get("client_id")) for one in found] == [
        ("1", "User:alice", None), ("1.1", "User:alice@x", None), ("2", None, "app"),
    ]  # fmt: skip
    assert all(one["issued_before"] and one["author"] for one in found)
    assert run(tmp_path, "sessions", "kill", "--connection", "c", "--revoke").exit_code == 2


@pytest.mark.parametrize(
    ("beats", "problem"),
    [
        ({}, "no proxy reads the list"),
        ({"a:9094 worker 0": "7", "b:9094 worker 0": "6"}, "applied: b:9094 worker 0"),
        ({"a:9094 worker 0": "7", "b:9094 worker 0": ""}, "applied: b:9094 worker 0"),
        ({"a:9094 worker 0": "7", "b:9094 worker 0": "8"}, None),
    ],
)
def test_waiting_names_the_workers_that_have_not_applied_the_list(
    beats: dict[str, str], problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.cli.blocks.WAIT_S", 0)
    (tmp_path / "state.db.blocks").write_bytes(document(version=7))
    (tmp_path / "state.db.blocks.proxies").mkdir()
    for name, version in beats.items():
        (tmp_path / "state.db.blocks.proxies" / name).write_text(version)
    result = run(tmp_path, "blocks", "--wait")
    assert result.exit_code == (0 if problem is None else 1)
    assert (problem or "no blocks found") in result.stderr
