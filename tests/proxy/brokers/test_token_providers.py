"""Tokens of commands and classes: bounded, renewed, and never in a log."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers import token_source
from proxy.brokers.token_providers import MAX_CALLS, ProvidedTokens, TokenProvider
from proxy.brokers.token_source import RenewedTokens
from sasl.token_cache import MAX_ANSWER_BYTES
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
