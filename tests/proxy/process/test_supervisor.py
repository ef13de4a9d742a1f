"""The supervisor: workers that end, and outages."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.frames import api_versions, metadata
from tests.support.processes import free_port_range
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually


def shown(serving: Serving, sample: str) -> Callable[[], bool]:
    return lambda: f"kafka_reauth_proxy_{sample}" in serving.page("/metrics")[1]


def without_sasl(serving: Serving) -> None:
    (listener,) = serving.settings["listeners"]
    for key in ("sasl.enabled.mechanisms", "reauth.enforcement"):
        del listener[key]
    listener["security.protocol"] = "PLAINTEXT"
    serving.write()


def test_a_life_of_two_workers(serving: Serving) -> None:
    assert serving.start() == f"listener clients: accepting on 127.0.0.1:{serving.port}\n"
    serving.until_up()
    assert serving.handshake_error() == 0
    assert len(serving.children()) == 4

    # A reload applies what it can, and logs the rest.
    serving.settings["workers"] = 3
    serving.settings["listeners"][0]["reauth.enforcement"] = "enforce"
    serving.path.with_name("keys.json").write_text('{"keys": []}')
    serving.settings["listeners"][0]["sasl.server.max.receive.size"] = 8
    serving.settings["listeners"][0] |= {
        "sasl.enabled.mechanisms": ["OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": "file:keys.json",
        "sasl.oauthbearer.expected.audience": ["kafka"],
        "sasl.oauthbearer.expected.issuer": "https://issuer.test",
    }
    serving.write()
    serving.process.send_signal(signal.SIGHUP)
    eventually(lambda: "needs a restart: workers" in serving.log(), "the reload is told")
    mechanisms = "needs a restart: listeners[clients].sasl.enabled.mechanisms"
    eventually(lambda: mechanisms in serving.log(), "so are the mechanisms")
    reloaded = "reloaded: listeners[clients].reauth.enforcement"
    eventually(lambda: reloaded in serving.log(), "what was done is told")

    # A mistake in the file changes nothing, is logged, and has a metric until it is fixed.
    stale = "configuration_stale"
    right = serving.path.read_text()
    serving.path.write_text("listeners: [")
    serving.process.send_signal(signal.SIGHUP)
    old = f"not reloaded, the old configuration stays: {serving.path}:1: is not YAML"
    eventually(lambda: old in serving.log(), "the mistake is told")
    eventually(shown(serving, f"{stale} 1.0"), "the mistake is seen")
    serving.until_up()
    serving.path.write_text(right)
    serving.process.send_signal(signal.SIGHUP)
    eventually(shown(serving, f"{stale} 0.0"), "it is mended")

    # A worker that dies is restarted; the line to the HTTP process holds.
    before = serving.children()
    os.kill(before[0], signal.SIGKILL)
    eventually(lambda: "worker 0 was ended by SIGKILL, restarting it" in serving.log(), "noticed")
    serving.until_up()
    assert len(serving.children()) == 4
    eventually(shown(serving, 'worker_up{worker="0"} 1'), "metrics")
    refused = {serving.handshake_error() for _ in range(20)}
    assert refused == {None}, "the new worker holds to what was reloaded, like the old one"

    # The HTTP process is restarted, too.
    os.kill(serving.children()[-2], signal.SIGKILL)
    serving.until_up()

    children = serving.children()
    serving.process.terminate()
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    assert not any(map(alive, children))
    assert "Traceback" not in serving.log()


def test_reloads_do_not_delay_the_restart_of_a_worker(serving: Serving) -> None:
    """The kernel returns the lowest of the pending signals, which is SIGHUP."""
    serving.start()
    serving.process.send_signal(signal.SIGHUP)
    os.kill(serving.children()[0], signal.SIGKILL)

    def noticed() -> bool:
        serving.process.send_signal(signal.SIGHUP)
        return "worker 0 was ended by SIGKILL, restarting it" in serving.log()

    eventually(noticed, "noticed between two reloads")


def test_a_file_that_is_replaced_is_reloaded_where_it_is_followed(tmp_path: Path) -> None:
    """As the kubelet replaces it: a symbolic link within the volume comes to mean another file."""
    serving = Serving(tmp_path, workers=1)
    serving.options = ["--follow"]
    text = serving.path.read_text()

    def replace(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
        (tmp_path / "new").symlink_to(name)
        (tmp_path / "new").rename(tmp_path / "data")

    serving.path.unlink()
    serving.path.symlink_to("data/config.yaml")
    replace("first", text)
    with serving:
        serving.start()
        replace("broken", "listeners: [")
        old = f"not reloaded, the old configuration stays: {serving.path}:1: is not YAML"
        eventually(lambda: old in serving.log(), "the mistake is told")
        replace("wrong", f"{text}shutdown.drain.ms: x\nworkerz: 1\n")
        end = len(text.splitlines())
        mistakes = {f"{end + 1}: shutdown.drain.ms: must be", f"{end + 2}: workerz: unknown key"}
        told = {
            f"not reloaded, the old configuration stays: {serving.path}:{one}" for one in mistakes
        }
        eventually(lambda: all(one in serving.log() for one in told), "each has its line")
        replace("second", text.replace("observe", "enforce"))
        reloaded = "reloaded: listeners[clients].reauth.enforcement"
        eventually(lambda: reloaded in serving.log(), "the next one is in effect")
        assert serving.log().count(old) == 1, "nothing is reloaded that has not changed"


def test_a_stop_drains_connections_and_leaves_one_file(serving: Serving) -> None:
    """An administrator who copies the store's file copies all of it."""
    serving.settings["shutdown.drain.ms"] = 4321
    serving.write()
    serving.start()
    serving.until_up()
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(api_versions(1)[:5])
        serving.process.terminate()
        with suppress(ConnectionResetError):  # the five bytes were never read
            assert client.recv(100) == b""
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    found = re.findall(r"proxy\.process\.supervisor: (draining .+|stopped)\n", serving.log())
    assert found == ["draining for up to 4321 ms (shutdown.drain.ms)", "stopped"]
    assert [file.name for file in serving.path.parent.glob("state.db*")] == ["state.db"]
    assert "state.db: the store was missing, an empty one was created" in serving.log()
    assert "no user has a password for SCRAM-SHA-" in serving.log()


