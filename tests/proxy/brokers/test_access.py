"""The configured access to brokers, and its metrics."""

import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from metrics import registry
from metrics.metric import Metric
from metrics.snapshot import Snapshot
from proxy.brokers import access as access_module
from proxy.brokers.access import Access, open_access
from proxy.brokers.token_providers import MskIamIdentity
from proxy.worker.endpoints import Endpoints
from sasl.login import LoginError
from tests.support.fake_broker import FakeBroker
from tests.support.relay import Services, listener_of
from tests.support.sasl import b64url
from tests.support.settings import SCRAM, configured
from tests.support.tls import Spoken
from tests.support.upstream import SECRET, providing

EXPIRY, FAILURES = registry.UPSTREAM_TOKEN_EXPIRY, registry.UPSTREAM_TOKEN_REFRESH_FAILURES
ENDS = 1_800_000_000
BY_TOKEN = {"mechanism": "OAUTHBEARER", "oauthbearer_token_endpoint_url": "file:token"}
BY_PASSWORD = {"mechanism": "PLAIN", "username": "gate", "password": "file:secret"}


def token(**claims: Any) -> str:
    parts = (b64url(json.dumps(part).encode()) for part in ({"alg": "RS256"}, claims))
    return ".".join(parts) + ".sig"


def access(directory: Path, **settings: Any) -> Access:
    upstream = {
        "security.protocol": "SASL_PLAINTEXT",
        **{"sasl." + key.replace("_", "."): value for key, value in settings.items()},
    }
    return open_access(configured(directory, SCRAM, upstream).upstream, None)


def with_file(directory: Path, content: str) -> Access:
    (directory / "token").write_text(content)
    return access(directory, **BY_TOKEN)


def reported(of: Access | Endpoints) -> dict[str, float]:
    snapshot = Snapshot()
    of.collect(snapshot)
    return {name: value for name, series in snapshot.values.items() for value in series.values()}


def values(*pairs: tuple[Metric, float]) -> dict[str, float]:
    return {metric.name: value for metric, value in pairs}


async def begin(access: Access) -> bytes:
    """The first message of a login, in the mechanism's own format."""
    assert access.identity is not None
    return (await access.identity.exchange()).first()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_password_is_read_for_each_login(tmp_path: Path, mechanism: str) -> None:
    """It has no end, and one that cannot be read is counted as the failed login that it is."""
    way = access(tmp_path, **BY_PASSWORD | {"mechanism": mechanism})
    with pytest.raises(LoginError):
        await begin(way)
    assert way.identity is not None
    messages = []
    for content in ("one\n", "two, with = and ü\r\n"):
        (tmp_path / "secret").write_text(content)
        exchange = await way.identity.exchange()
        assert exchange.mechanism == mechanism
        messages.append(exchange.first())
    if mechanism == "PLAIN":
        assert messages == [b"\0gate\0one", "\0gate\0two, with = and ü".encode()]
    else:
        assert {one.partition(b"r=")[0] for one in messages} == {b"n,,n=gate,"}
        assert messages[0] != messages[1], "a nonce is used once"
    assert reported(way) == {}


def test_aws_msk_iam_has_an_identity_of_its_own(tmp_path: Path) -> None:
    way = access(tmp_path, mechanism="AWS_MSK_IAM", login_provider="aws-msk-iam")
    assert isinstance(way.identity, MskIamIdentity)
    assert way.max_creation_rate == 100


def test_without_tls_and_login_there_is_nothing_to_tell() -> None:
    assert reported(Access(timeout_s=1.0)) == {}


def test_when_the_certificate_ends_is_told() -> None:
    context = ssl.create_default_context()
    assert reported(Access(timeout_s=1.0, tls=Spoken(context, expires_at=None))) == {}
    way = Access(timeout_s=1.0, tls=Spoken(context, expires_at=ENDS))
    assert reported(way) == values((registry.UPSTREAM_CERTIFICATE_EXPIRY, ENDS))


async def test_when_the_token_of_a_file_ends_is_told_once_it_was_read(tmp_path: Path) -> None:
    """The end of the last one stays: an alert compares it with the clock."""
    way = with_file(tmp_path, token(exp=ENDS, sub="proxy"))
    assert reported(way) == values((FAILURES, 0))  # a rate needs the 0 before the 1
    assert token(exp=ENDS, sub="proxy").encode() in await begin(way)
    assert reported(way) == values((FAILURES, 0), (EXPIRY, ENDS))
    (tmp_path / "token").unlink()
    with pytest.raises(LoginError):
        await begin(way)
    assert reported(way) == values((FAILURES, 1), (EXPIRY, ENDS))


async def test_a_token_that_does_not_say_when_it_ends_is_not_said_to(tmp_path: Path) -> None:
    way = with_file(tmp_path, "opaque")
    await begin(way)
    assert reported(way) == values((FAILURES, 0))


def by_credentials(directory: Path, url: str, **more: Any) -> Access:
    (directory / "secret").write_text(SECRET)
    credentials = "oauthbearer_client_credentials_client"
    asked = {f"{credentials}_id": "proxy", f"{credentials}_secret": "file:secret"}
    endpoint = {"oauthbearer_token_endpoint_url": url}
    return access(directory, mechanism="OAUTHBEARER", **endpoint, **asked, **more)


