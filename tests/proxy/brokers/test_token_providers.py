"""Tokens of commands and classes: bounded, renewed, and never in a log."""

import asyncio
import hashlib
import hmac
import json
import logging
import os
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.brokers import token_source
from proxy.brokers.token_providers import (
    MAX_CALLS,
    ROLE_SESSION_NAME,
    MskIamIdentity,
    ProvidedTokens,
    TokenProvider,
)
from proxy.brokers.token_source import RenewedTokens
from sasl.login import LoginError
from sasl.token_cache import MAX_ANSWER_BYTES
from tests.support.cloud import ARN, EMAIL, ROLE, SECRET, Cloud
from tests.support.processes import until
from tests.support.sasl import b64url
from tests.support.upstream import provided_by, why_none

TOKEN = "eyJhbGciOiJub25lIn0.c2VjcmV0LXRva2Vu.c2lnbmF0dXJl"


def jwt_of(**claims: Any) -> str:
    return f"e30.{b64url(json.dumps(claims).encode())}.c2ln"


def command(script: str) -> RenewedTokens:
    return provided_by(login_provider="command", login_command=["/bin/sh", "-c", script])


@pytest.mark.parametrize(("kind", "lives"), [("opaque", None), ("jwt", 900), ("response", 600)])
def test_a_command_prints_a_token(kind: str, lives: int | None) -> None:
    now = time.time()
    token = jwt_of(sub="gate", exp=int(now) + 900) if kind == "jwt" else TOKEN
    response = json.dumps({"access_token": token, "expires_in": 600})
    printed = response if kind == "response" else token
    tokens = command(f"echo '{printed}'; echo chatter >&2")
    assert asyncio.run(tokens.current()) == token
    expected = None if lives is None else pytest.approx(now + lives, abs=60)
    assert tokens.expires_at == expected


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"echo 'bad {TOKEN}' >&2; exit 3", "exit status 3: bad ..."),
        ("printf '\\n\\033[2J forged: \\342\\200\\256\\n\\n' >&2; exit 1", "\\x1b[2J forged: "),
        ("kill -9 $$", "exit status -9"),
        (f"echo '{TOKEN} two'", "not a bearer token"),
        ("true", "not a bearer token"),
        ("echo '{}'", "no access_token"),
        ('echo \'{"access_token":"a","expires_in":0}\'', "already expired"),
        ("yes", f"more than {MAX_ANSWER_BYTES} bytes"),
        ("yes >&2 & sleep 0.1; yes", "more than"),
    ],
)
def test_a_command_that_prints_no_token(
    script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    reason = asyncio.run(why_none(command(script)))
    assert problem in reason
    assert "c2VjcmV0" not in reason + caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_program_that_is_not_there() -> None:
    tokens = provided_by(login_provider="command", login_command=["/no/such"])
    assert "command /no/such: FileNotFoundError" in asyncio.run(why_none(tokens))


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & sleep 60", "sleep 60 & echo x"])
async def test_a_command_that_hangs_is_killed_with_its_children(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 0.5)
    pids = tmp_path / "pid"
    tokens = command(f"echo $$ >{pids}; {script}")

    while not (pids.exists() and pids.read_text()):  # it may start late under load
        await tokens.refresh()
        assert tokens._cache.last_error == "no answer within 0.5 seconds"
    group = pids.read_text().strip()
    await until(lambda: not living(group))


def living(group: str) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if of == group and state != "Z":
            found.append(stat.parent.name)
    return found


class Rotating:
    """Tokens that live for 900 seconds, of one principal."""

    def __init__(self) -> None:
        self.given = 0
        self.fails = False

    def token(self) -> tuple[Any, Any]:
        assert threading.current_thread() is not threading.main_thread()
        self.given += 1
        if self.fails:
            raise RuntimeError(f"refused\n{TOKEN}\x1b[2J")
        return f"token-{self.given}", time.time() + 900


def provided(one: Any) -> ProvidedTokens:
    create: Callable[[], TokenProvider] = lambda: one  # noqa: E731 - typed
    return ProvidedTokens("test", create)


async def test_the_last_token_is_used_while_renewal_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, token_source.__name__)
    provider = Rotating()
    tokens = provided(provider)

    assert await tokens.current() == await tokens.current() == "token-1"
    assert tokens.expires_at == pytest.approx(time.time() + 900, abs=60)
    provider.fails = True
    for _ in range(3):
        await tokens.refresh()
        assert await tokens.current() == "token-1"
    assert tokens.refresh_failures == 3
    provider.fails = False
    await tokens.refresh()
    assert await tokens.current() == "token-5"
    begun, ended = caplog.messages
    assert begun == (
        "No token from test: RuntimeError: refused\\n...\\x1b[2J;"
        " the current token is used until it expires"
    )
    assert ended == "test: issues tokens again"


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "token() must return a token and its expiry"),
        (("two words", None), "not a bearer token"),
        ((b"abc", None), "not a bearer token"),
        (("abc", "soon"), "the expiry is not a number"),
        (("abc", float("nan")), "the expiry is not a number"),
        (("abc", 1.0), "already expired by this clock"),
        (("a" * (MAX_ANSWER_BYTES + 1), None), "the token is larger than"),
    ],
)
def test_a_class_that_returns_no_token(result: Any, problem: str) -> None:
    class Broken:
        def token(self) -> Any:
            return result

    assert problem in asyncio.run(why_none(provided(Broken())))


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_a_class_that_raises_what_would_end_a_program(raised: BaseException) -> None:
    class Ending:
        def token(self) -> Any:
            raise raised

    assert type(raised).__name__ in asyncio.run(why_none(provided(Ending())))


