"""`serve --take-over`: a running proxy is replaced, and no client notices."""

import json
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from proxy.errors import ConfigError
from proxy.net.sockets import connect_privately, listen_privately
from proxy.process.supervisor import ServiceManager
from proxy.process.take_over import (
    HELD_SECONDS,
    REQUEST,
    SERVES,
    VERSION,
    Answer,
    Predecessor,
    Successor,
)
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually
from tests.support.restarts import Connecting, Gateway, Producing, messages, mock_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with mock_cluster() as bootstrap_servers:
        yield bootstrap_servers


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_connection_is_refused_and_no_message_lost(
    cluster: str, tmp_path: Path, workers: int
) -> None:
    with Gateway(tmp_path, workers, cluster) as gateway:
        gateway.start()
        gateway.until_up()
        ports = [gateway.port, *gateway.broker_ports, gateway.http_port]
        address = f"127.0.0.1:{gateway.port}"
        with Connecting(ports) as connecting, Producing(address) as producing:
            for _ in range(2):
                replaced = gateway.process.pid
                gateway.take_over()
                gateway.until_up()
                eventually(gateway.has_confirmed(replaced), "the exchange is over")
        assert connecting.connected > 100
        assert not connecting.refused
        assert (producing.failed, producing.refused) == ([], [])
        assert len(producing.delivered) > 100
        assert producing.delivered <= messages(cluster)
        logs = [one.read_text() for one in gateway.logs]
        assert not any("Traceback" in log for log in logs)
        assert "serves now, this one drains" in logs[0]


KEPT = "nothing was taken over; a running proxy keeps serving"
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
    with Gateway(tmp_path, 1, cluster) as one:
        one.start()
        one.until_up()
        yield one


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
    one.http_port, one.http_address = gateway.http_port, gateway.http_address
    if program is not None:
        one.program = ["-c", program]
    one.write()
    one.launch()
    with one:
        yield one


def test_a_broken_configuration_leaves_the_running_proxy_serving(gateway: Gateway) -> None:
    gateway.settings["workers"] = "many"
    with another(gateway) as broken:
        assert broken.process.wait(PATIENCE_SECONDS) == 2
        assert broken.log().splitlines()[-1] == f"reauth-proxy: {KEPT}"
        assert "workers: must be a whole number" in broken.log()
    assert serves(gateway)


def test_what_fails_only_after_the_hand_over_leaves_it_serving_too(gateway: Gateway) -> None:
    """And logs it: the new one finds the error when it has the sockets."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway.settings["http"] = {"address": f"127.0.0.1:{taken.getsockname()[1]}"}
        with another(gateway) as broken:
            assert broken.process.wait(PATIENCE_SECONDS) == 2
            assert f"reauth-proxy: {KEPT}" in broken.log()
    eventually(lambda: "ended, this one keeps serving" in gateway.log(), "it is said")
    assert serves(gateway)


def test_a_process_that_is_not_ready_gives_up(gateway: Gateway) -> None:
    with another(gateway, unready=True, program=IMPATIENT) as unready:
        assert unready.process.wait(PATIENCE_SECONDS) == 1
        text = f"not ready within 1 s, process {gateway.process.pid} keeps serving"
        assert text in unready.log()
    assert serves(gateway)


def test_one_at_a_time_takes_over_and_its_death_changes_nothing(gateway: Gateway) -> None:
    with another(gateway, unready=True) as first:
        text = "worker 0 is not ready: no broker of the cluster was ever reached"
        eventually(
            lambda: text in first.log(), "it has the sockets, and says why it does not serve"
        )
        with another(gateway, "second") as second:
            assert second.process.wait(PATIENCE_SECONDS) == 2
            assert f"process {first.process.pid} is taking over already" in second.log()
        first.process.kill()
        text = f"process {first.process.pid} gave up or ended, this one keeps serving"
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
        taking.until_up()


def test_a_socket_that_a_killed_proxy_left_is_nobody(gateway: Gateway) -> None:
    children = gateway.children()
    gateway.process.kill()
    gateway.process.wait()
    eventually(lambda: not any(map(alive, children)), "nobody has its ports")
    assert (gateway.path.parent / "state.db.sock.take-over").is_socket()
    with another(gateway) as alone:
        assert alone.process.stdout is not None
        assert "accepting on" in alone.process.stdout.readline()
        assert "there is nothing to take over" in alone.log()
        assert serves(gateway)
    assert not (gateway.path.parent / "state.db.sock.take-over").exists()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "take-over"


@pytest.fixture
def successor(path: Path) -> Iterator[Successor]:
    """The side of the running proxy, which gives a socket away."""
    with closing(Successor(listen_privately(path))) as one:
        yield one


@contextmanager
def asking(path: Path, request: bytes = REQUEST) -> Iterator[socket.socket]:
    with connect_privately(path, PATIENCE_SECONDS) as client:
        client.sendall(request)
        yield client


def polled(successor: Successor, now: float = 0.0) -> bool:
    """Whether the next process serves; it is given one socket."""
    return successor.poll(lambda: [successor.listening], now)


def test_only_the_user_of_the_proxy_takes_over(
    successor: Successor,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the mode of the file has become: the sockets decide who serves clients."""
    user = os.geteuid()
    assert path.stat().st_mode & 0o777 == 0o600
    with asking(path) as client:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        assert not polled(successor)
        assert not successor.is_starting
        assert f"the user that the proxy runs as, {user + 1}, may" in client.recv(1000).decode()
    assert f"of user {user} is refused" in caplog.text
    predecessor = Predecessor.find(path)
    assert predecessor is not None
    with closing(predecessor), pytest.raises(ConfigError, match=f"it is user {user}'s"):
        predecessor.sockets()


