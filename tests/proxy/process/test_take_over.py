"""`serve --take-over`: a running proxy is replaced, and no client notices."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from proxy.errors import ConfigError
from proxy.net.sockets import connect_privately, listen_privately
from proxy.process.take_over import REQUEST, Predecessor, Successor
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually
from tests.support.restarts import Connecting, Gateway, Producing, messages, mock_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with mock_cluster() as bootstrap_servers:
        yield bootstrap_servers


@pytest.mark.parametrize("workers", [1, 2])
def test_no_connection_is_refused_and_no_message_lost(
    cluster: str, tmp_path: Path, workers: int
) -> None:
    gateway = Gateway(tmp_path, workers, cluster)
    gateway.start()
    try:
        gateway.until_ready()
        ports = [gateway.port, *gateway.broker_ports, gateway.http_port]
        address = f"127.0.0.1:{gateway.port}"
        with Connecting(ports) as connecting, Producing(address) as producing:
            for _ in range(2):
                gateway.take_over()
                gateway.until_ready()
        assert connecting.connected > 100
        assert not connecting.refused
        assert (producing.failed, producing.refused) == ([], [])
        assert len(producing.delivered) > 100
        assert producing.delivered <= messages(cluster)
        logs = [one.read_text() for one in gateway.logs]
        assert not any("Traceback" in log for log in logs)
        assert "serves now, this one drains" in logs[0]
    finally:
        gateway.stop()


KEPT = "nothing was taken over; a proxy that runs goes on serving"
IMPATIENT = """
from proxy.process import take_over
take_over.READY_SECONDS = 1.0
from proxy.__main__ import main
main()
"""


def serves(gateway: Gateway) -> bool:
    """Whether a client is answered by a broker."""
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{gateway.port}"})
    return bool(client.list_topics(timeout=PATIENCE_SECONDS).brokers)


@pytest.fixture
def gateway(cluster: str, tmp_path: Path) -> Iterator[Gateway]:
    """A proxy that runs, and is ready."""
    one = Gateway(tmp_path, 1, cluster)
    one.start()
    try:
        one.until_ready()
        yield one
    finally:
        one.stop()


@contextmanager
def another(
    gateway: Gateway, name: str = "next", *, unready: bool = False, program: str | None = None
) -> Iterator[Serving]:
    """A process that tries to take over; `unready`: its configuration names no broker."""
    settings = dict(gateway.settings)
    if unready:
        settings["upstream"] = {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}
    directory = gateway.path.with_name(name)
    directory.mkdir()
    one = Serving(directory, 1)
    one.settings, one.options = settings, ["--take-over"]
    one.http_port = gateway.http_port
    if program is not None:
        one.program = ["-c", program]
    one.write()
    one.launch()
    try:
        yield one
    finally:
        one.stop()


def test_a_broken_configuration_leaves_the_running_proxy_serving(gateway: Gateway) -> None:
    gateway.settings["workers"] = "many"
    with another(gateway) as broken:
        assert broken.process.wait(PATIENCE_SECONDS) == 2
        assert broken.log().splitlines()[-1] == f"reauth-proxy: {KEPT}"
        assert "workers: must be a whole number" in broken.log()
    assert serves(gateway)


def test_what_fails_only_after_the_hand_over_leaves_it_serving_too(gateway: Gateway) -> None:
    """And it says so: this is found when it has the sockets."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway.settings["http"] = {"address": f"127.0.0.1:{taken.getsockname()[1]}"}
        with another(gateway) as broken:
            assert broken.process.wait(PATIENCE_SECONDS) == 2
            assert f"reauth-proxy: {KEPT}" in broken.log()
    eventually(lambda: "ended, this one goes on serving" in gateway.log(), "it is said")
    assert serves(gateway)


def test_a_process_that_is_not_ready_gives_up(gateway: Gateway) -> None:
    with another(gateway, unready=True, program=IMPATIENT) as unready:
        assert unready.process.wait(PATIENCE_SECONDS) == 1
        text = f"not ready within 1 s, process {gateway.process.pid} goes on serving"
        assert text in unready.log()
        assert "worker 0 is not ready: no broker of the cluster was ever reached" in unready.log()
    assert serves(gateway)