async def test_an_end_points_tokens_and_failures_are_told(tmp_path: Path) -> None:
    async with providing() as (provider, url):
        good, bad = by_credentials(tmp_path, url), by_credentials(tmp_path, url)
        assert b"token-1" in await begin(good)
        seen = reported(good)
        assert seen.pop(EXPIRY.name) == pytest.approx(time.time() + 3600, abs=60)
        assert seen == values((FAILURES, 0))
        provider.status = 503
        with pytest.raises(LoginError):
            await begin(bad)
        assert reported(bad) == values((FAILURES, 1))


@pytest.mark.parametrize(
    ("setting", "sent"),
    [({}, SECRET), ({"oauthbearer_header_urlencode": True}, quote_plus(SECRET))],
)
async def test_id_and_secret_are_encoded_where_the_endpoint_wants_it(
    tmp_path: Path, setting: dict[str, bool], sent: str
) -> None:
    async with providing() as (provider, url):
        await begin(by_credentials(tmp_path, url, **setting))
        basic = provider.asked[0].headers["Authorization"].removeprefix("Basic ")
        assert base64.b64decode(basic).decode() == f"proxy:{sent}"


def routed(port: int, **settings: str) -> Endpoints:
    config = configured(Path(), SCRAM, {"bootstrap.servers": f"127.0.0.1:{port}", **settings})
    services = Services(access=open_access(config.upstream, None))
    front = listener_of(config.listeners[0], services)
    return Endpoints(services.spawn, config, [front], services.access, {})


async def test_whether_brokers_let_the_proxy_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is not ready is sent no clients, whose failed logins would be counted."""
    monkeypatch.setenv("PROXY_PASSWORD", SECRET)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "proxy",
        "sasl.password": "env:PROXY_PASSWORD",
    }
    async with FakeBroker() as broker:  # it knows no SASL
        without, routing = routed(broker.port), routed(broker.port, **login)
        reached = (registry.UPSTREAM_UNREACHABLE, 0)
        assert reported(routing) == values((registry.UPSTREAM_LOGIN_REFUSED, 0), reached)
        for one in (without, routing):
            assert one._sidecar is not None
            await one._sidecar.round(0.0)
        assert reported(without) == values(reached)
        assert reported(routing) == values((registry.UPSTREAM_LOGIN_REFUSED, 1), reached)
        (reason,) = routing.not_ready()
        assert "login failed: " in reason


async def test_whether_brokers_can_be_reached_now_is_told() -> None:
    """Though the proxy stays ready: what was known of them stays, and they may be back soon."""
    async with FakeBroker() as broker:
        routing = routed(broker.port)
        assert routing._sidecar is not None
        await routing._sidecar.look(0.0)
        assert reported(routing) == values((registry.UPSTREAM_UNREACHABLE, 0))
    routing.query_soon(routing._sidecar.broker)
    await routing._sidecar.look(1.0)
    assert reported(routing) == values((registry.UPSTREAM_UNREACHABLE, 1))
    assert routing.not_ready() == []


def test_of_several_workers_the_first_token_to_end_counts() -> None:
    """Each has its own: one that gets no other closes its share of the clients."""
    merged = Snapshot()
    for expiry in (ENDS + 60, ENDS, ENDS + 30):
        worker = Snapshot()
        worker.gauge(EXPIRY, expiry)
        worker.count(FAILURES, 2)
        merged.merge(worker)
    assert merged.values == {EXPIRY.name: {(): ENDS}, FAILURES.name: {(): 6}}


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "LOOK_EVERY", 0.0)


def test_without_sasl_there_is_nobody_to_be() -> None:
    settings = configured(Path(), SCRAM, {"security.protocol": "SSL"})
    assert open_access(settings.upstream, None).identity is None


@pytest.mark.parametrize("content", ["three", "\udcff"])
async def test_a_password_of_the_environment(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATE_PASSWORD", content)
    way = access(tmp_path, **BY_PASSWORD | {"password": "env:GATE_PASSWORD"})
    if content == "three":
        assert await begin(way) == b"\0gate\0three"
    else:
        with pytest.raises(LoginError, match="is not text"):
            await begin(way)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("", "holds no password"),
        ("a\0b", "holds no password"),
        ("x" * 100_000, "too long for a secret"),
    ],
)
async def test_no_password_no_login(tmp_path: Path, content: str | None, problem: str) -> None:
    """And the old one is not used either: its removal was intended."""
    way, path = access(tmp_path, **BY_PASSWORD), tmp_path / "secret"
    path.write_text("one")
    await begin(way)
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(LoginError, match=problem) as caught:
        await begin(way)
    assert "one" not in str(caught.value).replace(str(tmp_path), "")


async def test_a_token_of_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    for content in ("abc\n", "def"):
        way = with_file(tmp_path, content)
        assert f"auth=Bearer {content.strip()}\x01".encode() in await begin(way)
    for content in ("", "two words", "abc\x01auth=Bearer def"):
        (tmp_path / "token").write_text(content)
        with pytest.raises(LoginError):
            await begin(way)