async def test_a_class_that_hangs_keeps_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 0.05)
    going_on = threading.Event()

    class Hanging(Rotating):
        def token(self) -> tuple[str, float]:
            going_on.wait(60)
            return super().token()

    tokens = provided(Hanging())
    for _ in range(MAX_CALLS):
        await tokens.refresh()
        assert tokens._cache.last_error == "no answer within 0.05 seconds"
    await tokens.refresh()
    assert tokens._cache.last_error == f"{MAX_CALLS} earlier calls have not returned"
    going_on.set()
    await until(lambda: tokens._calls._value == MAX_CALLS)
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 60.0)
    await tokens.refresh()
    assert (await tokens.current()).startswith("token-")


class Named(Rotating):
    def who(self) -> str:
        return "gate"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (f"{__name__}:Rotating", None),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:Path", "has no method token"),
        ("no_such_module:Tokens", "ModuleNotFoundError"),
    ],
)
def test_a_class_of_ones_own(name: str, problem: str | None) -> None:
    tokens = provided_by(login_provider=name)
    if problem is None:
        assert asyncio.run(tokens.current()) == "token-1"
    else:
        assert problem in asyncio.run(why_none(tokens))


def test_who_it_is() -> None:
    assert asyncio.run(provided(Named()).who()) == "gate"
    assert asyncio.run(provided(Rotating()).who()) == "unknown"
    printed = jwt_of(sub="User of a\nJWT")
    assert asyncio.run(command(f"echo {printed}").who()) == "User of a\nJWT"


# Tokens of cloud identities, against fake metadata and token services


MSK = "b-1.demo.a1b2c3.c8.kafka.eu-west-1.amazonaws.com:9098"
NAMES = {"action": "Action"} | {
    f"x-amz-{name.lower()}": f"X-Amz-{name}"
    for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Security-Token")
}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "")  # set again after the test
    monkeypatch.delenv("AWS_ROLE_SESSION_NAME")
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT", 120.0)  # imports take long under load
    one = Cloud()
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    with one.service:
        yield one


def aws(servers: str = MSK) -> RenewedTokens:
    return provided_by(servers, login_provider="aws-msk-iam")