def test_one_at_a_time_takes_over_and_its_death_changes_nothing(gateway: Gateway) -> None:
    with another(gateway, unready=True) as first:
        eventually(lambda: "is not ready" in first.log(), "it has the sockets")
        with another(gateway, "second") as second:
            assert second.process.wait(PATIENCE_SECONDS) == 2
            assert f"process {first.process.pid} is taking over already" in second.log()
        first.process.kill()
        text = f"process {first.process.pid} gave up or ended, this one goes on serving"
        eventually(lambda: text in gateway.log(), "it is noticed")
    assert serves(gateway)
    gateway.take_over()
    assert serves(gateway)


def test_the_running_proxy_may_die_meanwhile(gateway: Gateway) -> None:
    """The next one then serves, ready or not, as at any start."""
    with another(gateway, unready=True) as taking:
        eventually(lambda: "is not ready" in taking.log(), "it has the sockets")
        gateway.process.kill()
        assert taking.process.stdout is not None
        assert "accepting on" in taking.process.stdout.readline()
        assert f"process {gateway.process.pid} has ended meanwhile" in taking.log()
        eventually(lambda: taking.workers_up() == [True], "HTTP is served")


def test_a_socket_that_a_killed_proxy_left_is_nobody(gateway: Gateway) -> None:
    gateway.process.kill()
    gateway.process.wait()
    assert (gateway.path.parent / "state.db.sock.take-over").is_socket()
    with another(gateway) as alone:
        assert alone.process.stdout is not None
        assert "accepting on" in alone.process.stdout.readline()
        assert "there is nothing to take over" in alone.log()
        assert serves(gateway)
    assert not (gateway.path.parent / "state.db.sock.take-over").exists()


def test_only_the_user_of_the_proxy_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the mode of the file has become: the sockets decide who serves clients."""
    path = tmp_path / "take-over"
    user = os.geteuid()
    with closing(Successor(listen_privately(path))) as successor:
        assert path.stat().st_mode & 0o777 == 0o600
        client = connect_privately(path, PATIENCE_SECONDS)
        with client:
            client.sendall(REQUEST)
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
            assert not successor.poll(list)
            assert not successor.is_starting
            assert f"the user that the proxy runs as, {user + 1}, may" in client.recv(1000).decode()
        assert f"of user {user} is refused" in caplog.text
        predecessor = Predecessor.find(path)
        assert predecessor is not None
        with closing(predecessor), pytest.raises(ConfigError, match=f"it is user {user}'s"):
            predecessor.sockets()


@pytest.mark.parametrize("sent", [b"", REQUEST[:-1], b"sessions\n"])
def test_what_asks_for_something_else_is_given_nothing(tmp_path: Path, sent: bytes) -> None:
    path = tmp_path / "take-over"
    with closing(Successor(listen_privately(path))) as successor:
        with connect_privately(path, PATIENCE_SECONDS) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            assert not successor.poll(list)
            assert client.recv(1) == b""
        assert not successor.is_starting


def test_hundreds_of_sockets_are_handed_over(tmp_path: Path) -> None:
    """As a range of broker ports has; the kernel passes some 250 at once."""
    path = tmp_path / "take-over"
    given = [socket.socket() for _ in range(450)]
    with closing(Successor(listen_privately(path))) as successor:
        predecessor = Predecessor.find(path)
        assert predecessor is not None
        thread = threading.Thread(target=lambda: received.extend(predecessor.sockets()))
        received: list[socket.socket] = []
        thread.start()
        eventually(lambda: successor.poll(lambda: given) or successor.is_starting, "it asks")
        thread.join(PATIENCE_SECONDS)
        assert len(received) == len(given)
        assert not any(os.get_inheritable(one.fileno()) for one in received)
        assert not predecessor.has_ended()
        predecessor.replace()
        assert successor.poll(list)
    for one in (*given, *received):
        one.close()
