"""`reauth-proxy config`: all mistakes at once, what is in force, a first file, a trial of it."""

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Config, Routing, load
from proxy.config.document import parse
from proxy.config.first_file import first_file
from proxy.config.section import keys, nested_section
from tests.support.certificates import Authority
from tests.support.fake_broker import FakeBroker, WantsLogin, in_a_thread
from tests.support.proxy_process import refusal, run
from tests.support.sasl import all_keys, claims, document, rsa_key, token
from tests.support.settings import TOKENS
from tests.support.tls import server_context

MISTAKES = """\
upstream:
  bootstrap.servers: 127.0.0.1:9092
listeners:
  - name: clients
    adress: 127.0.0.1:9094
    routing: sidecar
    max.connections: 0
    connections.max.reauth.ms: x
workers: 0
quotas:
  mode: on
"""


def test_all_mistakes_are_told_with_their_lines(tmp_path: Path) -> None:
    """A misspelt key or a wrong item is not reported again as a missing or empty value."""
    file = tmp_path / "proxy.yaml"
    file.write_text(MISTAKES)
    done = run("config", "check", file)
    assert (done.exit_code, done.stdout) == (2, "")
    expected = [
        (4, "listeners[0].sasl.enabled.mechanisms", "is required"),
        (5, "listeners[0].adress", "unknown key, did you mean address?"),
        (7, "listeners[0].max.connections", "must be at least 1, got 0"),
        (
            8,
            "listeners[0].connections.max.reauth.ms",
            "must be a whole number of milliseconds, got 'x'",
        ),
        (9, "workers", "must be at least 1, got 0"),
        (11, "quotas.mode", "must be 'off', 'audit' or 'enforce', got 'on'"),
    ]
    assert done.stderr.splitlines() == [
        f"reauth-proxy: {file}:{line}: {key}: {problem}" for line, key, problem in expected
    ]
    told = json.loads(run("config", "check", file, "-o", "json").stdout)
    assert told["ok"] is False
    assert [(one["line"], one["key"], one["problem"]) for one in told["problems"]] == expected


