"""Who the proxy is to its brokers, from what the configuration and its files say."""

import asyncio
from pathlib import Path

import pytest

from proxy.brokers import identity as upstream_identity
from proxy.brokers.access import open_access
from proxy.config import from_mapping
from sasl.login import ClientExchange, LoginError, OAuthBearerClient, PlainClient, ScramClient

LISTENER = {
    "name": "clients",
    "address": "127.0.0.1:9094",
    "routing": "sidecar",
    "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
}


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_identity, "LOOK_EVERY", 0.0)


def exchanges(directory: Path, *changes: str | None, **sasl: str) -> list[ClientExchange]:
    """Begin a login per change, each of which is written to `secret` first; None: it is gone."""
    upstream = {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_SSL",
        **{key.replace("_", "."): value for key, value in sasl.items()},
    }
    settings = from_mapping({"upstream": upstream, "listeners": [LISTENER]}, base_dir=directory)
    identity = open_access(settings.upstream, None).identity
    assert identity is not None

    async def begin() -> list[ClientExchange]:
        found = []
        for change in changes:
            (directory / "secret").unlink(missing_ok=True)
            if change is not None:
                (directory / "secret").write_text(change)
            found.append(await identity.exchange())
        return found

    return asyncio.run(begin())


def by_password(directory: Path, mechanism: str, *changes: str | None) -> list[ClientExchange]:
    return exchanges(
        directory,
        *changes,
        sasl_mechanism=mechanism,
        sasl_username="gate",
        sasl_password="file:secret",
    )


def test_without_sasl_there_is_nobody_to_be() -> None:
    upstream = {"bootstrap.servers": "127.0.0.1:9092", "security.protocol": "SSL"}
    settings = from_mapping({"upstream": upstream, "listeners": [LISTENER]}, base_dir=Path())
    assert open_access(settings.upstream, None).identity is None


def test_a_password_that_is_replaced_is_the_next_logins(tmp_path: Path) -> None:
    first, second = by_password(tmp_path, "PLAIN", "one\n", "two, with = and ü\r\n")
    assert first.first() == b"\0gate\0one"
    assert second.first() == "\0gate\0two, with = and ü".encode()
    assert isinstance(first, PlainClient)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(tmp_path: Path, mechanism: str) -> None:
    first, second = by_password(tmp_path, mechanism, "one", "one")
    assert isinstance(first, ScramClient)
    assert first.mechanism == mechanism
    assert first.first().startswith(b"n,,n=gate,r=")
    assert first.first() != second.first(), "a nonce is used once"


def test_a_password_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GATE_PASSWORD", "three")
    [exchange] = exchanges(
        tmp_path,
        None,
        sasl_mechanism="PLAIN",
        sasl_username="gate",
        sasl_password="env:GATE_PASSWORD",
    )
    assert exchange.first() == b"\0gate\0three"


def test_an_environment_that_holds_no_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GATE_PASSWORD", "\udcff")
    with pytest.raises(LoginError, match="is not text"):
        exchanges(
            tmp_path,
            None,
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="gate",
            sasl_password="env:GATE_PASSWORD",
        )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("", "holds no password"),
        ("a\0b", "holds no password"),
        ("x" * 100_000, "too long for a secret"),
    ],
)
def test_no_password_no_login(tmp_path: Path, content: str | None, problem: str) -> None:
    """And the old one is not used either: whoever took it away meant it."""
    with pytest.raises(LoginError, match=problem) as caught:
        by_password(tmp_path, "PLAIN", "one", content)
    assert "one" not in str(caught.value).replace(str(tmp_path), "")


def test_a_token_of_a_file(tmp_path: Path) -> None:
    first, second = exchanges(
        tmp_path,
        "abc\n",
        "def",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="file:secret",
    )
    assert isinstance(first, OAuthBearerClient)
    assert b"auth=Bearer abc\x01" in first.first()
    assert b"auth=Bearer def\x01" in second.first()


@pytest.mark.parametrize("content", [None, "", "two words", "abc\x01auth=Bearer def"])
def test_no_token_no_login(tmp_path: Path, content: str | None) -> None:
    with pytest.raises(LoginError):
        exchanges(
            tmp_path,
            content,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url="file:secret",
        )
