# ruff: noqa: E501 - a table: one row, one case
"""What `config check` tries: each thing that a start, or the first login, would fail by."""

import time
from pathlib import Path

import pytest

from proxy.config import from_mapping, load
from proxy.errors import ConfigError
from proxy.process.preflight import problems_of_named, warnings_of_named
from proxy.store import open_store
from tests.support.certificates import Authority
from tests.support.proxy_process import BASE
from tests.support.sasl import all_keys, document

JWKS = "listeners[0].sasl.oauthbearer.jwks.endpoint.url"
PASSWORD = "upstream.sasl.password"
ASSERTION = "upstream.sasl.oauthbearer.assertion.private.key.file"
TOKEN = "upstream.sasl.oauthbearer.token.endpoint.url"
CALLBACK = "quotas:\n  mode: enforce\n  client.quota.callback.class: "


def password(secret: str) -> str:
    """Settings of a login to brokers."""
    return (
        "upstream:\n  sasl.mechanism: PLAIN\n  sasl.username: proxy\n"
        f"  sasl.password: {secret}\n  security.protocol: SASL_SSL\n"
    )


BEARER = (
    "upstream:\n  sasl.mechanism: OAUTHBEARER\n  security.protocol: SASL_SSL\n"
    "  sasl.oauthbearer.token.endpoint.url: file:token\n"
)


