"""The command line through a pipe, on a terminal of 80 columns, and on a full disk."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli import app
from proxy.cli.listing import Output, print_list
from proxy.cli.sessions import Sort
from proxy.store import Store, open_store
from tests.support.acls import acl
from tests.support.proxy_process import rows, run, run_acls
from tests.support.status import session

LONG = "a-very-long-name-of-a-topic-that-no-terminal-of-eighty-columns-can-hold-beside-all-the-rest"


PROXY = ("-m", "proxy")
HEADINGS = ["RESOURCE", "PATTERN", "NAME", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"]


@pytest.fixture
def acls(store: Store, path: Path) -> Path:
    store.create_acls([acl("orders"), acl(LONG)])
    return path


def on_terminal(*arguments: object, columns: int = 80, program: Sequence[str] = PROXY) -> list[str]:
    """What a command writes to a terminal that wide, line by line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: v for key, v in os.environ.items() if key not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65_536):
                text += piece
        except OSError:  # on Linux: no process has the terminal open any more
            pass
        os.close(ours)
        assert process.wait(120) == 0, text
    return text.decode().replace("\r\n", "\n").splitlines()


def piped(
    *arguments: object, program: Sequence[str] = PROXY, **options: Any
) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        text=True,
        timeout=240,
        check=False,
        **streams,
    )


def test_no_cell_is_wrapped_or_cut_in_a_pipe(acls: Path) -> None:
    done = piped("acls", "list", "--store", acls)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == HEADINGS
    assert [line.split()[2] for line in lines] == [LONG, "orders"]
    assert all(line == line.rstrip() for line in lines)


def test_a_table_stays_whole_on_a_terminal(acls: Path) -> None:
    lines = on_terminal("acls", "list", "--store", acls)
    assert max(map(len, lines)) <= 80
    assert all(part in "".join(lines) for part in (LONG[:10], LONG[-5:])), "it is folded, not cut"
    (orders,) = (line for line in lines if "orders" in line)
    assert orders.split() == ["TOPIC", "LITERAL", "orders", "User:alice", "*", "READ", "ALLOW"]
    wide = on_terminal("acls", "list", "--store", acls, "-o", "wide")
    assert any(LONG in line for line in wide), "lines may be longer than the terminal"


SESSIONS = """
import sys
from proxy.cli import sessions
from proxy.cli.listing import Output
from tests.support.status import session
client = {"client_id": "a-client-id-of-some-length", "client_software_name": "apache-kafka-java"}
found = [session(principal=f"User:{name}", **client) for name in ("alice", "bob")]
sessions.print_sessions(found, Output(sys.argv[1]))
"""


def test_a_narrow_terminal_keeps_the_columns_that_identify_a_session() -> None:
    """Without client id and connection, rows are identical and no session can be killed."""
    named = ["CLIENT", "ID", "CONNECTION"]
    for width, found in (
        (60, ["PRINCIPAL", *named]),
        (80, ["PRINCIPAL", "AGE", "LEFT", *named]),
        (130, ["PRINCIPAL", "SOFTWARE", "AGE", "LEFT", "REQUESTS", "RE-AUTH", *named]),
    ):
        head, alice, _ = on_terminal("table", columns=width, program=("-c", SESSIONS))
        assert head.split() == found
        assert "a-client-id-of-some-length  00c0ffee00c0ffee-1" in alice
        assert len(head) <= width
    assert "10.0.0.7" in piped("wide", program=("-c", SESSIONS)).stdout


@pytest.mark.parametrize(
    ("order", "first"),
    [("principal", "a"), ("age", "b"), ("left", "a"), ("requests", "c"), ("bytes", "b")],
)
def test_orders_of_sessions(order: str, first: str) -> None:
    found = [
        session(principal="c", requests=2_000),
        session(principal="b", connected_s=6e3, response_bytes=40_000_000, lifetime_left_s=None),
        session(principal="a", lifetime_left_s=-1.0),
    ]
    assert sorted(found, key=Sort(order).key)[0].principal == first


def test_every_format(config: Path) -> None:
    for name in ("bob", "alice"):
        run(
            *("users", "add", name, "--config", config, "--mechanism", "SCRAM-SHA-256"),
            *("--password-file", "-"),
            stdin="secret",
        )
    list_users = ("users", "list", "--config", config, "-o")
    assert run(*list_users, "name").stdout == "alice\nbob\n"
    assert run(*list_users, "table").stdout == run(*list_users, "wide").stdout
    documents = rows(run(*list_users, "json"))
    assert yaml.safe_load(run(*list_users, "yaml").stdout) == documents
    assert [one["user"] for one in documents] == ["alice", "bob"]


