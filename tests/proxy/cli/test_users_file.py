"""`reauth-proxy users` on a file for several proxies."""

import json
import stat
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from proxy.store import open_store
from proxy.store.users_file import Users
from sasl.credentials import ScramCredential
from tests.support import proxy_process
from tests.support.settings import mapping
from tests.support.store import SHA_256, content, of, put

ADD = ("--mechanism", "SCRAM-SHA-256", "--password-file", "-")
WRITERS = 8

run = partial(proxy_process.run, stdin="secret\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return _config(tmp_path / "proxy.yaml", "sqlite:state.db")


def _config(path: Path, url: str, **store: str) -> Path:
    path.write_text(json.dumps(mapping(store={"url": url} | store)))
    return path


def names(file: Path) -> list[str]:
    done = run("users", "list", "--users-file", file, "--output", "json")
    return [row["user"] for row in json.loads(done.stdout)]


def test_users_are_added_listed_and_removed(file: Path) -> None:
    for name in ("alice", "bob"):
        assert run("users", "add", name, *ADD, "--users-file", file).exit_code == 0
    assert names(file) == ["alice", "bob"]
    secret = Users.read(file).secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("users", "remove", "alice", "--users-file", file).exit_code == 0
    again = run("users", "remove", "alice", "--users-file", file)
    assert (again.exit_code, again.stderr) == (1, "reauth-proxy: there is no user alice\n")
    assert names(file) == ["bob"]
    found = Users.read(file)
    assert found.secret == secret
    bob = found.credentials["bob", SHA_256]
    assert bob == ScramCredential.from_password(SHA_256, "secret", bob.salt, bob.iterations)


def test_the_file_keeps_its_mode_and_its_link(file: Path, tmp_path: Path) -> None:
    put(file, content(alice=of(SHA_256)))
    file.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert run("users", "add", "bob", *ADD, "--users-file", link).exit_code == 0
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert names(file) == ["alice", "bob"]
    assert {each.name for each in tmp_path.iterdir()} == {"link.json", "users.json"}


def test_nothing_is_done_to_a_file_that_is_none(file: Path) -> None:
    put(file, "alice: secret")
    for command in (("add", "bob", *ADD), ("remove", "alice"), ("list",)):
        done = run("users", *command, "--users-file", file)
        assert done.exit_code == 1
        assert (
            done.stderr == f"reauth-proxy: {file}: must be a JSON object without duplicate names\n"
        )
    assert file.read_text() == "alice: secret"


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    done = run("users", "add", "bob", *ADD, "--users-file", tmp_path / "none" / "users.json")
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "cannot be written: No such file or directory" in done.stderr


def test_of_two_at_a_time_none_is_lost(file: Path) -> None:
    users = (sys.executable, "-m", "proxy", "users")
    running = [
        subprocess.Popen(
            [*users, "add", f"user-{number}", *ADD, "--users-file", file],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        for number in range(WRITERS)
    ]
    for process in running:
        process.communicate(b"secret", timeout=120)
        assert process.returncode == 0
    assert names(file) == [f"user-{number}" for number in range(WRITERS)]


def test_one_of_the_two_is_to_be_named(file: Path, config: Path) -> None:
    for command in (("add", "bob", *ADD), ("remove", "bob"), ("list",)):
        for both in ((), ("--config", config, "--users-file", file)):
            assert run("users", *command, *both).exit_code == 2
    assert not file.exists()


def test_by_the_configuration_it_is_listed_and_not_changed(file: Path, tmp_path: Path) -> None:
    put(file, content(alice=of(SHA_256)))
    config = _config(tmp_path / "proxy.yaml", "sqlite:state.db", **{"users.file": "users.json"})
    listed = run("users", "list", "--config", config, "--output", "json")
    assert [row["user"] for row in json.loads(listed.stdout)] == ["alice"]
    for command in (("add", "bob", *ADD), ("remove", "alice")):
        done = run("users", *command, "--config", config)
        assert done.exit_code == 2
        expected = f"{config}: store.users.file: {file} is changed with --users-file"
        assert done.stderr == f"reauth-proxy: {expected}\n"
    assert names(file) == ["alice"]


def test_a_proxys_users_are_exported(file: Path, config: Path, tmp_path: Path) -> None:
    """Several proxies' into one file, if they agree; the first one's secret stays."""
    for name in ("alice", "bob"):
        assert run("users", "add", name, *ADD, "--config", config).exit_code == 0
    done = run("users", "export", "--config", config, "--users-file", file)
    assert (done.exit_code, done.stdout) == (0, f"2 verifiers are in {file}\n")
    first = Users.read(file)
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as store:
        assert first.secret == store.scram_fake_secret(), "unknown users have the same salts"
    assert [name for name, _ in first.credentials] == ["alice", "bob"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    other = _config(tmp_path / "other.yaml", "sqlite:other.db")
    assert run("users", "add", "carol", *ADD, "--config", other).exit_code == 0
    assert run("users", "export", "--config", other, "--users-file", file).exit_code == 0
    both = Users.read(file)
    assert both.secret == first.secret
    assert [name for name, _ in both.credentials] == ["alice", "bob", "carol"]

    assert run("users", "add", "bob", *ADD, "--config", other, stdin="new\n").exit_code == 0
    refused = run("users", "export", "--config", other, "--users-file", file)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"reauth-proxy: {file}: has other verifiers of bob\n"
    assert Users.read(file) == both


def test_of_no_users_no_file_is_made(file: Path, config: Path) -> None:
    done = run("users", "export", "--config", config, "--users-file", file)
    assert (done.exit_code, done.stderr) == (1, "reauth-proxy: the store has no users\n")
    assert not file.exists()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "users.json cannot be read: No such file or directory"),
        ("[]", "users.json: must be a JSON object without duplicate names"),
    ],
)
def test_config_check_reads_it(found: str | None, why: str, file: Path, tmp_path: Path) -> None:
    if found is not None:
        put(file, found)
    config = _config(tmp_path / "proxy.yaml", "sqlite:state.db", **{"users.file": "users.json"})
    done = run("config", "check", config)
    assert done.exit_code == 2
    assert done.stderr == f"reauth-proxy: {config}:1: store.users.file: {tmp_path}/{why}\n"
