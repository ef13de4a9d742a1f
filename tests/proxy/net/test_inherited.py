"""Sockets of another process, above all of systemd."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.net.inherited import Inherited, of_systemd
from tests.support.frames import handshake
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving


def test_a_socket_is_taken_once_by_any_name_of_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        inherited = Inherited([sock])
        assert inherited.left_of([sock]) == [f"127.0.0.1:{port}"]
        assert inherited.take("127.0.0.1", port + 1) is None
        assert inherited.take("localhost", port) is sock
        assert inherited.take("localhost", port) is None
        assert inherited.left_of([sock]) == []


def test_what_systemd_passed_to_another_process_is_left_alone() -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDNAMES": "x"}
    assert of_systemd(environment) == []
    assert not environment, "nor is it passed on"


def test_a_count_that_is_none_is_refused() -> None:
    environment = {"LISTEN_FDS": "-1", "LISTEN_PID": str(os.getpid())}
    with pytest.raises(ConfigError, match="LISTEN_FDS: '-1' is no number of sockets"):
        of_systemd(environment)


AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "proxy", "serve", sys.argv[2]])
"""


class Activated(Serving):
    """A proxy that is started as by systemd, with sockets from 3 on."""

    passed: socket.socket

    def launch(self) -> None:
        passed = str(self.passed.fileno())
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", AS_SYSTEMD, passed, str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=[self.passed.fileno()],
            )


def test_clients_of_an_activated_proxy_wait_while_it_is_restarted(tmp_path: Path) -> None:
    """They are in the queue of a socket that systemd keeps."""
    proxy = Activated(tmp_path, workers=1)
    with socket.create_server(("127.0.0.1", proxy.port), backlog=64) as proxy.passed:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_SECONDS) as early:
                assert proxy.start(), proxy.log()
                early.sendall(handshake(1, "SCRAM-SHA-256"))
                answered = early.recv(1000)
            proxy.stop()
            assert answered
            assert "Traceback" not in proxy.log()


def test_a_socket_for_no_listener_is_a_mistake(tmp_path: Path) -> None:
    """Its clients would wait for ever."""
    proxy = Activated(tmp_path, workers=1)
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as proxy.passed, closing(proxy.passed):
        assert proxy.start() == ""
        assert proxy.process.wait(PATIENCE_SECONDS) == 2
        proxy.stop()
    text = f"LISTEN_FDS: systemd passes 127.0.0.1:{port}, which is no listener's address"
    assert text in proxy.log()


def test_a_socket_of_another_kind_is_a_mistake(tmp_path: Path) -> None:
    proxy = Activated(tmp_path, workers=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as proxy.passed:
        assert proxy.start() == ""
        assert proxy.process.wait(PATIENCE_SECONDS) == 2
        proxy.stop()
    assert "file descriptor 3 of systemd is no TCP socket that listens" in proxy.log()