def test_nothing_found_is_said_in_one_way(config: Path) -> None:
    for command, items in (("users", "users"), ("acls", "ACLs"), ("quotas", "quotas")):
        result = run(command, "list", "--config", config)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"reauth-proxy: no {items} found\n"
        empty = run(command, "list", "--config", config, "-o", "json")
        assert (empty.stdout, empty.stderr) == ("[]\n", "")


def test_markup_and_escapes_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    printed = ["[red]a\x1b[2J"]
    print_list(printed, Output.TABLE, items="names", columns={"Name": str}, document=str, name=str)
    assert capsys.readouterr().out == "NAME\n[red]a\\x1b[2J\n"


def test_the_environment_names_the_configuration(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = ("config check", "config show", "users list", "acls list", "quotas list")
    assert {run(*one.split()).exit_code for one in commands} == {2}
    monkeypatch.setenv("REAUTH_PROXY_CONFIG", str(config))
    assert {run(*one.split()).exit_code for one in commands} == {0}
    elsewhere = config.with_name("elsewhere.db")
    open_store(f"sqlite:{elsewhere}").close()
    assert run("acls", "list", "--store", elsewhere).exit_code == 0, "an option goes first"


def test_names_of_users_and_principals_are_understood_in_both_ways(config: Path) -> None:
    given = ("--mechanism", "SCRAM-SHA-256", "--password-file", "-", "--config", config)
    assert run("users", "add", "User:carol", *given, stdin="secret").exit_code == 0
    assert run("users", "list", "--config", config, "-o", "name").stdout == "carol\n"
    for principal in ("carol", "User:carol"):
        added = run_acls(
            *("add", "--topic", "t", "--operation", "Read"),
            *("--allow-principal", principal, "--config", config),
        )
        assert added.exit_code == 0
        found = rows(run_acls("list", "--principal", principal, "--config", config, "-o", "json"))
        assert [one["principal"] for one in found] == ["User:carol"]
        limit = ("quotas", "set", "--user", principal, "producer_byte_rate=1", "--config", config)
        assert run(*limit).exit_code == 0
    quotas = rows(run("quotas", "list", "--user", "User:carol", "--config", config, "-o", "json"))
    assert [one["entity"] for one in quotas] == [{"user": "carol"}]
    assert run("users", "remove", "User:carol", "--config", config).exit_code == 0


def full_disk() -> int:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    return os.open("/dev/full", os.O_WRONLY)


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    ("arguments", "opened", "problem"),
    [
        ("--help", full_disk, "No space left on device"),
        ("config schema", full_disk, "No space left on device"),
        ("--version", full_disk, "No space left on device"),
        ("--help", broken_pipe, None),
        ("config schema", broken_pipe, None),
    ],
)
def test_output_that_cannot_be_written_is_one_line(
    arguments: str, opened: Callable[[], int], problem: str | None
) -> None:
    """But none if the reader of a pipe, such as `head`, is gone."""
    output = opened()
    done = piped(*arguments.split(), stdout=output)
    os.close(output)
    line = f"reauth-proxy: the output cannot be written: {problem}\n"
    assert (done.returncode, done.stderr) == ((141, "") if problem is None else (1, line))


def test_help_has_no_words_of_python() -> None:
    def texts(words: list[str], command: object) -> list[tuple[list[str], str]]:
        found = [(words, CliRunner().invoke(app, [*words, "--help"]).stdout)]
        for name, below in getattr(command, "commands", {}).items():
            found += texts([*words, name], below)
        return found

    root = get_command(app)
    root.list_commands(None)  # type: ignore[attr-defined]
    every = texts([], root)
    assert len(every) > 20
    for words, text in every:
        for word in ("<str>", "<path>", "<int>", "<bool>", "list[", "None", "[["):
            assert word not in text, (words, text)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("reauth-proxy se", {"serve", "sessions"}),
        ("reauth-proxy acls li", {"list"}),
        ("reauth-proxy sessions list --so", {"--sort", "--socket"}),
    ],
)
def test_shells_complete_commands_and_options(words: str, found: set[str]) -> None:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    asked = {"_REAUTH_PROXY_COMPLETE": "complete_bash"} | variables
    assert set(piped(env=os.environ | asked).stdout.split()) == found
