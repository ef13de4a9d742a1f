"""Signals of an identity provider, polled from a transmitter over HTTP."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from metrics.registry import BLOCK_SIGNALS, BLOCK_SIGNALS_AGE
from metrics.snapshot import Snapshot
from proxy.brokers.token_source import FileTokens
from proxy.connection.blocks import Blocks, Login
from proxy.errors import ConfigError
from proxy.store import block_file
from proxy.worker import signals
from proxy.worker.signals import MAX_CHARACTERS, MAX_EVENTS, SignalService
from sasl.identity import Identity, LoginFacts
from tests.support import settings
from tests.support.blocks import document
from tests.support.processes import until
from tests.support.sasl import b64url, ed_key, rsa_key, token
from tests.support.sasl import document as jwks
from tests.support.transmitter import ALICE, CAEP, RISC, Transmitter, signal, transmitting

NOW = time.time()


class Receiver(SignalService):
    """The poller of a proxy with a block list of its own."""

    def __init__(self, directory: Path, url: str, **given: object) -> None:
        (directory / "jwks.json").write_bytes(jwks(rsa_key().jwk()))
        required = {
            "endpoint.url": url,
            "jwks.endpoint.url": "file:jwks.json",
            "issuer": "https://idp.test",
            "audience": "kafka-proxies",
        }
        super().__init__(configured(directory, required, given))
        self.path = self._file.path

    def blocks(self) -> Blocks:
        return self._file.read()

    def listed(self) -> list[dict[str, Any]]:
        """The entries without ids and times."""
        left_out = ("id", "issued_before", "ends_at")
        entries = [one.document() for one in self.blocks().entries.values()]
        return [{name: one[name] for name in one if name not in left_out} for one in entries]

    def counts(self) -> dict[str, float]:
        snapshot = Snapshot()
        self.collect(snapshot)
        assert snapshot.values[BLOCK_SIGNALS_AGE.name][()] < 60
        return {result: n for (result,), n in snapshot.values[BLOCK_SIGNALS.name].items()}


def configured(directory: Path, given: object, block: dict[str, object] | None = None) -> Any:
    return settings.configured(
        directory, settings.PLAINTEXT, block={"signals": given} | (block or {})
    )


@asynccontextmanager
async def polling(directory: Path, **given: object) -> AsyncIterator[tuple[Receiver, Transmitter]]:
    async with transmitting() as transmitter:
        receiver = Receiver(directory, transmitter.url, **given)
        await receiver.keys.refresh()
        yield receiver, transmitter


OF_ALICE = {"issuer": "https://issuer.test", "subject": "alice", "reason": "session-revoked"}


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({}, OF_ALICE),
        ({"at": NOW + 3_600}, OF_ALICE),  # the clock here is an hour behind
        (
            {"subject": {"format": "email", "email": "a@b"}, "event": f"{RISC}account-disabled"},
            {"principal": "User:a@b", "reason": "account-disabled"},
        ),
        (
            {
                "subject": {"format": "complex", "user": ALICE, "tenant": {"format": "opaque"}},
                "event": f"{CAEP}credential-change",
                "details": {"change_type": "revoke", "credential_type": "password"},
                "aud": ["other", "kafka-proxies"],
                "typ": "application/secevent+JWT",
            },
            {"issuer": "https://issuer.test", "subject": "alice", "reason": "credential-change"},
        ),
        (
            {"subject": {"format": "jwt_id", "iss": "i", "jti": "t1"}},
            {"issuer": "i", "jti": "t1", "reason": "session-revoked"},
        ),
        (
            {"subject": ALICE | {"sub": "evil\n\x1b[31m\u202e\ud800"}},
            {
                "issuer": "https://issuer.test",
                "subject": "evil\n\x1b[31m\u202e\ud800",
                "reason": "session-revoked",
            },
        ),
        ({"event": f"{CAEP}credential-change", "details": {"change_type": "create"}}, None),
        ({"event": f"{CAEP}device-compliance-change"}, None),
        ({"event": "https://schemas.openid.net/secevent/ssf/event-type/verification"}, None),
        ({"at": NOW - 100_000}, None),
        ({"details": {"event_timestamp": 1}}, None),
    ],
)
async def test_a_signal_becomes_an_entry_and_is_acknowledged(
    changes: dict[str, Any], entry: dict[str, str] | None, tmp_path: Path
) -> None:
    """Those of other types, and those that are older than every token, need no entry."""

    async with polling(tmp_path) as (receiver, transmitter):
        transmitter.sets["1"] = signal("1", **{"at": NOW} | changes)
        await receiver.poll()
        expected = [] if entry is None else [entry | {"author": "https://idp.test"}]
        assert receiver.listed() == expected
        assert receiver.counts()["ignored" if entry is None else "blocked"] == 1
        assert transmitter.acknowledged == []
        await receiver.poll()
        assert (transmitter.acknowledged, transmitter.errors) == (["1"], {})
        assert receiver.condition().good


@pytest.mark.parametrize(
    ("event_timestamp", "before"),
    [(None, 0), (NOW - 100.5, -101), ((NOW - 9) * 1000, 0), (NOW + 86_400, 0), ("soon", 0)],
    ids=["none", "earlier", "in milliseconds", "in the future", "no number"],
)
async def test_tokens_from_before_the_event_are_blocked(
    event_timestamp: object, before: int, tmp_path: Path
) -> None:
    """The second of the event counts as before it; a time in milliseconds, as of old drafts, or in
    the future becomes that of the SET."""

    async with polling(tmp_path) as (receiver, transmitter):
        details = None if event_timestamp is None else {"event_timestamp": event_timestamp}
        transmitter.sets["1"] = signal("1", NOW, details=details)
        await receiver.poll()
        at = int(NOW) + before if before == 0 else int(NOW - 100.5)

        def is_blocked(issued_at: float) -> bool:
            facts = LoginFacts("https://issuer.test", "alice", "t", issued_at, is_token=True)
            login = Login(Identity("User:alice"), facts, "10.0.0.1", (None, None, None))
            return receiver.blocks().find(login, 0.0, NOW) is not None

        assert [is_blocked(at + seconds) for seconds in (-1, 0, 1)] == [True, True, False]
        (block,) = receiver.blocks().entries.values()
        assert block.ends_at == at + 1 + 86_400


HEAD, PAYLOAD, SIGNATURE = signal("1", NOW).split(".")
NONE = b64url(json.dumps({"alg": "none", "typ": "secevent+jwt"}).encode())
OF_BOB = signal("1", NOW, subject=ALICE | {"sub": "bob"}).split(".")[1]

HOSTILE: dict[str, tuple[object, str]] = {
    "unsigned": (f"{HEAD}.{PAYLOAD}.", "invalid_request"),
    "alg none": (f"{NONE}.{PAYLOAD}.{SIGNATURE}", "authentication_failed"),
    "tampered": (f"{HEAD}.{OF_BOB}.{SIGNATURE}", "authentication_failed"),
    "an access token": (signal("1", NOW, typ="at+jwt"), "invalid_request"),
    "without a type": (signal("1", NOW, typ=None), "invalid_request"),
    "wrong audience": (signal("1", NOW, aud=["kafka", 7]), "invalid_audience"),
    "no audience": (signal("1", NOW, aud=None), "invalid_audience"),
    "wrong issuer": (signal("1", NOW, iss="https://idp.test/"), "invalid_issuer"),
    "issuer is no text": (signal("1", NOW, iss=[]), "invalid_issuer"),
    "another jti": (signal("2", NOW), "invalid_request"),
    "no jti": (signal(None, NOW), "invalid_request"),
    "iat in the future": (signal("1", NOW + 7_200), "invalid_request"),
    "iat is no number": (signal("1", NOW, iat=True), "invalid_request"),
    "no iat": (signal("1", NOW, iat=None), "invalid_request"),
    "huge": ("a" * MAX_CHARACTERS + ".b.c", "invalid_request"),
    "huge subject": (signal("1", NOW, subject=ALICE | {"sub": "x" * 5_000}), "invalid_request"),
    "no text": ({"a": 1}, "invalid_request"),
    "no token": ("\n\x1b[31mevil", "invalid_request"),
    "no events": (signal("1", NOW, events=None), "invalid_request"),
    "events is a list": (signal("1", NOW, events=["x"]), "invalid_request"),
    "an event is a text": (signal("1", NOW, details="x"), "invalid_request"),
    "no subject": (signal("1", NOW, subject=None), "invalid_request"),
    "subject is a list": (signal("1", NOW, subject=[ALICE]), "invalid_request"),
    "format is a list": (signal("1", NOW, subject={"format": ["email"]}), "invalid_request"),
    "unknown format": (signal("1", NOW, subject={"format": "\n\x1b"}), "invalid_request"),
    "no member": (signal("1", NOW, subject={"format": "email"}), "invalid_request"),
    "empty member": (signal("1", NOW, subject=ALICE | {"sub": ""}), "invalid_request"),
    "member is a number": (signal("1", NOW, subject=ALICE | {"sub": 7}), "invalid_request"),
    "session alone": (
        signal("1", NOW, subject={"format": "complex", "session": ALICE}),
        "invalid_request",
    ),
    "claims are no JSON": (token(b"{", typ="secevent+jwt"), "authentication_failed"),
    "unknown key": (signal("1", NOW, key=ed_key()), "invalid_key"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_signal_is_reported_and_changes_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hostile, error = HOSTILE[name]
    caplog.set_level(logging.INFO)
    async with polling(tmp_path) as (receiver, transmitter):
        transmitter.sets |= {"1": hostile, "2": signal("2", NOW)}
        for _ in range(3):
            await receiver.poll()
        assert transmitter.sets == {}
        assert [(jti, one["err"]) for jti, one in transmitter.errors.items()] == [("1", error)]
        assert transmitter.acknowledged == ["2"]
        assert receiver.counts() == {"blocked": 1, "ignored": 0, "refused": 1}
        assert [one["subject"] for one in receiver.listed()] == ["alice"]
        assert receiver.condition().good
        (line,) = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
        assert line.startswith(f"{transmitter.url.removesuffix('?secret')}: refused, jti 1: ")
        assert line.isprintable()
        assert not any(one.exc_info for one in caplog.records)


async def test_many_hostile_signals_are_logged_once_a_minute_and_escaped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with polling(tmp_path) as (receiver, transmitter):
        names = [f"{number}\n\x1b[31m" + "x" * 10_000 for number in range(40)]
        transmitter.sets |= dict.fromkeys(names, "no token")
        for _ in range(3):
            await receiver.poll()
        assert set(transmitter.errors) == set(names)
        (record,) = caplog.records
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 500


async def test_a_replayed_or_older_signal_changes_nothing(tmp_path: Path) -> None:
    """The acknowledgement may have been lost, or an attacker repeats it."""

    async with polling(tmp_path) as (receiver, transmitter):
        for jti, at in (("1", NOW - 50), ("1", NOW - 50), ("0", NOW - 99), ("2", NOW - 9)):
            transmitter.sets[jti] = signal(jti, at)
            await receiver.poll()
            await receiver.poll()
        both = {f"b{number}": signal(f"b{number}", NOW - 9 + number) for number in range(3)}
        transmitter.sets |= both
        await receiver.poll()
        await receiver.poll()
        assert transmitter.acknowledged == ["1", "1", "0", "2", *both]
        (block,) = receiver.blocks().entries.values()
        assert (block.issued_before, block.id) == (int(NOW - 7) + 1, "3")


async def test_nothing_is_acknowledged_before_its_entry_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared list that is missing, such as on a volume that is away, is not created."""

    monkeypatch.setattr(block_file, "MAX_ENTRIES", 3)

    async with polling(tmp_path, file="blocks") as (receiver, transmitter):
        transmitter.sets |= {"1": signal("1", NOW), "2": "bad"}
        for content, problem in (
            (None, "is missing: restore it"),
            (document({"jti": "x"})[:-9], "is incomplete"),
            (document(*[{"jti": "x"}] * 3), "is full: unblock some"),
        ):
            if content is not None:
                receiver.path.write_bytes(content)
            await receiver.poll()
            await receiver.poll()
            assert problem in str(receiver.last_error)
            assert problem in receiver.condition().state
            assert not receiver.condition().good
            assert content is None or receiver.path.read_bytes() == content
        assert (transmitter.acknowledged, transmitter.errors) == ([], {})
        receiver.path.write_bytes(document({"jti": "x"}))
        await receiver.poll()
        await receiver.poll()
        assert (transmitter.acknowledged, list(transmitter.errors)) == (["1"], ["2"])
        assert len(receiver.blocks().entries) == 2
        for text in ("missing", "incomplete"):
            assert sum(text in line for line in caplog.messages) == 1


