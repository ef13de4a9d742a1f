"""Trial of a configuration's connections, at brokers whose clients log in themselves."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from proxy.admin import Login, Scram
from proxy.config import Routing, from_mapping
from proxy.errors import ConfigError
from proxy.process import connectivity
from proxy.process.connectivity import Doubt, Outcome, outcomes
from proxy.store import open_store
from proxy.store.users_file import Users
from proxy.wire.apis import METADATA
from proxy.wire.error_codes import ErrorCode
from tests.support import messages
from tests.support.certificates import Authority
from tests.support.fake_broker import FakeBroker, Peer, WantsLogin
from tests.support.messages import written
from tests.support.processes import free_port_range, free_ports
from tests.support.store import SHA_256, verifier
from tests.support.tls import server_context

BOOTSTRAP = "bootstrap.servers"


def tried(
    tmp_path: Path,
    broker: FakeBroker,
    *routings: Routing,
    more: tuple[str, ...] = (),
    login: Login | None = None,
    principal: str | None = None,
    upstream: Mapping[str, Any] = MappingProxyType({"security.protocol": "SASL_PLAINTEXT"}),
    listener: Mapping[str, Any] = MappingProxyType({}),
    store: Mapping[str, Any] = MappingProxyType({}),
) -> list[Outcome]:
    """Outcomes of a trial at this broker, and at the addresses `more`."""

    async def trial() -> list[Outcome]:
        async with broker:
            settings = relaying(routings, [broker.address, *more])
            settings["upstream"] |= upstream
            settings["store"] = dict(store)
            for one in settings["listeners"]:
                one |= listener
            config = from_mapping(settings, base_dir=tmp_path)
            return [one async for one in outcomes(config, login, principal)]

    return asyncio.run(trial())


def relaying(routings: tuple[Routing, ...], servers: list[str]) -> dict[str, Any]:
    listeners = []
    for port, routing in zip(free_ports(len(routings)), routings, strict=True):
        listener = {
            "name": routing.value,
            "address": f"127.0.0.1:{port}",
            "routing": routing.value,
            "sasl.termination": "broker",
        }
        if routing is Routing.GATEWAY:
            first = free_port_range(3)
            listener |= {"advertised.host": "127.0.0.1", "broker.ports": f"{first}-{first + 2}"}
        listeners.append(listener)
    return {"upstream": {BOOTSTRAP: servers}, "listeners": listeners, "http": {"address": None}}


def problems(found: list[Outcome]) -> dict[str, str]:
    return {one.path: one.problem for one in found if isinstance(one, ConfigError)}


def doubts(found: list[Outcome]) -> list[str]:
    return [one for one in found if isinstance(one, Doubt) and "outgoing" not in one]


@pytest.mark.parametrize("routing", [Routing.SIDECAR, Routing.GATEWAY])
def test_brokers_are_asked_only_what_they_answer_before_a_login(
    tmp_path: Path, routing: Routing
) -> None:
    broker = WantsLogin()
    found = tried(tmp_path, broker, routing)
    answers = f"broker {broker.address} answers; clients log in to it themselves"
    assert f"{answers}; it offers SCRAM-SHA-512, PLAIN" in found
    assert (problems(found), doubts(found)) == ({}, [])
    assert {api_key for api_key, _ in broker.requests} == {17, 18}


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_broker_that_is_not_there_is_named(tmp_path: Path, host: str) -> None:
    [missing] = free_ports(1)
    found = tried(tmp_path, WantsLogin(), Routing.GATEWAY, more=(f"{host}:{missing}",))
    [(key, problem)] = problems(found).items()
    assert key == f"upstream.{BOOTSTRAP}[1]"
    assert problem.endswith(f"broker {host}:{missing}: Connection refused")


def with_login(**more: Any) -> Peer:
    """A broker with SASL whose Metadata names brokers 1 and 7."""
    peer = Peer(passwords={"alice": "alice-secret"}, **more)
    peer.versions[METADATA] = (0, 13)
    peer.handlers[METADATA] = lambda version, body: FakeBroker.respond(
        peer, METADATA, version, body
    )
    return peer


WITHOUT_SASL = {17: lambda version, _: written(messages.response(17, version, error_code=34))}
"""Kafka's answer to SaslHandshake on a listener without SASL: ILLEGAL_SASL_STATE."""


