"""`reauth-proxy sessions` and the status page, of a proxy that really runs with two workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from proxy.config import load
from proxy.net.sockets import connect_privately, listen_privately, remove_left_over
from tests.support.processes import is_stopped, until
from tests.support.proxy_process import LIFETIME_S, Client, Proxy, Serving, running

EACH = 16
HOSTILE = '"><img src=x onerror=alert(1)>'


async def command(proxy: Proxy, *arguments: str) -> Result:
    given = ["sessions", *arguments, "--config", str(proxy.path)]
    return await asyncio.to_thread(CliRunner().invoke, app, given)


async def reported(proxy: Proxy, *arguments: str) -> list[dict[str, Any]]:
    result = await command(proxy, *arguments, "--output", "json")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


async def crowd(proxy: Proxy) -> dict[str, list[Client]]:
    """Enough of each that both workers have some."""
    names = [f"{user}/{app}" for user in ("alice", "bob") for app in ("app-1", "app-2")]
    return {name: [await proxy.log_in(*name.split("/")) for _ in range(EACH)] for name in names}


async def test_sessions_are_listed_and_killed_by_each_selector(tmp_path: Path) -> None:
    async with running(tmp_path) as proxy:
        clients = await crowd(proxy)
        rows = await reported(proxy, "list")
        assert len(rows) == 4 * EACH
        assert {row["worker"] for row in rows} == {0, 1}
        assert {row["principal"] for row in rows} == {"User:alice", "User:bob"}

        killed = await reported(proxy, "kill", "--principal", "User:alice", "--client-id", "app-1")
        assert {row["worker"] for row in killed} == {0, 1}
        assert [await client.ended() for client in clients.pop("alice/app-1")] == [True] * EACH
        assert not any(one.reader.at_eof() for others in clients.values() for one in others)

        assert (await command(proxy, "kill", "--principal", "User:alice")).exit_code == 0
        assert [await client.ended() for client in clients.pop("alice/app-2")] == [True] * EACH

        connection = (await reported(proxy, "list", "--client-id", "app-1"))[0]["connection_id"]
        (one,) = await reported(proxy, "kill", "--connection", connection)
        assert (one["principal"], one["client_id"]) == ("User:bob", "app-1")
        assert len(await reported(proxy, "list")) == 2 * EACH - 1

        result = await command(proxy, "kill", "--client-id", "app-2")
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"{EACH} killed")
        assert len(await reported(proxy, "list")) == EACH - 1

        # The log has the operator, the metrics and the page the result.
        who = f"uid {os.getuid()} (pid {os.getpid()})"
        logged = f"{who} killed {EACH} sessions of client_id 'app-2'"
        await until(lambda: logged in proxy.log())
        _, metrics = await proxy.fetch("/metrics")
        killed_in_all = f'reason="killed"}} {3 * EACH + 1}.0'
        assert f'connections_closed_total{{listener="clients",{killed_in_all}' in metrics
        incidents = (await proxy.fetch_json("/sessions.json"))["incidents"]
        assert {(one["kind"], one["what"]) for one in incidents} == {("closed", "killed")}
        assert sum(one["times"] for one in incidents) == 3 * EACH + 1


async def test_sessions_are_drained_one_after_the_other(tmp_path: Path) -> None:
    async with running(tmp_path) as proxy:
        clients = await crowd(proxy)
        assert (await command(proxy, "drain")).exit_code == 2
        assert (await command(proxy, "drain", "--all", "--client-id", "app-1")).exit_code == 2
        assert (await command(proxy, "drain", "--all", "--rate", "0/s")).exit_code == 2
        result = await command(proxy, "drain", "--client-id", "app-1", "--rate", "1000/s")
        assert result.stdout == f"{2 * EACH} of {2 * EACH} drained\n"
        assert all([await client.ended() for client in clients["alice/app-1"]])
        result = await command(proxy, "drain", "--all", "--rate", "1000/s")
        assert result.stdout == f"{2 * EACH} of {2 * EACH} drained\n"
        assert await reported(proxy, "list") == []


async def test_what_is_told_of_a_session(tmp_path: Path) -> None:
    async with running(tmp_path) as proxy:
        client = await proxy.log_in("alice", HOSTILE, ends_in=1_000)
        await proxy.ask_metadata(client)
        await proxy.log_in("old", version=0)
        (one,) = await reported(proxy, "list", "--principal", "User:alice")
        assert 900 < one.pop("lifetime_left_s") < 1_000
        assert one["lifetime_announced"] is True
        assert (one["client_software_name"], one["client_software_version"]) == ("java", "4.1.0")
        assert (one["mechanism"], one["enforcement"]) == ("OAUTHBEARER", "enforce")
        assert one["state"] == "authenticated"
        assert one["requests"] == 1
        assert one["response_bytes"] > one["request_bytes"] > 0
        (old,) = await reported(proxy, "list", "--principal", "User:old")
        assert old["lifetime_announced"] is False
        assert old["lifetime_left_s"] < LIFETIME_S

        status, page = await proxy.fetch("/?principal=User:alice")
        assert status == 200
        assert "User:alice" in page
        assert "User:old" not in page
        assert "<img" not in page
        table = (await command(proxy, "list")).stdout
        assert "User:old" in table

        # a connection that has said nothing yet has neither name nor principal
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.until(lambda: three(proxy))
        states = (await proxy.fetch_json("/sessions.json"))["states"]
        assert states["authenticated"] == 2
        (silent,) = [row for row in await reported(proxy, "list") if row["state"] == "connected"]
        assert (silent["principal"], silent["client_id"]) == (None, None)
        assert len(await reported(proxy, "kill", "--connection", silent["connection_id"])) == 1
        writer.close()


async def three(proxy: Proxy) -> bool:
    return len(await reported(proxy, "list")) == 3


@pytest.mark.slow
async def test_a_worker_that_hangs_is_named(tmp_path: Path) -> None:
    """The sessions of the other worker are still listed."""
    async with running(tmp_path, replaces=False) as proxy:
        for _ in range(12):
            await proxy.log_in("alice")
        hanging = proxy.children()[1]
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: is_stopped(hanging))
        named = "reauth-proxy: worker 1 does not answer\n"
        try:
            # The other one may be too busy to answer in time, once.
            while (result := await command(proxy, "list", "--output", "json")).stderr != named:
                assert "worker 0 does not answer" in result.stderr
            page = await proxy.fetch_json("/sessions.json")
        finally:
            os.kill(hanging, signal.SIGCONT)
        assert result.exit_code == 1
        rows = json.loads(result.stdout)
        assert {row["worker"] for row in rows} == {0}
        assert page["workers"][1]["reasons"] == ["worker 1 does not answer"]
        assert page["counts"]["sessions"] == len(rows)


async def test_statuses_and_refusals(tmp_path: Path) -> None:
    async with running(tmp_path) as proxy:
        assert (await command(proxy, "list")).exit_code == 0, "none is no failure"
        result = await command(proxy, "list", "--principal", "nobody")
        assert (result.exit_code, result.stderr) == (0, "reauth-proxy: no sessions found\n")
        result = await command(proxy, "kill", "--principal", "nobody")
        assert (result.exit_code, result.stderr) == (1, "reauth-proxy: no session matches\n")
        assert (await command(proxy, "kill")).exit_code == 2
        assert (await command(proxy, "list", "--socket", "x")).exit_code == 2

        path = load(proxy.path).admin_socket()
        assert path == tmp_path / "state.db.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        for question, why in (
            (b"{}\n", "unknown request"),
            (b'{"kind": "kill", "arguments": {}}\n', "name the sessions"),
            (b'{"kind": "kill", "arguments": {"who": "x"}}\n', "not a selection"),
            (b'{"kind": "kill", "arguments": {"principal": 7}}\n', "not a selection"),
            (b"\xff\n", "unknown request"),
            (b"[" * 100_000 + b"\n", "unknown request"),
        ):
            answer = await asyncio.to_thread(ask, path, question)
            assert why in answer["error"], question
    assert not path.exists()


def ask(path: Path, question: bytes) -> dict[str, Any]:
    with connect_privately(path, 60) as sock, sock.makefile("rwb") as stream:
        stream.write(question)
        stream.flush()
        answer: dict[str, Any] = json.loads(stream.readline())
    return answer


OTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(60)
    try:
        sock.connect(sys.argv[1])
    except PermissionError:
        sys.exit("closed to me")
    sock.sendall(b'{"kind": "kill", "arguments": {"principal": "User:alice"}}\\n')
    sys.exit(sock.makefile().readline())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can try it as another user")
async def test_another_user_is_refused() -> None:
    """By the file's mode and, if that is widened, by the peer's credentials from the kernel."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # so that the socket alone says no  # noqa: ASYNC240 - nothing else runs
        async with running(Path(directory), workers=1) as proxy:
            await proxy.log_in("alice")
            path = load(proxy.path).admin_socket()
            assert await asyncio.to_thread(as_another_user, path) == "closed to me\n"
            path.chmod(0o666)
            said = await asyncio.to_thread(as_another_user, path)
            assert "only root and the user of the proxy" in said
            await until(lambda: "uid 65534" in proxy.log())
            assert len(await reported(proxy, "list")) == 1