def signed(token: str) -> tuple[str, dict[str, str]]:
    """Verify the signature of a signed URL; return the URL's host and fields (Signature Version 4,
    "Create a signed AWS API request")."""
    url = urlsplit(urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    fields = dict(parse_qsl(url.query))
    assert (url.scheme, url.path) == ("https", "/")
    assert fields.pop("User-Agent") == "reauth-proxy"
    assert fields["Action"] == "kafka-cluster:Connect"
    assert fields["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert fields["X-Amz-SignedHeaders"] == "host"
    assert fields["X-Amz-Expires"] == "900"
    signature = fields.pop("X-Amz-Signature")
    assert signature == signature_of(url.netloc, fields)
    return url.netloc, fields


def signature_of(host: str, fields: dict[str, str]) -> str:
    query = "&".join(
        f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}"
        for key, value in sorted(fields.items())
    )
    request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{hashlib.sha256().hexdigest()}"
    date = fields["X-Amz-Date"]
    scope = fields["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}".encode(), "sha256").hex()


def test_an_instances_identity_at_msk(cloud: Cloud) -> None:
    tokens = aws()
    host, fields = signed(asyncio.run(tokens.current()))
    assert host == "kafka.eu-west-1.amazonaws.com"
    day = fields["X-Amz-Date"][:8]
    assert fields["X-Amz-Credential"] == (
        f"ASIA{cloud.keys:016}/{day}/eu-west-1/kafka-cluster/aws4_request"
    )
    assert fields["X-Amz-Security-Token"].startswith(f"{ARN}+")
    assert tokens.expires_at == pytest.approx(time.time() + 900, abs=30)
    assert asyncio.run(tokens.who()) == ARN


def test_a_workloads_identity_keeps_its_session_name(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise brokers refuse the re-authentication: the principal would change."""
    (tmp_path / "token").write_text("e30.e30.c2ln")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "")  # as good as unset
    cloud.lives = 300  # botocore renews credentials at each use
    tokens = aws("kafka.internal:9098")

    async def run() -> set[str]:
        found = set()
        for _ in range(3):
            await tokens.refresh()
            host, fields = signed(await tokens.current())
            assert host == "kafka.us-east-2.amazonaws.com"
            found.add(fields["X-Amz-Credential"])
        return found

    assert len(asyncio.run(run())) == 3
    assert set(cloud.sessions) == {ROLE_SESSION_NAME}
    assert tokens.expires_at == pytest.approx(time.time() + 240, abs=30)


@pytest.mark.parametrize(
    ("lives", "problem"),
    [(50, "the AWS credentials end in less than 60 s"), (-3600, "still expired")],
)
def test_credentials_that_end_soon_are_not_presented(
    cloud: Cloud, lives: float, problem: str
) -> None:
    cloud.lives = lives
    reason = asyncio.run(why_none(aws()))
    assert problem in reason
    assert SECRET not in reason


@pytest.mark.parametrize("status", [302, 403, 404, 500])
def test_a_metadata_service_that_refuses(cloud: Cloud, status: int) -> None:
    cloud.status = status
    assert "no AWS credentials were found" in asyncio.run(why_none(aws()))
    assert not [path for path in cloud.asked if "stolen" in path]


def test_a_region_that_is_nowhere(cloud: Cloud) -> None:
    assert "set AWS_REGION" in asyncio.run(why_none(aws("kafka.internal:9098")))
    assert cloud.asked == []


def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"botocore", "botocore.config"} | {
        name for name in sys.modules if name.startswith("botocore.")
    }:
        monkeypatch.setitem(sys.modules, name, None)
    needed = "aws-msk-iam needs botocore, the extra aws: "
    assert needed in asyncio.run(why_none(aws()))


def test_a_service_account_of_google(cloud: Cloud) -> None:
    tokens = provided_by(login_provider="gcp")
    token = asyncio.run(tokens.current())
    header, claims, access = (urlsafe_b64decode(part + "===") for part in token.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert access == f"ya29.{cloud.keys}".encode()
    found = json.loads(claims)
    assert (found["iss"], found["sub"], found["scope"]) == ("Google", EMAIL, "kafka")
    assert found["exp"] == pytest.approx(time.time() + 3600, abs=300)
    assert tokens.expires_at == pytest.approx(time.time() + 3600, abs=300)
    assert asyncio.run(tokens.who()) == EMAIL
    cloud.status = 302
    asyncio.run(tokens.refresh())
    assert tokens.refresh_failures == 1
    assert asyncio.run(tokens.current()) == token


def test_an_identity_of_azure(cloud: Cloud) -> None:
    tokens = provided_by("demo.servicebus.windows.net:9093", login_provider="azure")
    assert asyncio.run(tokens.current()) == f"ya29.{cloud.keys}"
    assert tokens.expires_at == pytest.approx(time.time() + 3600, abs=300)
    (asked,) = {
        parse_qs(urlsplit(path).query)["resource"][0] for path in cloud.asked if "?" in path
    }
    assert asked == "https://demo.servicebus.windows.net"
    cloud.status = 302
    refused = provided_by("demo.servicebus.windows.net:9093", login_provider="azure")
    assert "no token from azure: " in asyncio.run(why_none(refused))


def test_brokers_that_are_not_of_event_hubs(cloud: Cloud) -> None:
    problem = "set sasl.oauthbearer.scope: no broker is of Event Hubs"
    assert problem in asyncio.run(why_none(provided_by(login_provider="azure")))
    tokens = provided_by(login_provider="azure", oauthbearer_scope="api://kafka/.default")
    assert asyncio.run(tokens.current()).startswith("ya29.")
    assert any("resource=api" in path for path in cloud.asked)


@pytest.mark.usefixtures("cloud")
def test_the_message_of_aws_msk_iam() -> None:
    """As the README of aws-msk-iam-auth documents it; the signature is verified."""
    host = MSK.partition(":")[0]
    exchange = asyncio.run(MskIamIdentity(MSK).exchange(host))
    assert exchange.mechanism == "AWS_MSK_IAM"
    assert exchange.step(b'{"version":"2020_10_22","request-id":"1"}') is None
    message = json.loads(exchange.first())
    about = {name: message.pop(name) for name in ("version", "host", "user-agent")}
    assert about == {"version": "2020_10_22", "host": host, "user-agent": "reauth-proxy"}
    assert message.pop("x-amz-signature") == exchange.secret
    assert message["x-amz-security-token"].startswith(f"{ARN}+")
    fields = {NAMES[name]: value for name, value in message.items()}
    assert exchange.secret == signature_of(host, fields)


def test_aws_msk_iam_without_credentials(cloud: Cloud) -> None:
    cloud.status = 500
    identity = MskIamIdentity(MSK)
    with pytest.raises(LoginError, match="no AWS credentials were found"):
        asyncio.run(identity.exchange("b-1"))
    snapshot = Snapshot()
    identity.collect(snapshot)
    assert snapshot.values == {registry.UPSTREAM_TOKEN_REFRESH_FAILURES.name: {(): 1}}