@pytest.mark.parametrize("sent", [b"", REQUEST[:-1], b"sessions\n"])
def test_what_asks_for_something_else_is_given_nothing(
    successor: Successor, path: Path, sent: bytes
) -> None:
    with asking(path, sent) as client:
        client.shutdown(socket.SHUT_WR)
        assert not polled(successor)
        assert client.recv(1) == b""
    assert not successor.is_starting


def test_peers_that_say_nothing_hold_up_nobody(successor: Successor, path: Path) -> None:
    """They have until the next time, and are as many as is allowed at a time."""
    silent = [connect_privately(path, PATIENCE_SECONDS) for _ in range(12)]
    with asking(path) as client:
        for _ in range(3):
            assert not polled(successor)
        assert successor.is_starting
        assert client.recv(1)
    for one in silent:
        assert one.recv(1) == b"", "it was dropped"
        one.close()


def test_a_proxy_without_file_descriptors_serves_on(
    successor: Successor, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with asking(path) as client:
        with socket.socket() as lowest:
            first_free = lowest.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
        try:
            assert not polled(successor)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "take-over: [Errno 24] Too many open files" in caplog.text
        assert not successor.is_starting
        assert not polled(successor)
        assert successor.is_starting, "it is answered as soon as there are some"
        assert client.recv(1)


@pytest.mark.parametrize("last", [b"", SERVES, SERVES[:-1], b"something"])
def test_a_process_that_ends_changes_nothing(
    successor: Successor, path: Path, caplog: pytest.LogCaptureFixture, last: bytes
) -> None:
    """Even if its workers have served already: nobody would."""
    with asking(path) as client:
        assert not polled(successor)
        client.sendall(last)
    assert not polled(successor, 1.0)
    assert not successor.is_starting
    assert "gave up or ended, this one keeps serving" in caplog.text
    with asking(path):
        assert not polled(successor, 2.0)
        assert successor.is_starting, "the next one may try"


def taking_over(successor: Successor, path: Path, count: int = 1) -> Predecessor:
    """The other side, which has received as many sockets."""
    predecessor = Predecessor.find(path)
    assert predecessor is not None
    received: list[socket.socket] = []
    thread = threading.Thread(target=lambda: received.extend(predecessor.sockets()))
    thread.start()

    def is_given() -> bool:
        assert not successor.poll(lambda: [successor.listening] * count, 0.0)
        return successor.is_starting

    eventually(is_given, "it asks")
    thread.join(PATIENCE_SECONDS)
    assert len(received) == count
    assert not any(os.get_inheritable(one.fileno()) for one in received)
    for one in received:
        one.close()
    return predecessor


@pytest.mark.parametrize("count", [0, 1, 450])
def test_all_sockets_are_handed_over(successor: Successor, path: Path, count: int) -> None:
    """A range of broker ports has hundreds, and the kernel passes some 250 at once."""
    with closing(taking_over(successor, path, count)) as predecessor:
        assert predecessor.answer() is Answer.NONE
        predecessor.replace()
        assert polled(successor, HELD_SECONDS)
        assert predecessor.answer() is Answer.DRAINS


def test_the_end_of_the_running_proxy_is_noticed(successor: Successor, path: Path) -> None:
    with closing(taking_over(successor, path)) as predecessor:
        successor.close()
        assert predecessor.answer() is Answer.ENDED
        predecessor.replace()
        assert predecessor.answer() is Answer.ENDED


def test_a_process_that_hangs_is_not_waited_for(
    successor: Successor, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If it continues, it must not take the silence for the end of the running one."""
    with closing(taking_over(successor, path)) as predecessor:
        assert not polled(successor, HELD_SECONDS - 0.1)
        assert successor.is_starting
        assert not polled(successor, HELD_SECONDS)
        assert not successor.is_starting
        assert f"process {os.getpid()} hangs, this one keeps serving" in caplog.text
        predecessor.replace()
        assert predecessor.answer() is Answer.TOO_LATE


def reply(version: object = VERSION, sockets: object = 1, refusal: object = "") -> bytes:
    text = json.dumps({"version": version, "sockets": sockets, "refusal": refusal}).encode()
    return struct.pack("!I", len(text)) + text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "it has ended"),
        (reply()[:3], "it has ended"),
        (reply()[:-1], "it has ended"),
        (reply(), "it has ended"),
        (reply(sockets=2) + b"s", "it has ended"),
        (reply(version=VERSION + 1), "is of another version: restart it instead"),
        (reply(refusal="not now"), "not now"),
        (reply(sockets="many"), "not supported"),
        (struct.pack("!I", 1_000_000), "its reply is too long"),
        (struct.pack("!I", 2) + b"[]", "list indices"),
        (struct.pack("!I", 2) + b"{}", "version"),
        (struct.pack("!I", 2) + b"{{", "Expecting property name"),
    ],
)
def test_half_a_hand_over_is_none(path: Path, answer: bytes, problem: str) -> None:
    """The running proxy may die at any point, or be another program."""
    with listen_privately(path) as listening:
        predecessor = Predecessor.find(path)
        assert predecessor is not None
        running, _ = listening.accept()
        with running:
            running.sendall(answer)
            running.shutdown(socket.SHUT_WR)
            with closing(predecessor), pytest.raises(ConfigError) as raised:
                predecessor.sockets()
    assert problem in str(raised.value)
    assert "does not hand over its sockets" in str(raised.value)


# Notifications to systemd; the test listens on systemd's socket


@pytest.fixture(params=["path", "abstract"])
def manager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """The service manager's socket, and its name in the environment."""
    path = str(tmp_path / "notify")
    if request.param == "abstract":
        path = f"@{path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path.replace("@", "\0"))
        sock.settimeout(PATIENCE_SECONDS)
        yield sock, path


def said(sock: socket.socket) -> list[str]:
    return sock.recv(1000).decode().splitlines()


def test_a_start_a_reload_and_the_end_are_reported(manager: tuple[socket.socket, str]) -> None:
    sock, path = manager
    environment = {"NOTIFY_SOCKET": path}
    notifying = ServiceManager(environment)
    assert not environment, "no other program speaks for the proxy"
    notifying.reloads()  # before it serves
    notifying.serves()
    notifying.serves()
    assert said(sock) == ["READY=1"]
    notifying.reloads()
    reloading, at = said(sock)
    assert reloading == "RELOADING=1"
    assert at.removeprefix("MONOTONIC_USEC=").isdecimal()
    notifying.serves()
    assert said(sock) == ["READY=1"]
    notifying.is_replaced(123)
    assert said(sock) == ["MAINPID=123"]
    notifying.stops()
    assert said(sock) == ["STOPPING=1"]


def test_a_service_manager_that_is_gone_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).serves()
    assert caplog.messages == [
        "systemd is not notified (READY=1): [Errno 2] No such file or directory"
    ]


def test_nothing_is_said_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({}).serves()
    assert not caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_proxy_reports_what_it_does(
    manager: tuple[socket.socket, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that takes over becomes the service's main one, before the other one ends."""
    sock, path = manager
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with mock_cluster() as cluster, Gateway(tmp_path, 1, cluster) as gateway:
        gateway.start()
        monkeypatch.delenv("NOTIFY_SOCKET")
        gateway.until_up()
        assert said(sock) == ["READY=1"]
        gateway.write()
        gateway.process.send_signal(signal.SIGHUP)
        assert said(sock)[0] == "RELOADING=1"
        assert said(sock) == ["READY=1"]
        gateway.take_over()
        assert said(sock) == [f"MAINPID={gateway.process.pid}"]
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        said(sock)


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_the_end_is_reported(
    manager: tuple[socket.socket, str], alone: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock, path = manager
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    alone.start()
    assert said(sock) == ["READY=1"]
    alone.stop()
    assert said(sock) == ["STOPPING=1"]