@pytest.mark.parametrize(
    ("broker", "tls", "meant", "problem"),
    [
        (WantsLogin, False, "PLAINTEXT", "SASL_PLAINTEXT (SCRAM-SHA-512, PLAIN): set SASL_PLAIN"),
        (WantsLogin, True, "PLAINTEXT", "SASL_SSL (SCRAM-SHA-512, PLAIN): set SASL_SSL"),
        (WantsLogin, True, "SASL_PLAINTEXT", "SASL_SSL (SCRAM-SHA-512, PLAIN): set SASL_SSL"),
        (WantsLogin, False, "SASL_SSL", "SASL_PLAINTEXT (SCRAM-SHA-512, PLAIN): set SASL_PLAIN"),
        (
            partial(with_login, handlers=WITHOUT_SASL),
            False,
            "SASL_PLAINTEXT",
            "name a port with SASL",
        ),
        (partial(FakeBroker, brokers={}), True, "SASL_PLAINTEXT", "SSL: name a port with SASL"),
    ],
    ids=["SASL", "SASL_SSL", "TLS", "no TLS", "no SASL", "SSL"],
)
def test_the_protocol_of_a_listener_is_named(
    tmp_path: Path, broker: Callable[[], FakeBroker], tls: bool, meant: str, problem: str
) -> None:
    one = broker()
    one.tls = server_context(Authority().issue("broker")) if tls else None
    upstream = {"security.protocol": meant}
    listener: dict[str, Any] = {}
    if not meant.startswith("SASL"):
        listener = {"sasl.termination": "proxy", "sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    found = tried(tmp_path, one, Routing.SIDECAR, upstream=upstream, listener=listener)
    assert problem in problems(found)["upstream.security.protocol"]


@pytest.mark.parametrize("enabled", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("in_file", [True, False])
def test_a_listener_without_users_is_named(tmp_path: Path, enabled: str, in_file: bool) -> None:
    (tmp_path / "users").write_text(Users.empty().text())
    with closing(open_store(f"sqlite:{tmp_path}/state.db")) as store:
        store.alter_credentials(upsert={("alice", SHA_256): verifier()})
    found = tried(
        tmp_path,
        FakeBroker(brokers={}),
        Routing.SIDECAR,
        upstream={"security.protocol": "PLAINTEXT"},
        listener={"sasl.termination": "proxy", "sasl.enabled.mechanisms": [enabled]},
        store={"url": "sqlite:state.db"} | ({"users.file": "users"} if in_file else {}),
    )
    told = f"listener sidecar: no user has a password for {enabled}"
    assert any(one.startswith(told) for one in doubts(found)) is (in_file or "512" in enabled)


def test_mechanisms_that_do_not_match_are_named(tmp_path: Path) -> None:
    enabled = {"sasl.enabled.mechanisms": ["PLAIN", "GSSAPI"]}
    found = tried(tmp_path, WantsLogin(), Routing.SIDECAR, listener=enabled)
    key = "listeners[0].sasl.enabled.mechanisms"
    assert problems(found) == {key: "brokers do not offer GSSAPI"}
    assert doubts(found) == [f"{key}: clients that use SCRAM-SHA-512 are refused; remove it"]


OF_PROXY = {"mechanism": "SCRAM-SHA-256", "username": "alice", "password": "env:OF_PROXY"}


@pytest.mark.parametrize(
    ("password", "of_proxy"), [("alice-secret", {}), ("wrong", {}), ("wrong", OF_PROXY)]
)
def test_a_login_is_tried(
    tmp_path: Path, password: str, of_proxy: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it, brokers without a port are known too."""
    monkeypatch.setenv("OF_PROXY", "alice-secret")
    peer = with_login(brokers={1: ("127.0.0.1", 1), 7: ("127.0.0.1", 1)})
    upstream = {"security.protocol": "SASL_PLAINTEXT"}
    upstream |= {f"sasl.{key}": value for key, value in of_proxy.items()}
    login = Scram(username="alice", password=password)
    found = tried(tmp_path, peer, Routing.GATEWAY, login=login, upstream=upstream)
    accepted = [one for one in found if isinstance(one, str) and "takes the client's login" in one]
    if password == "wrong":
        assert not accepted
        assert "login failed: " in problems(found)["--command-config"]
    else:
        assert accepted
        assert "for broker 7 (1 in all)" in problems(found)["listeners[0].broker.ports"]


DENIED = "run kafka-acls.sh --bootstrap-server {} --add --allow-principal User:proxy"
OF_CREATION = " --operation CreateTokens --user-principal 'User:al ice'"


@pytest.mark.parametrize(
    ("way", "client", "found"),
    [
        ("mapped", "alice", "broker {} accepts the login of User:alice as User:alice"),
        ("mapped", "bob", "login failed: "),
        ("mapped", "carol", "upstream.identity.allow does not name it"),
        ("delegation-token", "al ice", DENIED + OF_CREATION),
    ],
)
def test_a_login_as_a_client_is_tried(tmp_path: Path, way: str, client: str, found: str) -> None:
    peer = with_login()
    peer.passwords = {"alice": "right", "bob": "right", "proxy": "secret"}
    denied = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    names = "issue_timestamp", "expiry_timestamp", "max_timestamp"
    times = dict.fromkeys(names, datetime.fromtimestamp(0, UTC))
    peer.versions[38] = (1, 3)
    peer.handlers[38] = lambda version, _: written(
        messages.response(38, version, error_code=denied, **times)
    )
    (tmp_path / "secret").write_text("secret")
    for name, password in (("alice", "right"), ("bob", "wrong")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "username").write_text(name)
        (tmp_path / name / "password").write_text(password)
    login = {
        "mechanism": "SCRAM-SHA-256",
        "username": "proxy",
        "password": f"file:{tmp_path}/secret",
    }
    identity = {"mechanism": "SCRAM-SHA-256", "allow": ["User:alice", "User:bob", "User:al ice"]}
    if way == "mapped":
        identity["directory"] = str(tmp_path)
    outcomes = tried(
        tmp_path,
        peer,
        Routing.SIDECAR,
        principal=f"User:{client}",
        upstream={"security.protocol": "SASL_PLAINTEXT"}
        | {f"sasl.{key}": value for key, value in login.items()},
        listener={
            "sasl.termination": "proxy",
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
            "upstream.identity": way,
            **{f"upstream.identity.{key}": value for key, value in identity.items()},
        },
    )
    works = [one for one in outcomes if isinstance(one, str)]
    problem = problems(outcomes).get("listeners[0].upstream.identity", "")
    assert (found.format(peer.address) in works) is (client == "alice")
    assert (found.format(peer.address) in problem) is (client != "alice")


def test_every_port_is_tried(tmp_path: Path) -> None:
    first = free_port_range(30)
    with ExitStack() as stack:
        for port in (first + 1, *range(first + 3, first + 15)):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        found = tried(
            tmp_path,
            WantsLogin(),
            Routing.GATEWAY,
            listener={"broker.ports": f"{first}-{first + 29}"},
        )
    listed = [one.problem for one in found if isinstance(one, ConfigError)]
    assert f"cannot listen on 127.0.0.1:{first + 1}: Address already in use" in listed
    assert listed[-1] == "3 more of its ports are taken"
    assert len(listed) == 11


@pytest.mark.parametrize(
    ("range_", "ports", "doubted"),
    [
        ("32768\t60999\n", "9100-9102", False),
        ("9102\t9110\n", "9100-9102", True),
        ("?", "9100-9102", False),
    ],
)
def test_ports_of_outgoing_connections_are_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_: str, ports: str, doubted: bool
) -> None:
    file = tmp_path / "range"
    file.write_text(range_)
    monkeypatch.setattr(connectivity, "_OUTGOING_PORTS", file)
    found = tried(tmp_path, WantsLogin(), Routing.GATEWAY, listener={"broker.ports": ports})
    lines = [one for one in found if isinstance(one, Doubt) and ports in one]
    assert ["9102-9110 (net.ipv4.ip_local_port_range)" in one for one in lines] == [True] * doubted


@pytest.mark.parametrize(
    ("host", "outcome"),
    [
        ("localhost", "localhost is this machine"),
        ("192.0.2.1", "192.0.2.1 is 192.0.2.1, not an address of this machine"),
        ("x" * 64, "cannot be looked up here"),
    ],
)
def test_the_advertised_host_is_looked_up(tmp_path: Path, host: str, outcome: str) -> None:
    found = tried(tmp_path, WantsLogin(), Routing.GATEWAY, listener={"advertised.host": host})
    assert any(outcome in str(one) for one in found)


@pytest.mark.parametrize(
    "names", [("PLAIN\nlisteners: []", "x" * 21, "PLAIN"), ("PLAIN",) * 70], ids=["YAML", "many"]
)
def test_only_names_of_mechanisms_are_believed(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A broker's text goes into the file that `config init` writes."""
    found = tried(tmp_path, WantsLogin(mechanisms=names), Routing.SIDECAR)
    (line,) = [one for one in found if isinstance(one, str) and "it offers" in one]
    assert set(line.partition("it offers ")[2].split(", ")) == {"PLAIN"}


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            "echo e30.eyJzdWIiOiJnYXRlIn0.c2ln",
            "upstream.sasl.login.provider command has a token for 'gate'",
        ),
        ("exit 2", "upstream.sasl.login.provider: no token from command sh: exit status 2"),
    ],
)
def test_the_provider_is_asked_who_it_is(tmp_path: Path, script: str, found: str) -> None:
    upstream = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.provider": "command",
        "sasl.login.command": ["sh", "-c", script],
    }
    listener = {"sasl.termination": "proxy", "sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    outcomes = tried(tmp_path, WantsLogin(), Routing.SIDECAR, upstream=upstream, listener=listener)
    assert found in [str(one) for one in outcomes]
