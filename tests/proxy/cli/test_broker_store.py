"""The command line where ACLs and quotas are the brokers': it goes to them, never to the copy."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from proxy.cli import app
from proxy.store.sqlite.mirror import SqliteMirror
from tests.support.acls import acl
from tests.support.broker_store import ALICE, LIE, NAME, PASSWORD, PRODUCER, broker
from tests.support.fake_broker import in_a_thread
from tests.support.processes import free_ports
from tests.support.proxy_process import rows, run
from tests.support.settings import SCRAM, mapping

COMMANDS = [
    ["acls", "list"],
    ["acls", "add", "--topic", "t", "--allow-principal", "User:alice", "--operation", "Read"],
    ["acls", "remove", "--topic", "t", "--force"],
    ["quotas", "list"],
    ["quotas", "set", "--user", "alice", "producer_byte_rate=5"],
    ["quotas", "remove", "--user", "alice"],
]


def assert_one_line(result: Result, status: int) -> str:
    """Of an error, which is returned; no traceback behind it."""
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    (line,) = result.stderr.split("\n")[:-1]
    assert line.startswith("reauth-proxy: ")
    assert line.isprintable()
    return line


def config(directory: Path, upstream: dict[str, Any], **listener: Any) -> Path:
    file = directory / "proxy.yaml"
    settings = mapping(SCRAM | listener, store={"url": "broker:state.db"})
    file.write_text(yaml.safe_dump(settings | {"upstream": upstream}))
    return file


def with_login(directory: Path, address: str, password: str = PASSWORD) -> Path:
    (directory / "password").write_text(password)
    upstream = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": NAME,
        "sasl.password": "file:password",
    }
    return config(directory, upstream)


def test_the_brokers_are_asked_and_told(tmp_path: Path) -> None:
    """As the proxy itself would; the copy beside the file is not so much as made."""
    peer = broker(acl("there"), passwords={NAME: PASSWORD})
    with in_a_thread(peer):
        file = with_login(tmp_path, peer.address)
        rule = ["--allow-principal", "User:bob", "--operation", "Read", "--topic", "a"]
        assert run("acls", "add", *rule, "--config", file).exit_code == 0
        assert peer.acl_store.acls == {acl("there"), acl("a", "User:bob")}
        listed = rows(run("acls", "list", "--config", file, "--output", "json"))
        assert [row["name"] for row in listed] == ["a", "there"]
        gone = run("acls", "remove", "--topic", "there", "--force", "--config", file)
        assert gone.exit_code == 0
        assert peer.acl_store.acls == {acl("a", "User:bob")}

        done = run("quotas", "set", "--user", "alice", "producer_byte_rate=5", "--config", file)
        assert done.exit_code == 0, done.output
        assert peer.quotas.quotas == {ALICE: {PRODUCER: 5.0}}
        reported = rows(run("quotas", "list", "--config", file, "--output", "json"))
        assert reported == [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 5.0}}]
        assert run("quotas", "remove", "--user", "alice", "--config", file).exit_code == 0
        assert peer.quotas.quotas == {}
    assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_broker_there_is_one_line(tmp_path: Path, command: list[str]) -> None:
    (nobody,) = free_ports(1)
    file = config(tmp_path, {"bootstrap.servers": f"127.0.0.1:{nobody}"})
    assert f"127.0.0.1:{nobody}: " in assert_one_line(run(*command, "--config", file), 1)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_login_that_is_refused_is_one_line(tmp_path: Path, command: list[str]) -> None:
    peer = broker(acl(), passwords={NAME: "another"})
    with in_a_thread(peer):
        result = run(*command, "--config", with_login(tmp_path, peer.address))
    assert "SASL_AUTHENTICATION_FAILED" in assert_one_line(result, 1)
    assert PASSWORD not in result.output
    assert peer.acl_store.acls == {acl()}


def test_a_password_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    peer = broker(passwords={NAME: PASSWORD})
    with in_a_thread(peer):
        file = with_login(tmp_path, peer.address)
        (tmp_path / "password").unlink()
        line = assert_one_line(run("acls", "list", "--config", file), 1)
    assert "password" in line


def test_what_a_broker_says_does_not_steer_the_terminal(tmp_path: Path) -> None:
    def refuse(_version: int, _body: bytes) -> bytes:
        said = LIE.replace(PASSWORD, "").encode()
        return bytes(4) + b"\0\x1f" + bytes([len(said) + 1]) + said + b"\x01\0"

    peer = broker(handlers={29: refuse})
    with in_a_thread(peer):
        file = config(tmp_path, {"bootstrap.servers": peer.address})
        line = assert_one_line(run("acls", "list", "--config", file), 1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--store", "--config"])
def test_a_copy_is_no_place_for_administration(
    tmp_path: Path, option: str, command: list[str]
) -> None:
    """The next answer of the brokers would undo it; by a file that calls it its own, too."""
    copy = tmp_path / "state.db"
    mirror = SqliteMirror(copy)
    mirror.begin()
    mirror.take_over(asked_at=1.0, new_acls=[acl()], new_quotas={ALICE: {PRODUCER: 7.0}})
    where = copy
    if option == "--config":
        where = config(tmp_path, {"bootstrap.servers": "127.0.0.1:9"})
        where.write_text(where.read_text().replace("broker:state.db", "sqlite:state.db"))
    line = assert_one_line(run(*command, option, where), 2)
    assert line == (
        f"reauth-proxy: {where}: the store is a copy of the brokers' data: use --config, with"
        " broker:"
    )
    assert list(mirror.acl_snapshot().acls) == [acl()]
    assert mirror.quota_snapshot().quotas == {ALICE: {PRODUCER: 7.0}}
    mirror.close()


def test_users_are_the_files_own(tmp_path: Path) -> None:
    """Before a start of the proxy and after it; no broker is asked."""
    file = config(tmp_path, {"bootstrap.servers": "127.0.0.1:9"})
    rest = ["--mechanism", "SCRAM-SHA-256", "--password-file", "-", "--config", str(file)]
    for user in ("alice", "bob"):
        added = CliRunner().invoke(app, ["users", "add", user, *rest], input="a-long-password\n")
        assert added.exit_code == 0, added.output
        mirror = SqliteMirror(tmp_path / "state.db")
        mirror.begin()
        mirror.close()
    listed = run("users", "list", "--config", file, "--output", "json")
    assert [row["user"] for row in rows(listed)] == ["alice", "bob"]


# --- config check


def test_brokers_that_nobody_names_cannot_be_asked(tmp_path: Path) -> None:
    """Where clients are redirected from may be anywhere: it is no broker to begin with."""
    file = config(tmp_path, {"allowed": "127.0.0.1:9092"}, routing="transparent")
    line = assert_one_line(run("config", "check", "--config", file), 2)
    assert "upstream.bootstrap.servers: is required with broker: as store" in line
    file.write_text(file.read_text().replace("broker:state.db", "sqlite:state.db"))
    assert run("config", "check", "--config", file).exit_code == 0
    named = config(tmp_path, {"bootstrap.servers": "127.0.0.1:9"})
    result = run("config", "check", "--config", named)
    assert (result.exit_code, result.stderr) == (0, "")
    assert not (tmp_path / "state.db").exists(), "no file is made, and no broker asked"
