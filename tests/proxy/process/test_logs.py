"""The log of the processes, and a log that nobody reads."""

import fcntl
import json
import logging
import os
import re
import select
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from proxy import __version__
from proxy.config import Routing, from_mapping
from proxy.config.document import parse
from proxy.config.first_file import first_file
from proxy.config.model import Log, LogFormat, LogLevel
from proxy.errors import ConfigError, ProxyError
from proxy.process.start import JsonFormatter, ShortLived, banner, configure_log
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually


def test_the_work_is_done_by_another_process() -> None:
    child = ShortLived(os.getpid)
    assert child.result() != os.getpid()
    with pytest.raises(ChildProcessError):
        os.waitpid(child._pid, os.WNOHANG)


def test_a_refusal_is_raised_by_the_parent_as_it_was_in_the_child() -> None:
    def refuse() -> NoReturn:
        raise ConfigError("listeners[0].address", "is required")

    with pytest.raises(ConfigError) as refusal:
        ShortLived(refuse).result()
    assert (refusal.value.path, refusal.value.problem) == ("listeners[0].address", "is required")


def test_a_child_that_dies_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def die() -> NoReturn:
        raise ZeroDivisionError

    with pytest.raises(ProxyError, match="failed"):
        ShortLived(die).result()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_start_says_what_runs_where_and_in_which_modes(tmp_path: Path) -> None:
    mapping = parse(first_file(Routing.GATEWAY).encode())
    first, *lines = banner(from_mapping(mapping, base_dir=tmp_path))
    assert first.startswith(f"reauth-proxy {__version__} (")
    assert first.endswith("ed), workers: 1")
    assert lines == [
        "listener clients: 127.0.0.1:9094, gateway, SASL_PLAINTEXT, SCRAM-SHA-256 SCRAM-SHA-512,"
        " reauth.enforcement: observe, sessions of 3600000 ms",
        "authorizer.mode: off, quotas.mode: off",
        "status page and metrics: http://127.0.0.1:9404/",
        f"events: {tmp_path / 'events'}",
    ]


def test_a_start_says_that_the_brokers_choose_the_mechanisms(tmp_path: Path) -> None:
    mapping = parse(first_file(Routing.SIDECAR).encode())
    (listener,) = mapping["listeners"]
    listener |= {"sasl.termination": "broker"}
    del listener["sasl.enabled.mechanisms"]
    mapping["upstream"]["security.protocol"] = "SASL_PLAINTEXT"
    _, line, *_ = banner(from_mapping(mapping, base_dir=tmp_path))
    assert "SASL_PLAINTEXT, the brokers' mechanisms, reauth.enforcement: observe" in line


def test_a_line_of_json_is_one_object() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord(
            "proxy.x", logging.ERROR, "x.py", 1, "a\n%s", ("\x1b",), sys.exc_info()
        )
    line = JsonFormatter().format(record)
    assert line.isprintable()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("ERROR", "proxy.x", "a\n\x1b")
    assert found["time"].endswith("+00:00")
    assert "ValueError: x" in found["exception"]


def test_format_and_level_are_put_into_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.RootLogger(logging.INFO)
    root.addHandler(logging.NullHandler())
    monkeypatch.setattr(logging, "getLogger", lambda: root)
    configure_log(Log(level=LogLevel.WARNING))
    assert root.level == logging.WARNING
    assert root.handlers[0].formatter is None
    configure_log(Log(format=LogFormat.JSON))
    assert root.level == logging.INFO
    assert isinstance(root.handlers[0].formatter, JsonFormatter)


# A log whose reader stalls, goes away or never was: clients are served all the same

PIPE_BYTES = 4_096
DROPPED = re.compile(r'^kafka_reauth_proxy_log_lines_dropped_total{process="(.+)"} (\d+)', re.M)

CLOSES_ITS_OUTPUT = """
import os, sys
os.close(1), os.close(2)
os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[1:]])
"""


def cause_log_lines(serving: Serving, clients: int = 60) -> None:
    """Each client has an address of its own, or the rate limit would leave out its line."""
    for number in range(2, 2 + clients):
        source = (f"127.0.0.{number}", 0)
        with socket.create_connection(
            ("127.0.0.1", serving.port), PATIENCE_SECONDS, source_address=source
        ) as client:
            client.sendall(b"\x7f\xff\xff\xff")  # the size of a frame that is too long
            assert client.recv(1) == b""


def dropped_lines(serving: Serving) -> dict[str, int]:
    _, body = serving.page("/metrics")
    return {process: int(count) for process, count in DROPPED.findall(body)}


def test_nothing_waits_for_a_reader_of_the_log_that_has_stalled(serving: Serving) -> None:
    """Unauthenticated clients cause the lines that fill the pipe."""
    reading, serving.stderr = os.pipe()
    fcntl.fcntl(serving.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        serving.check_often()
        serving.start()
        serving.until_up()
        assert set(dropped_lines(serving).values()) == {0}
        cause_log_lines(serving)
        writable = select.poll()
        writable.register(serving.stderr, select.POLLOUT)
        assert not writable.poll(0), "the pipe is full"
        assert not fcntl.fcntl(serving.stderr, fcntl.F_GETFL) & os.O_NONBLOCK
        assert serving.handshake_error() == 0
        hung = serving.children()[1]
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: not alive(hung), "it is ended")
        serving.until_up()
        assert {serving.handshake_error() for _ in range(10)} == {0}
        assert dropped_lines(serving) == {  # that it hangs, and that it is restarted
            "the parent": 2,
            **dict.fromkeys(("worker 0", "worker 1", "acceptor", "http"), 0),
        }
        serving.process.terminate()
        assert serving.process.wait(PATIENCE_SECONDS) == 0
        os.set_blocking(reading, False)
        assert os.read(reading, PIPE_BYTES).count(b"closed: oversize_frame") > 10
    finally:
        os.close(serving.stderr)
        os.close(reading)


@pytest.mark.parametrize("closed", [True, False], ids=["never open", "closed meanwhile"])
def test_nothing_needs_a_reader_of_the_log(serving: Serving, *, closed: bool) -> None:
    """Neither a start nor a worker; and no socket gets the number of standard error."""
    reading, serving.stderr = os.pipe()
    if closed:
        serving.program = ["-c", CLOSES_ITS_OUTPUT]
    serving.launch()
    os.close(serving.stderr)
    serving.until_up()
    os.close(reading)
    worker = serving.children()[0]
    cause_log_lines(serving)
    os.kill(serving.children()[1], signal.SIGKILL)
    serving.until_up()
    assert alive(worker)
    assert {serving.handshake_error() for _ in range(10)} == {0}
    if closed:
        devices = {Path(f"/proc/{worker}/fd/{fd}").readlink() for fd in (1, 2)}
        assert devices == {Path(os.devnull)}
    else:
        assert sum(dropped_lines(serving).values()) >= 60