async def test_responses_are_bounded(tmp_path: Path) -> None:
    async with polling(tmp_path) as (receiver, transmitter):
        transmitter.obeys = False
        subjects = [ALICE | {"sub": f"u{number}"} for number in range(2 * MAX_EVENTS)]
        for number, one in enumerate(subjects):
            transmitter.sets[str(number)] = signal(str(number), NOW, subject=one)
        await receiver.poll()
        assert len(receiver.listed()) == MAX_EVENTS
        await receiver.poll()
        assert len(receiver.listed()) == 2 * MAX_EVENTS
        transmitter.sets |= {f"huge {number}": "x" * 3_000_000 for number in range(2)}
        await receiver.poll()
        assert "more than 2097152 bytes" in str(receiver.last_error)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (503, b"", "HTTP status 503"),
        (302, b"", "HTTP status 302: redirects are not followed, configure where it is"),
        (202, b"{}", "HTTP status 202"),
        (200, b"\n\x1b[31m", "the response has no object `sets`"),
        (200, b'{"sets": []}', "the response has no object `sets`"),
        (200, b'{"sets": {"1": "a", "1": "b"}}', "the response has no object `sets`"),
        (200, b"[" * 100_000, "the response has no object `sets`"),
    ],
)
async def test_failures_are_retried_logged_and_shown(
    status: int, body: bytes, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async with polling(tmp_path) as (receiver, transmitter):
        transmitter.sets["1"] = signal("1", NOW)
        await receiver.poll()
        transmitter.status, transmitter.body = status, body
        waits = []
        for _ in range(8):
            await receiver.poll()
            waits.append(round(receiver.next_refresh(0.0) - time.monotonic()))
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
        assert receiver.last_error == problem
        assert receiver.condition().state.startswith(f"{problem}; last polled ")
        transmitter.status, transmitter.body = 200, b""
        await receiver.poll()
        assert transmitter.acknowledged == ["1"]
        name = transmitter.url.removesuffix("?secret")
        lines = [one.getMessage() for one in caplog.records if one.name == signals.__name__]
        assert lines == [f"{name}: {problem}", f"{name}: polled again"]


async def test_a_provider_that_is_silent_or_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "TIMEOUT_S", 0.2)

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await gone.wait()

    gone = asyncio.Event()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        receiver = Receiver(tmp_path, url)
        await receiver.poll()
        assert receiver.last_error == "no answer within 0.2 seconds"
        gone.set()
    await receiver.poll()
    assert "ConnectionRefusedError" in str(receiver.last_error)