IMPOSTOR = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind(sys.argv[1])
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    sock.listen()  # the kernel notes the user now
    print("listening", flush=True)
    client, _ = sock.accept()
    client.makefile().readline()
    client.sendall(b'{"sessions": [], "silent": []}\\n')
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can try it as another user")
@pytest.mark.parametrize("owner", [0, 65534])
def test_a_socket_of_another_user_is_not_believed(tmp_path: Path, owner: int) -> None:
    """In a folder of root's, such as /tmp, any user can listen first; in its own, it may."""
    path = tmp_path / "admin.sock"
    os.chown(tmp_path, owner, -1)
    command = [sys.executable, "-c", IMPOSTOR, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as impostor:
        assert impostor.stdout is not None
        impostor.stdout.readline()
        result = CliRunner().invoke(app, ["sessions", "list", "--socket", str(path)])
        impostor.kill()
    if owner:
        assert result.exit_code == 0
    else:
        assert result.exit_code == 1
        assert "user 65534 listens there, not the user of the proxy" in result.stderr


def as_another_user(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER, path], capture_output=True, text=True, timeout=180
    )
    return done.stderr


def test_no_proxy_answers(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sessions", "list", "--socket", str(tmp_path / "no.sock")])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"reauth-proxy: {tmp_path / 'no.sock'}: no proxy answers there")


def test_a_socket_that_was_left_over_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40) / "admin.sock"
    path.parent.mkdir()
    listen_privately(path).close()
    assert path.is_socket()
    second = listen_privately(path)
    connect_privately(path, 1).close()
    remove_left_over(path)
    assert path.is_socket(), "somebody listens"
    second.close()
    remove_left_over(path)
    assert not path.exists()


def test_a_socket_in_use_and_a_file_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with listen_privately(path), pytest.raises(Exception, match="Address already in use"):
        listen_privately(path)
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(Exception, match="Address already in use"):
        listen_privately(file)
    assert file.read_text() == "precious"
    with pytest.raises(Exception, match=r"AF_UNIX path too long$"):
        listen_privately(tmp_path / ("x" * 120))


def test_a_socket_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    """If the operator named it; the one beside the store is no reason not to serve."""
    proxy = Serving(tmp_path, workers=1)
    proxy.settings["admin"] = {"socket": str(tmp_path / "none" / "x.sock")}
    proxy.write()
    try:
        line = proxy.refusal()[-1]
        assert line.startswith("reauth-proxy: admin.socket: cannot listen on ")
    finally:
        proxy.stop()