@pytest.mark.parametrize(
    ("key", "given", "refused"),
    [
        ("no.such.key", 1, "no.such.key: unknown key"),
        ("events", {"directory": "a file/below"}, "events.directory: "),
        ("store", {"url": "sqlite:a file"}, "store.url: "),
        ("store", {"url": "broker:a file"}, "store.url: "),
        ("store", {"users.file": "a file"}, "store.users.file: "),
        ("http", {"address": "localhost:{port}"}, "http.address: localhost:{port} is taken by "),
    ],
)
def test_a_start_that_fails_is_one_line(
    serving: Serving, key: str, given: dict[str, str], refused: str
) -> None:
    serving.path.with_name("a file").write_text("neither a directory, nor a database, nor users")
    serving.settings[key] = given
    serving.write()
    serving.path.write_text(serving.path.read_text().replace("{port}", str(serving.port)))
    (line,) = serving.refusal()
    assert line.startswith("reauth-proxy: ")
    assert refused.replace("{port}", str(serving.port)) in line


def test_a_port_without_authentication_is_reported_once_at_the_start_and_by_a_reload(
    serving: Serving,
) -> None:
    without_sasl(serving)
    serving.start()
    address = f"127.0.0.1:{serving.port}"
    reported = (
        f"listener clients serves every client that reaches {address}"
        " (security.protocol: PLAINTEXT), and"
    )
    assert serving.log().count(reported) == 1
    serving.settings["authorizer"] = {"super.users": ["User:ANONYMOUS"], "mode": "enforce"}
    serving.write()
    serving.process.send_signal(signal.SIGHUP)
    eventually(lambda: serving.log().count(reported) == 2, "another reason is another line")
    assert "User:ANONYMOUS is one of authorizer.super.users" in serving.log()


def another(tmp_path: Path) -> Serving:
    directory = tmp_path / "other"
    directory.mkdir()
    return Serving(directory, workers=1)


@pytest.mark.parametrize("key", ["listeners[0].address", "http.address"])
def test_another_proxy_is_not_joined(serving: Serving, tmp_path: Path, key: str) -> None:
    """With SO_REUSEPORT the kernel would give it a part of the other's clients."""
    serving.start()
    other = another(tmp_path)
    if key == "http.address":
        other.settings["http"]["address"] = f"127.0.0.1:{serving.port}"
    else:
        other.settings["listeners"][0]["address"] = f"127.0.0.1:{serving.http_port}"
    other.write()
    with other:
        (line,) = other.refusal()
        assert line.startswith(f"reauth-proxy: {key}: cannot listen on 127.0.0.1:")


