"""Short-lived children: their results, their errors, and their end."""

import json
import logging
import os
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
