"""`reauth-proxy quotas` as people script it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli.quotas import app
from proxy.store import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    open_store(f"sqlite:{path}").close()
    return path


def run(store: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, "--store", str(store), *arguments])


def listed(store: Path, *arguments: str) -> object:
    return json.loads(run(store, "list", "--output", "json", *arguments).stdout)


def test_set_list_remove(store: Path) -> None:
    done = run(store, "set", "--user", "a", "producer_byte_rate=1024", "request_percentage=12.5")
    assert done.exit_code == 0, done.output
    assert done.stdout == "user a: producer_byte_rate=1024, request_percentage=12.5\n"
    run(store, "set", "--user", "a", "--client-id-defaults", "consumer_byte_rate=7")
    run(store, "set", "--ip-defaults", "connection_creation_rate=5")
    of_user = {
        "entity": {"user": "a"},
        "quotas": {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
    }
    of_both = {
        "entity": {"user": "a", "client-id": None},
        "quotas": {"consumer_byte_rate": 7.0},
    }
    of_ip = {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5.0}}
    assert listed(store) == [of_ip, of_user, of_both]
    assert listed(store, "--user", "a") == [of_user, of_both]
    assert listed(store, "--client-id-defaults") == [of_both]
    assert listed(store, "--user", "b") == []

    assert run(store, "remove", "--user", "a", "request_percentage").exit_code == 0
    gone = run(store, "remove", "--user", "a")
    assert gone.stdout == "user a: removed producer_byte_rate\n"
    assert run(store, "remove", "--user", "a").exit_code == 1
    assert listed(store, "--user", "a") == [of_both]


def test_the_table_shows_every_limit(store: Path) -> None:
    run(store, "set", "--user", "[red]a\x1b", "--client-id", "c", "producer_byte_rate=1024")
    shown = run(store, "list").stdout
    assert "user [red]a\\x1b, client-id c" in shown
    assert "1024" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("producer_byte_rate=5",), "Invalid empty client quota entity"),
        (("--user", "", "producer_byte_rate=5"), "Empty user not supported"),
        (("--user", "a", "--user-defaults", "producer_byte_rate=5"), "give one of --user and"),
        (("--user", "a", "--ip-defaults", "producer_byte_rate=5"), "should not be combined"),
        (("--user", "a", "connection_creation_rate=5"), "is not one of producer_byte_rate"),
        (("--ip", "nowhere", "connection_creation_rate=5"), "not a valid IP"),
        (("--user", "a", "producer_byte_rate=0"), "must be greater than 0"),
        (("--user", "a", "producer_byte_rate=1.5"), "cannot be a fractional value"),
        (("--user", "a", "producer_byte_rate=x"), "is not KEY=VALUE with a number"),
        (("--user", "a", "producer_byte_rate"), "is not KEY=VALUE with a number"),
        (("--user", "a", "producer_byte_rate=1", "producer_byte_rate=2"), "given twice"),
    ],
)
def test_misuse_is_told_and_stores_nothing(
    store: Path, arguments: tuple[str, ...], problem: str
) -> None:
    refused = run(store, "set", *arguments)
    assert refused.exit_code == 2
    assert problem in " ".join(refused.output.replace("│", " ").split())
    assert listed(store) == []


def test_explain_says_which_and_why(store: Path) -> None:
    run(store, "set", "--user-defaults", "producer_byte_rate=10")
    run(store, "set", "--client-id", "c", "producer_byte_rate=20", "consumer_byte_rate=30")
    told = run(store, "explain", "--user", "u", "--client-id", "c").stdout
    assert told.splitlines()[:7] == [
        "producer_byte_rate: 10, shared by all clients of user u without a quota of their own",
        "  1. /config/users/u/clients/c: not set",
        "  2. /config/users/u/clients/<default>: not set",
        "  3. /config/users/u: not set",
        "  4. /config/users/<default>/clients/c: not set",
        "  5. /config/users/<default>/clients/<default>: not set",
        "  6. /config/users/<default>: applies",
    ]
    assert "consumer_byte_rate: 30, shared by all users with client id 'c'" in told
    assert "request_percentage: no limit" in told

    rows = json.loads(
        run(store, "explain", "--user", "u", "--client-id", "c", "--output", "json").stdout
    )
    assert rows[0]["limit"] == 10.0
    assert rows[0]["applies"] == "/config/users/<default>"
    assert rows[0]["tags"] == {"user": "u", "client-id": ""}
    assert [one["row"] for one in rows[0]["considered"]] == list(range(1, 10))
    assert rows[2]["limit"] is None


def test_there_must_be_a_store(tmp_path: Path) -> None:
    """A mistyped path must not become a new, empty store."""
    missing = run(tmp_path / "typo.db", "list")
    assert missing.exit_code == 2
    assert "there is no such store" in missing.output
    assert not (tmp_path / "typo.db").exists()
    assert CliRunner().invoke(app, ["list"]).exit_code == 2