def as_gateway(serving: Serving, first: int) -> None:
    serving.settings["listeners"][0] |= {
        "routing": "gateway",
        "advertised.host": "127.0.0.1",
        "broker.ports": f"{first}-{first + 1}",
    }
    serving.write()


def test_ports_of_brokers_that_another_program_has_are_told(serving: Serving) -> None:
    first = free_port_range(2)
    with socket.create_server(("127.0.0.1", first)):
        as_gateway(serving, first)
        serving.start()
    reported = f"listeners[0].broker.ports: another program uses ports, {first};"
    assert reported in serving.log()


def test_ports_of_brokers_are_never_shared_with_another_proxy(
    serving: Serving, tmp_path: Path
) -> None:
    """Not even before the first of them has found a broker, nor when its workers were killed."""
    first = free_port_range(3)
    as_gateway(serving, first)
    serving.start()
    other = another(tmp_path)
    as_gateway(other, first + 1)
    for pid in serving.children()[:2]:
        os.kill(pid, signal.SIGKILL)
    with other:
        (line,) = other.refusal()
        assert line == (
            f"reauth-proxy: listeners[0].broker.ports: cannot listen on 127.0.0.1:{first + 1}:"
            " Address already in use, by another proxy"
        )


def test_a_killed_proxy_is_restarted_while_its_workers_drain(serving: Serving) -> None:
    """They end after the parent, within `shutdown.drain.ms`."""
    serving.start()
    *workers, _, _ = children = serving.children()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    serving.process.kill()
    serving.stop()
    try:
        eventually(lambda: not any(map(alive, children[2:])), "the other processes end")
        assert "accepting" in serving.start()
        assert "will not work" not in serving.log()
        assert serving.page("/healthz")[0] == 200
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


def test_it_takes_all_the_files_that_it_may_have(serving: Serving) -> None:
    """A shell's 1,024 are used up by unauthenticated connections, and then nobody can log in.

    Connections that wait for a PROXY protocol header count in addition to `max.connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    serving.settings["listeners"][0] |= {
        "max.connections": hard,
        "proxy.protocol": "required",
        "proxy.protocol.trusted": "192.0.2.1",
    }
    serving.write()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        serving.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limits = {resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in serving.children()}
    assert limits == {(hard, hard)}
    assert "ulimit -Hn" in serving.log()


# `python -m proxy serve` while its signing keys, its broker or its events' directory are away

ROOT = Path(__file__).parents[3]


@contextmanager
def broker(port: int) -> Iterator[None]:
    """Somebody who answers what a proxy asks."""
    command = [sys.executable, "-m", "tests.support.fake_broker", f"1=127.0.0.1:{port}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def broker_port(serving: Serving) -> int:
    return int(serving.settings["upstream"]["bootstrap.servers"].rpartition(":")[2])


def test_a_broker_that_goes_away_and_comes_back_is_told(alone: Serving) -> None:
    without_sasl(alone)
    with broker(broker_port(alone)):
        alone.start()
        eventually(shown(alone, "upstream_unreachable 0.0"), "it is reached")
    with socket.create_connection(("127.0.0.1", alone.port), PATIENCE_SECONDS) as client:
        client.sendall(metadata(1, b"\0\0\0\0"))
        assert client.recv(1) == b"", "there is no broker to ask"
    eventually(shown(alone, "upstream_unreachable 1.0"), "it is not reached")
    eventually(lambda: alone.reasons() == [""], "it goes on as soon as the broker does")
    eventually(lambda: alone.log().count("no broker can be reached: ") == 1, "it is logged")
    with broker(broker_port(alone)):
        eventually(shown(alone, "upstream_unreachable 0.0"), "it is reached again")
        eventually(lambda: alone.log().count("brokers can be reached again") == 1, "logged too")


def test_a_worker_that_dies_while_its_groups_are_not_valid_waits_for_them(
    alone: Serving, tmp_path: Path
) -> None:
    """The proxy could start with them, and does not give up."""
    path = tmp_path / "groups.json"
    path.write_text('{"groups": {}}')
    alone.settings["listeners"][0]["groups.file"] = str(path)
    alone.write()
    alone.start()
    alone.until_up()
    path.write_text('{"groups": {"half')
    os.kill(alone.children()[0], signal.SIGKILL)
    waits = f"waits to start: groups.file: {path} is not a JSON object"
    eventually(lambda: waits in alone.log(), "it says what it waits for")
    path.write_text('{"groups": {}}')
    alone.until_up()
    assert "Traceback" not in alone.log()
