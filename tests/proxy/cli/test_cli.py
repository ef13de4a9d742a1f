"""The command line as people script it: exit statuses, one line for an error, no password told."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from proxy.config import json_schema
from proxy.store import open_store
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.proxy_process import refusal, run

SHA_256 = ScramMechanism.SCRAM_SHA_256
SHA_512 = ScramMechanism.SCRAM_SHA_512


def add(config: Path, name: str, *options: str | Path, stdin: str | bytes = "secret\n") -> Result:
    mechanism = () if "--mechanism" in options else ("--mechanism", "SCRAM-SHA-256")
    source = () if "--password-file" in options else ("--password-file", "-")
    return run("users", "add", name, "--config", config, *mechanism, *source, *options, stdin=stdin)


def credential(config: Path, user: str, mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    store = open_store(f"sqlite:{config.parent / 'state.db'}")
    try:
        return store.credential_snapshot().credentials[user, mechanism]
    finally:
        store.close()


def fits(found: ScramCredential, password: str, mechanism: ScramMechanism = SHA_256) -> bool:
    expected = ScramCredential.from_password(mechanism, password, found.salt, found.iterations)
    return found == expected


def test_a_user_is_added_and_replaced(config: Path) -> None:
    assert add(config, "alice").exit_code == 0
    first = credential(config, "alice")
    assert fits(first, "secret")
    assert first.iterations == 8192

    assert add(config, "alice", "--iterations", "4096", stdin="other\n").exit_code == 0
    second = credential(config, "alice")
    assert fits(second, "other")
    assert second.iterations == 4096
    assert first.salt != second.salt


@pytest.mark.parametrize(
    ("given", "password"),
    [
        ("secret", "secret"),
        ("secret\n", "secret"),
        ("secret\r\n", "secret"),
        ("secret\n\n", "secret\n"),
        (" s p ", " s p "),
        ("pÄss\N{KEY}", "pÄss\N{KEY}"),
    ],
)
def test_one_newline_at_the_end_is_not_the_passwords(
    config: Path, given: str, password: str
) -> None:
    """`echo` and editors put one there; all else is meant."""
    file = config.with_name("password")
    file.write_bytes(given.encode())

    assert add(config, "stdin", stdin=given.encode()).exit_code == 0
    assert add(config, "file", "--password-file", file).exit_code == 0

    assert fits(credential(config, "stdin"), password)
    assert fits(credential(config, "file"), password)


@pytest.mark.parametrize("given", [b"", b"\n", b"\r\n", b"\xff\xfe", b"x" * 5000])
def test_passwords_that_cannot_be_meant(config: Path, given: bytes) -> None:
    result = add(config, "alice", stdin=given)
    assert result.exit_code == 2
    problem = "-: is larger than 4096 bytes" if len(given) > 4096 else "the password "
    assert result.stderr.startswith(f"reauth-proxy: {problem}")
    assert result.stderr.count("\n") == 1
    assert run("users", "list", "--config", config, "--output", "json").stdout == "[]\n"


@pytest.mark.parametrize(
    "options",
    [
        ("--mechanism", "PLAIN"),
        ("--mechanism", "scram-sha-256"),
        ("--iterations", "4095"),
        ("--iterations", "16385"),
        ("--iterations", "many"),
        ("--password", "secret"),
        ("--password-file", "no-such-file"),
    ],
)
def test_wrong_options_are_status_2(config: Path, options: tuple[str, ...]) -> None:
    """`--password` does not exist: every process could read it."""
    assert add(config, "alice", *options).exit_code == 2
    assert add(config, "").exit_code == 2


def test_nobody_to_ask_for_the_password(config: Path) -> None:
    """In a pipe without --password-file, stdin is not read as a password."""
    result = run(
        *("users", "add", "alice", "--config", config, "--mechanism", "SCRAM-SHA-256"),
        stdin="secret\n",
    )
    assert result.exit_code == 2


def test_a_password_that_is_typed_is_not_echoed(config: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ("users", "add", "alice", "--config", config, "--mechanism", "SCRAM-SHA-512")
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = ""
    for prompt in ("Password", "again|Repeat"):
        screen += _read_until_prompt(ours, prompt)
        os.write(ours, b"hunter2\n")
    assert process.wait(120) == 0
    screen += _read_until_prompt(ours, "log in")
    os.close(ours)

    assert "hunter2" not in screen
    assert fits(credential(config, "alice", SHA_512), "hunter2", SHA_512)


def _read_until_prompt(terminal: int, words: str) -> str:
    text = ""
    deadline = time.monotonic() + 120
    while not any(word in text for word in words.split("|")) or (
        words != "log in" and not text.endswith(": ")
    ):
        readable, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        assert readable, f"no prompt, but: {text}"
        text += os.read(terminal, 4096).decode()
    return text


def test_users_are_listed(config: Path) -> None:
    add(config, "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "4096")
    add(config, "alice")

    rows = json.loads(run("users", "list", "--config", config, "--output", "json").stdout)
    assert rows == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    table = run("users", "list", "--config", config).stdout
    assert "alice" in table
    assert "SCRAM-SHA-512" in table


def test_a_name_does_not_steer_the_terminal(config: Path) -> None:
    """AlterUserScramCredentials takes any name, and an operator looks at the list."""
    name = "e\x1b[2Jve[red]x\n"
    assert "\x1b" not in add(config, name).stdout

    table = run("users", "list", "--config", config).stdout
    assert "\x1b" not in table
    assert r"e\x1b[2Jve[red]x\n" in table
    rows = json.loads(run("users", "list", "--config", config, "--output", "json").stdout)
    assert rows[0]["user"] == name


def test_users_are_removed(config: Path) -> None:
    for mechanism in ScramMechanism:
        add(config, "alice", "--mechanism", mechanism.value)
    add(config, "bob", "--mechanism", "SCRAM-SHA-512")
    remove = ("users", "remove", "alice", "--config", config)

    assert run(*remove, "--mechanism", "SCRAM-SHA-256").exit_code == 0
    again = run(*remove, "--mechanism", "SCRAM-SHA-256")
    assert again.exit_code == 1
    assert again.stderr == "reauth-proxy: there is no user alice with SCRAM-SHA-256\n"
    assert run(*remove).exit_code == 0
    assert run(*remove).exit_code == 1

    rows = json.loads(run("users", "list", "--config", config, "--output", "json").stdout)
    assert [row["user"] for row in rows] == ["bob"]


def test_a_configuration_is_checked(config: Path) -> None:
    for arguments in ((config,), ("--config", config)):
        result = run("config", "check", *arguments)
        assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    assert run("config", "check").exit_code == 2
    assert run("config", "check", config, "--config", config).exit_code == 2


def test_a_check_reports_what_needs_no_authentication(config: Path) -> None:
    """It may be meant so: the status is 0 all the same."""
    open_to_all = {"security.protocol": "PLAINTEXT"}
    settings = yaml.safe_load(config.read_text())
    settings["listeners"] = [
        {key: one[key] for key in ("name", "address", "routing")} | open_to_all
        for one in settings["listeners"]
    ]
    config.write_text(yaml.safe_dump(settings))
    result = run("config", "check", config)
    assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    assert result.stderr.startswith(f"{config}: warning: listener ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("config", "show"), ("users", "list")])
def test_a_wrong_configuration_is_one_line_and_status_2(
    config: Path, command: tuple[str, ...]
) -> None:
    config.write_text(config.read_text() + "    connections.max.reauth.ms: x\n")
    result = run(*command, "--config", config)
    assert result.exit_code == 2
    assert result.stderr == (
        f"reauth-proxy: {config}: listeners[0].connections.max.reauth.ms:"
        " must be a whole number of milliseconds, got 'x'\n"
    )
    assert result.stdout == ""


def test_a_start_lists_all_mistakes_with_their_lines(config: Path) -> None:
    """In a process of its own: `serve` replaces the standard streams."""
    text = config.read_text() + "    connections.max.reauth.ms: x\n    max.connections: 0\n"
    config.write_text(text)
    last = text.count("\n")
    whole = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
    result = subprocess.run(whole, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"reauth-proxy: {config}:{last - 1}: listeners[0].connections.max.reauth.ms:"
        " must be a whole number of milliseconds, got 'x'",
        f"reauth-proxy: {config}:{last}: listeners[0].max.connections: must be at least 1, got 0",
    ]


def test_the_schema_is_json() -> None:
    assert json.loads(run("config", "schema").stdout) == json_schema()


def test_it_tells_its_version() -> None:
    done = run("--version")
    said = f"reauth-proxy {version('kafka-reauth-proxy')} (interpreted)\n"
    assert (done.exit_code, done.output) == (0, said)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "Commands:"),
        ("config", "Commands:"),
        ("acls list --principal", "reauth-proxy: Option '--principal' requires an argument"),
    ],
)
def test_a_command_that_is_cut_short(command: str, told: str) -> None:
    assert told in refusal(*command.split())


def test_help_imports_nothing_heavy() -> None:
    """A command starts quickly because each imports what it needs when it runs."""
    program = (
        "import sys; import proxy.cli;"
        "heavy = {'pydantic', 'yaml', 'uvloop', 'kio', 'aiohttp', 'sqlite3'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "[]\n"


OUTPUTS = "'table', 'wide', 'json', 'yaml', 'name'"


@pytest.mark.parametrize(
    ("arguments", "of", "problem"),
    [
        ("--bogus", "", "No such option: --bogus"),
        ("acls lst", " acls", "No such command 'lst'. Did you mean 'list'?"),
        ("users add", " users add", "Missing argument 'NAME'"),
        ("sessions kill", " sessions kill", "give --principal, --client-id or --connection"),
        (
            *("acls list -o xml", " acls list"),
            f"Invalid value for '--output' / '-o': 'xml' is not one of {OUTPUTS}",
        ),
        ("users\nERROR-all-is-lost", "", "No such command 'users\\nERROR-all-is-lost'"),
    ],
)
def test_a_mistake_in_the_command_line_is_one_line(arguments: str, of: str, problem: str) -> None:
    result = run(*arguments.split(" "))
    line = f"reauth-proxy{of}: {problem} (see reauth-proxy{of} --help)\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line)