def test_what_it_names_is_told_all_at_once_too(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    settings = parse(first_file(Routing.SIDECAR).encode())
    settings["store"] = {"url": "sqlite:no-such-directory/state.db", "users.file": "none.json"}
    file.write_text(yaml.safe_dump(settings))
    told = json.loads(run("config", "check", file, "-o", "json").stdout)
    assert {one["key"] for one in told["problems"]} == {"store.url", "store.users.file"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: b\na: c\n", ":2: the key 'a' is a duplicate"),
        ("", ": is empty"),
        ("- a\n", ": must be"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_document_has_its_line(tmp_path: Path, text: str | None, place: str) -> None:
    file = tmp_path / "proxy.yaml"
    if text is not None:
        file.write_text(text)
    assert refusal("config", "check", file).startswith(f"reauth-proxy: {file}{place}")


@pytest.mark.parametrize("routing", Routing)
def test_a_first_file_is_good_as_it_is(tmp_path: Path, routing: Routing) -> None:
    file = tmp_path / "proxy.yaml"
    assert run("config", "init", routing.value, file).exit_code == 0
    assert run("config", "check", file).exit_code == 0
    assert load(file).listeners[0].routing is routing
    again = run("config", "init", routing.value, file)
    assert (again.exit_code, again.stderr) == (1, f"reauth-proxy: {file} already exists\n")
    assert run("config", "init", routing.value).stdout == file.read_text()


def cluster(kind: str, tls: Authority | None) -> FakeBroker:
    made = WantsLogin() if kind != "none" else FakeBroker(brokers={0: ("b", 1), 2: ("b", 2)})
    if kind == "GSSAPI":
        made = WantsLogin(mechanisms=("GSSAPI",))
    made.tls = None if tls is None else server_context(tls.issue("broker"))
    return made


@pytest.mark.parametrize(
    ("kind", "tls", "options", "expected"),
    [
        ("SCRAM", False, (), {"sasl.termination": "broker"}),
        ("SCRAM", True, (), {"sasl.termination": "broker"}),
        ("SCRAM", False, ("--sasl", "proxy"), {"sasl.mechanism": "SCRAM-SHA-512"}),
        ("none", False, (), {"sasl.enabled.mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}),
        ("none", True, ("--sasl", "proxy"), {"sasl.termination": "proxy"}),
        ("none", False, ("--sasl", "broker"), "speaks PLAINTEXT, without logins; use --sasl proxy"),
        ("GSSAPI", False, ("--sasl", "proxy"), "with a password (GSSAPI); use --sasl broker"),
    ],
)
def test_a_first_file_matches_its_cluster(
    tmp_path: Path, kind: str, tls: bool, options: tuple[str, ...], expected: dict[str, Any] | str
) -> None:
    """`config check` accepts it, once the files that it names are there."""
    file, authority = tmp_path / "proxy.yaml", Authority()
    with in_a_thread(cluster(kind, authority if tls else None)) as broker:
        server = ("--bootstrap-server", broker.address)
        done = run("config", "init", "gateway", file, *server, *options)
    if isinstance(expected, str):
        assert (done.exit_code, file.exists()) == (1, False)
        assert expected in done.stderr
        return
    assert done.exit_code == 0, done.stderr
    settings = parse(file.read_bytes())
    protocol = ("" if kind == "none" else "SASL_") + ("SSL" if tls else "PLAINTEXT")
    assert settings["upstream"]["bootstrap.servers"] == broker.address
    assert settings["upstream"]["security.protocol"] == protocol
    assert expected.items() <= (settings["upstream"] | settings["listeners"][0]).items()
    assert ("sasl.enabled.mechanisms" in settings["listeners"][0]) is (
        "broker" not in str(expected)
    )
    assert ("save its authority as brokers-ca.pem" in done.stderr) is tls
    assert ("[0, 2]" if kind == "none" else "unknown without --command-config") in done.stderr
    (tmp_path / "brokers-ca.pem").write_bytes(authority.certificate)
    (tmp_path / "upstream-password").write_text("secret")
    checked = run("config", "check", file)
    assert checked.exit_code == 0, checked.stderr
    assert "events.directory" not in checked.stderr


@pytest.mark.parametrize("ids", [(0, 1, 140), (1001, 1002)])
def test_a_first_file_has_a_free_port_for_each_broker(ids: tuple[int, ...], tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    with in_a_thread(FakeBroker(brokers=dict.fromkeys(ids, ("b", 9092)))) as broker:
        run("config", "init", "gateway", file, "--bootstrap-server", broker.address)
    ports = load(file).listeners[0].broker_ports
    assert ports is not None
    assert None not in {ports.port_of(id_) for id_ in ids}
    assert len(ports) == (141 if ids[0] == 0 else 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("gateway", "--sasl", "broker"), "need --bootstrap-server"),
        (("gateway", "--bootstrap-server", "127.0.0.1"), "'127.0.0.1' is not HOST:PORT"),
        (("gateway", "--bootstrap-server", "h:1", "--sasl", "x"), "must be broker or proxy"),
        (("transparent", "--bootstrap-server", "h:1"), "has no meaning with transparent"),
        (("tunnel",), "must be one of sidecar, gateway, transparent"),
    ],
)
def test_mistakes_of_a_first_file_are_named(options: tuple[str, ...], problem: str) -> None:
    assert problem in refusal("config", "init", *options)


@pytest.mark.parametrize(("mode", "warned"), [("observe", 1), ("probe", 1), ("enforce", 0)])
def test_a_missing_event_log_is_warned_about(tmp_path: Path, mode: str, warned: int) -> None:
    settings = parse(first_file(Routing.SIDECAR).encode())
    del settings["events"]
    settings["listeners"][0]["reauth.enforcement"] = mode
    file = tmp_path / "proxy.yaml"
    file.write_text(yaml.safe_dump(settings))
    done = run("config", "check", file)
    assert done.exit_code == 0
    assert done.stderr.count("because events.directory is not set") == warned


@pytest.mark.parametrize("routing", Routing)
def test_what_a_first_file_suggests_exists(routing: Routing) -> None:
    def known(section: type) -> set[str]:
        found = set()
        for key, _, field in keys(section):
            found.add(key)
            if (below := nested_section(field.annotation)) is not None:
                found |= known(below)
        return found

    suggested = re.findall(r"^ *# +(?:- )?([a-z]+\.[a-z.]+): ", first_file(routing), re.MULTILINE)
    assert len(suggested) > 8
    assert set(suggested) <= known(Config)


def test_what_is_in_force_is_shown_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text(first_file(Routing.GATEWAY))
    shown = json.loads(run("config", "show", file, "-o", "json").stdout)
    by_key = {one["key"]: one for one in shown}
    assert by_key["workers"] == {"key": "workers", "value": 1, "from": "default"}
    enforcement = by_key["listeners[0].reauth.enforcement"]
    line = 1 + file.read_text().splitlines().index("    reauth.enforcement: observe")
    assert (enforcement["value"], enforcement["from"]) == ("observe", f"line {line}")
    assert by_key["store.url"]["value"] == f"sqlite:{tmp_path / 'state.db'}"
    table = run("config", "show", file).stdout
    assert re.search(rf"^listeners\[0\].reauth.enforcement +observe +line {line}$", table, re.M)
    changed = json.loads(run("config", "show", file, "--changed", "-o", "json").stdout)
    assert changed == [one for one in shown if one["from"] != "default"]
    assert 0 < len(changed) < len(shown)


def test_secrets_are_shown_by_their_source(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    (tmp_path / "password").write_text("hunter2")
    text = first_file(Routing.GATEWAY).replace("  security.protocol: PLAINTEXT\n", "", 1)
    file.write_text(
        text.replace(
            "upstream:\n",
            "upstream:\n  security.protocol: SASL_PLAINTEXT\n  sasl.mechanism: PLAIN\n"
            "  sasl.username: proxy\n  sasl.password: file:password\n",
        )
    )
    shown = run("config", "show", file).stdout
    assert "hunter2" not in shown
    assert f"file:{tmp_path / 'password'}" in shown


def test_a_trial_connects(tmp_path: Path) -> None:
    """A port in use, a missing broker and the keys are all reported."""
    (tmp_path / "jwks.json").write_bytes(document(*(key.jwk() for key in all_keys())))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = parse(first_file(Routing.SIDECAR).encode())
        settings["upstream"]["bootstrap.servers"] = "127.0.0.1:1"
        settings["listeners"][0] |= {"address": f"127.0.0.1:{port}", **TOKENS}
        settings["http"]["address"] = "127.0.0.1:0"
        file = tmp_path / "proxy.yaml"
        file.write_text(yaml.safe_dump(settings))
        assert run("config", "check", file).exit_code == 0, "nothing is tried without --connect"
        done = run("config", "check", file, "--connect", "-o", "json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    problems = {one["key"]: one["problem"] for one in told["problems"]}
    assert problems.keys() == {"listeners[0].address", "upstream.bootstrap.servers[0]"}
    assert "Address already in use" in problems["listeners[0].address"]
    assert problems["upstream.bootstrap.servers[0]"].endswith("127.0.0.1:1: Connection refused")
    assert any("jwks.endpoint.url has" in one for one in told["works"])
    assert not (tmp_path / "state.db").exists()


# --- `token explain`, as a listener would judge it


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_bytes(document(rsa_key().jwk()))
    settings = parse(first_file(Routing.SIDECAR).encode())
    settings["listeners"][0] |= TOKENS
    file = tmp_path / "proxy.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def fresh(**changes: object) -> str:
    return token(claims(**{"iat": time.time(), "exp": time.time() + 300} | changes))


def test_a_good_token(config: Path) -> None:
    file = config.with_name("token")
    file.write_text(fresh() + "\n")
    done = run("token", "explain", file, "--config", config)
    assert (done.exit_code, done.stderr) == (0, "")
    head, *parts = [line.split()[0] for line in done.stdout.splitlines()]
    assert head == "PART"
    assert parts == [
        *["form", "alg", "kid", "signature", "iat", "nbf", "exp", "iss", "aud", "sub", "scope"]
    ]
    assert file.read_text().strip() not in done.output


def test_a_bad_token_by_stdin_and_escaped(config: Path) -> None:
    text = fresh(aud="other\x1b[2J")
    done = run("token", "explain", "-", "--config", config, stdin=f"Bearer {text}\n")
    assert done.exit_code == 1
    assert done.stderr == "reauth-proxy: listener clients refuses the token: aud\n"
    assert "\x1b" not in done.stdout
    assert "expected is kafka" in done.stdout
    told = run("token", "explain", "-", "--config", config, "-o", "json", stdin=text)
    wrong = [one["part"] for one in json.loads(told.stdout) if not one["ok"]]
    assert wrong == ["aud"]


def test_keys_that_cannot_be_read_are_said(config: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    settings["listeners"][0]["sasl.oauthbearer.jwks.endpoint.url"] = "http://127.0.0.1:1/"
    config.write_text(yaml.safe_dump(settings))
    told = refusal("token", "explain", "-", "--config", config, status=1, stdin=fresh())
    assert "the signing keys cannot be read" in told
    assert "there are no keys" in told


def test_the_listener_must_be_known(config: Path) -> None:
    asked = ("token", "explain", "-", "--config", config)
    told = refusal(*asked, "--listener", "x", stdin=fresh())
    assert told == "reauth-proxy: give --listener: listeners with OAUTHBEARER are clients"
    refusal(*asked)
    refusal("token", "explain", config.with_name("none"), "--config", config)
