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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where all that BASE names is right."""
    (tmp_path / "jwks.json").write_bytes(document(*(key.jwk() for key in all_keys())))
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


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("jwks.json", "no JSON", f"{JWKS}: DIR/jwks.json: the JWKS is not a JSON object"),
        (
            "jwks.json",
            '{"keys": []}',
            f"{JWKS}: DIR/jwks.json: the JWKS has no usable key: `keys` is empty",
        ),
        ("state.db", "no database", "store.url: DIR/state.db: is not a SQLite database"),
        ("events", "no directory", "events.directory: DIR/events: cannot be written to"),
    ],
)
def test_files_of_another_kind(directory: Path, name: str, content: str, problem: str) -> None:
    (directory / name).write_text(content)
    assert tried(directory) == problem


@pytest.mark.parametrize(
    ("settings", "content", "problem"),
    [
        (password("file:secret"), None, f"{PASSWORD}: file:DIR/secret cannot be read: No such file or directory"),
        (password("file:secret"), "\n", f"{PASSWORD}: file:DIR/secret holds no secret"),
        (password("file:secret"), "wonderful", ""),
        (password("env:NOT_SET_ANYWHERE"), None, f"{PASSWORD}: the environment has no NOT_SET_ANYWHERE"),
        (BEARER, None, f"{TOKEN}: DIR/token: cannot be read: No such file or directory"),
        (
            BEARER.replace("file:token", "https://idp/")
            + "  sasl.oauthbearer.assertion.private.key.file: token\n",
            "no key",
            f"{ASSERTION}: DIR/token holds no private key in PEM without a password",
        ),
        (BEARER, "two words", f"{TOKEN}: DIR/token: holds no bearer token"),
        (BEARER, "abc.def.ghi\n", ""),
    ],
)  # fmt: skip
def test_what_the_proxy_logs_in_with(
    directory: Path, settings: str, content: str | None, problem: str
) -> None:
    if content is not None:
        for name in ("secret", "token"):
            (directory / name).write_text(content)
    assert tried(directory, BASE.replace("upstream:\n", settings)) == problem


def test_the_token_for_the_signing_keys(directory: Path) -> None:
    key = "sasl.oauthbearer.jwks.endpoint.authorization.file"
    text = BASE.replace("file:jwks.json", f"https://idp/keys\n    {key}: token")
    assert (
        tried(directory, text)
        == f"listeners[0].{key}: DIR/token: cannot be read: No such file or directory"
    )
    (directory / "token").write_text("abc.def.ghi\n")
    assert tried(directory, text) == ""


def test_the_files_of_signals(directory: Path) -> None:
    signals = (
        "block: {signals: {endpoint.url: https://idp.test/poll, issuer: i, audience: a,"
        " jwks.endpoint.url: file:signals.json, token.file: signals.token}}\n"
    )
    (directory / "signals.json").write_text("{}")
    assert tried(directory, BASE + signals).startswith("block.signals.jwks.endpoint.url: DIR/")
    (directory / "signals.json").write_bytes((directory / "jwks.json").read_bytes())
    assert tried(directory, BASE + signals).startswith("block.signals.token.file: DIR/")
    (directory / "signals.token").write_text("abc.def.ghi")
    assert tried(directory, BASE + signals) == ""


def test_a_secret_that_is_not_text_is_not_shown(directory: Path) -> None:
    (directory / "secret").write_bytes(b"\xffsecret")
    settings = BASE.replace("upstream:\n", password("file:secret"))
    assert tried(directory, settings) == f"{PASSWORD}: file:DIR/secret is not text"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"groups": {"a": ["User:x"]}}', ""),
        ('{"groups": {"a": ["User:x"]', "is not a JSON object, or is incomplete"),
        ('{"groups": {"*": []}}', "has a group '*': names have 1 to 250 printable"),
    ],
)
def test_the_groups_of_users(directory: Path, content: str, problem: str) -> None:
    (directory / "groups.json").write_text(content)
    said = tried(
        directory, BASE.replace("    routing:", "    groups.file: groups.json\n    routing:")
    )
    prefix = "listeners[0].groups.file: DIR/groups.json "
    assert said == "" if not problem else said.startswith(prefix + problem)


def test_a_callback_that_cannot_be_made(directory: Path) -> None:
    said = tried(directory, BASE + CALLBACK + "nowhere:Callback\n")
    assert said.startswith("quotas.client.quota.callback.class: ")


class Exits:
    """A quota callback that ends the process that configures it."""

    def __init__(self) -> None:
        raise SystemExit(3)


def test_a_callback_that_exits(directory: Path) -> None:
    said = tried(directory, f"{BASE}{CALLBACK}{__name__}:Exits\n")
    assert said == "quotas.client.quota.callback.class: SystemExit(3)"


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
