"""Notifications to systemd, whose socket a test listens on."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.process.supervisor import ServiceManager
from tests.support.proxy_process import PATIENCE_SECONDS, Serving
from tests.support.restarts import Gateway, mock_cluster


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