async def test_a_key_that_is_new_is_read_before_a_signal_is_refused(tmp_path: Path) -> None:
    async with polling(tmp_path) as (receiver, transmitter):
        receiver.keys.cache._tried_at = -60.0
        (tmp_path / "jwks.json").write_bytes(jwks(rsa_key().jwk(), ed_key().jwk()))
        transmitter.sets |= {"1": signal("1", NOW, key=ed_key()), "2": signal("2", NOW)}
        await receiver.poll()
        assert receiver.last_error == "signing keys are unknown: read again"
        await receiver.poll()
        await receiver.poll()
        assert (transmitter.acknowledged, transmitter.errors) == (["2", "1"], {})
        receiver.keys.cache._tried_at = -60.0
        (tmp_path / "jwks.json").unlink()
        transmitter.sets["3"] = signal("3", NOW, key=rsa_key("other"))
        for _ in range(3):
            await receiver.poll()
        assert transmitter.errors == {}
        assert "signing keys are unknown: FileNotFoundError" in str(receiver.last_error)


async def test_requests_have_the_token_of_the_file(tmp_path: Path) -> None:
    async with polling(tmp_path) as (receiver, transmitter):
        path = tmp_path / "token"
        receiver._tokens = FileTokens(path)
        await receiver.poll()
        assert receiver.last_error == f"{path} cannot be read: No such file or directory"
        for one in ("first", "second"):
            path.write_text(one)
            await receiver.poll()
        assert transmitter.authorizations == ["Bearer first", "Bearer second"]


async def test_it_polls_again_at_once_while_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "MIN_PAUSE_S", 0.0)

    async with polling(tmp_path) as (receiver, transmitter):
        for number in range(3 * MAX_EVENTS):
            transmitter.sets[str(number)] = signal(str(number), NOW)
        running = asyncio.create_task(receiver.run())
        await until(lambda: len(transmitter.requests) == 3)
        running.cancel()
        assert len(transmitter.acknowledged) == 2 * MAX_EVENTS
        assert transmitter.requests[0] == {"maxEvents": MAX_EVENTS, "returnImmediately": True}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"issuer": "i"}, "block.signals.endpoint.url: is required with the other settings"),
        ({"endpoint.url": "http://idp"}, "block.signals.jwks.endpoint.url: is required with"),
        ({"endpoint.url": "file:x"}, "block.signals.endpoint.url: must be an http"),
        (
            {
                "endpoint.url": "http://idp",
                "jwks.endpoint.url": "file:x",
                "issuer": "i",
                "audience": "a",
                "token.file": "t",
            },
            "block.signals.token.file: needs an https: URL",
        ),
    ],
)
def test_incomplete_settings_are_refused(
    given: dict[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        configured(tmp_path, given)