ASSERTING = (
    BEARER.replace("file:token", "https://idp/")
    + "  sasl.oauthbearer.assertion.private.key.file: token\n"
)
KEYS = document(*(key.jwk() for key in all_keys())).decode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where all that BASE names is right."""
    (tmp_path / "jwks.json").write_text(KEYS)
    return tmp_path


def tried(directory: Path, text: str = BASE) -> str:
    """Return what is wrong, with DIR for the directory; nothing: all is well."""
    file = directory / "proxy.yaml"
    file.write_text(text)
    try:
        for problem in problems_of_named(load(file), time.time()):
            raise problem
    except ConfigError as error:
        return str(error).replace(str(directory), "DIR")
    return ""


def test_what_can_be_used_is_not_changed(directory: Path) -> None:
    assert tried(directory) == ""
    assert sorted(one.name for one in directory.iterdir()) == ["jwks.json", "proxy.yaml"]


def test_a_store_that_is_in_use_is_left_as_it_is(directory: Path) -> None:
    store = open_store(f"sqlite:{directory}/state.db")
    try:
        store.begin()
        before = {one: one.stat().st_mtime_ns for one in directory.iterdir()}
        assert tried(directory) == ""
        (directory / "proxy.yaml").unlink()
        assert {one: one.stat().st_mtime_ns for one in directory.iterdir()} == before
    finally:
        store.close()


SIGNALS = BASE + (
    "block: {signals: {endpoint.url: https://idp.test/poll, issuer: i, audience: a,"
    " jwks.endpoint.url: file:signals.json, token.file: token}}\n"
)
AUTHORIZATION = "sasl.oauthbearer.jwks.endpoint.authorization.file"
WITH_TOKEN = BASE.replace("file:jwks.json", f"https://idp/keys\n    {AUTHORIZATION}: token")
GROUPS = BASE.replace("    routing:", "    groups.file: groups.json\n    routing:")
GROUPS_FILE = "listeners[0].groups.file: DIR/groups.json "


def logging_in(settings: str) -> str:
    return BASE.replace("upstream:\n", settings)


class Exits:
    """A quota callback that ends the process that configures it."""

    def __init__(self) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("text", "files", "problem"),
    [
        (BASE, {"jwks.json": "no JSON"}, f"{JWKS}: DIR/jwks.json: the JWKS is not a JSON object"),
        (BASE, {"jwks.json": '{"keys": []}'}, f"{JWKS}: DIR/jwks.json: the JWKS has no usable key: `keys` is empty"),
        (BASE, {"state.db": "no database"}, "store.url: DIR/state.db: is not a SQLite database"),
        (BASE, {"events": "no directory"}, "events.directory: DIR/events: cannot be written to"),
        (logging_in(password("file:secret")), {}, f"{PASSWORD}: file:DIR/secret cannot be read: No such file or directory"),
        (logging_in(password("file:secret")), {"secret": "\n"}, f"{PASSWORD}: file:DIR/secret holds no secret"),
        (logging_in(password("file:secret")), {"secret": "\xffsecret"}, f"{PASSWORD}: file:DIR/secret is not text"),
        (logging_in(password("file:secret")), {"secret": "wonderful"}, ""),
        (logging_in(password("env:NOT_SET_ANYWHERE")), {}, f"{PASSWORD}: the environment has no NOT_SET_ANYWHERE"),
        (logging_in(BEARER), {}, f"{TOKEN}: DIR/token: cannot be read: No such file or directory"),
        (logging_in(ASSERTING), {"token": "no key"}, f"{ASSERTION}: DIR/token holds no private key in PEM without a password"),
        (logging_in(BEARER), {"token": "two words"}, f"{TOKEN}: DIR/token: holds no bearer token"),
        (logging_in(BEARER), {"token": "abc.def.ghi\n"}, ""),
        (WITH_TOKEN, {}, f"listeners[0].{AUTHORIZATION}: DIR/token: cannot be read: No such file or directory"),
        (WITH_TOKEN, {"token": "abc.def.ghi\n"}, ""),
        (SIGNALS, {"signals.json": "{}"}, "block.signals.jwks.endpoint.url: DIR/…"),
        (SIGNALS, {"signals.json": KEYS}, "block.signals.token.file: DIR/…"),
        (SIGNALS, {"signals.json": KEYS, "token": "abc.def.ghi"}, ""),
        (GROUPS, {"groups.json": '{"groups": {"a": ["User:x"]}}'}, ""),
        (GROUPS, {"groups.json": '{"groups": {"a": ["User:x"]'}, f"{GROUPS_FILE}is not a JSON object, or is incomplete…"),
        (GROUPS, {"groups.json": '{"groups": {"*": []}}'}, f"{GROUPS_FILE}has a group '*': names have 1 to 250 printable…"),
        (BASE + CALLBACK + "nowhere:Callback\n", {}, "quotas.client.quota.callback.class: …"),
        (f"{BASE}{CALLBACK}{__name__}:Exits\n", {}, "quotas.client.quota.callback.class: SystemExit(3)"),
    ],
)  # fmt: skip
def test_what_a_configuration_names(
    directory: Path, text: str, files: dict[str, str], problem: str
) -> None:
    for name, content in files.items():
        (directory / name).write_bytes(content.encode("latin-1"))
    said, (beginning, more, _) = tried(directory, text), problem.partition("…")
    assert said.startswith(beginning) if more else said == problem


@pytest.mark.parametrize(
    ("hosts", "advertised", "is_for_it"),
    [
        (("gate.example.com",), "Gate.example.com", True),
        (("*.example.com",), "gate.example.com", True),
        (("*.example.com",), "gate.eu.example.com", False),
        (("example.com",), "gate.example.com", False),
        (("127.0.0.1",), "127.0.0.1", True),
        (("localhost",), "127.0.0.1", False),
        ((), "gate", True),
        ((), "other", False),
    ],
    ids=[
        "its name",
        "any of the domain",
        "deeper",
        "the domain",
        "address",
        "no address",
        "its subject",
        "none",
    ],
)
def test_a_gateways_certificate_is_for_the_host_that_clients_are_told(
    directory: Path, hosts: tuple[str, ...], advertised: str, is_for_it: bool
) -> None:
    warned = certificate_warned(directory, hosts, **{"advertised.host": advertised})
    assert warned == [f"advertised.host, {advertised}"] * (not is_for_it)


@pytest.mark.parametrize(
    ("hosts", "further", "warns"),
    [
        (("*.kafka.example",), (), False),
        (("boot.kafka.example", "b3.kafka.example"), (), False),
        (("boot.kafka.example",), ("b3.kafka.example",), False),
        (("boot.kafka.example",), ("c3.kafka.example",), True),
    ],
)
def test_the_brokers_of_broker_hosts_have_a_certificate(
    directory: Path, hosts: tuple[str, ...], further: tuple[str, ...], warns: bool
) -> None:
    (directory / "more.pem").write_bytes(Authority().issue("more", further).pem)
    given = {
        "advertised.host": "boot.kafka.example",
        "broker.ports": None,
        "broker.hosts": "b$(id).kafka.example",
        "ssl.keystores": [{"ssl.keystore.location": "more.pem"}] if further else [],
    }
    warned = certificate_warned(directory, hosts, **given)
    assert warned == ["broker.hosts, b$(id).kafka.example"] * warns


def certificate_warned(directory: Path, hosts: tuple[str, ...], **given: object) -> list[str]:
    """What a gateway's certificates are not for."""
    (directory / "gate.pem").write_bytes(Authority().issue("gate", hosts).pem)
    listener = {
        "name": "gate",
        "address": "127.0.0.1:9094",
        "routing": "gateway",
        "broker.ports": "9100-9199",
        "security.protocol": "SSL",
        "ssl.keystore.location": "gate.pem",
        **given,
    }
    upstream = {"bootstrap.servers": "127.0.0.1:9"}
    config = from_mapping({"upstream": upstream, "listeners": [listener]}, base_dir=directory)
    assert list(problems_of_named(config, time.time())) == []
    no_certificate = "listener gate: no certificate is for "
    return [text.removeprefix(no_certificate) for text in warnings_of_named(config)]
