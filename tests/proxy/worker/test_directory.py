"""Checks of passwords at a directory that hangs, lies or breaks the protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.errors import ConfigError
from proxy.process.preflight import _checks_of_directory
from proxy.worker import directory as directories
from proxy.worker.directory import MAX_MESSAGE_BYTES, Directory, element, elements, escaped
from sasl.mechanism import Failure, FailureReason
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import settings_of, ssl_listener
from tests.support.tls import OTHER, OURS, server_context

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SECRET = b"secret"
SERVER = server_context(OURS)


@pytest.mark.parametrize(
    ("user", "in_a_dn"),
    [
        ("alice", "alice"),
        ("a.b c", "a\\2eb\\20c"),
        ("*", "\\2a"),
        (")(uid=*", "\\29\\28uid\\3d\\2a"),
        (',ou=admins+cn="x"<>;\\#', "\\2cou\\3dadmins\\2bcn\\3d\\22x\\22\\3c\\3e\\3b\\5c\\23"),
        ("a\0b", "a\\00b"),
        ("zoë", "zo\\c3\\ab"),
    ],
)
def test_names_in_a_dn(user: str, in_a_dn: str) -> None:
    assert escaped(user) == in_a_dn


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_elements_that_are_written_can_be_read(size: int) -> None:
    content = bytes(size)
    assert list(elements(element(4, content) + element(0x30))) == [(4, content), (0x30, b"")]
    for cut in range(min(6 + size, 20)):
        with pytest.raises(ValueError, match=r"incomplete|unpack|not enough"):
            (_,) = elements(element(4, content)[:cut])


def test_lengths_of_other_forms() -> None:
    assert list(elements(b"\x04\x01a\x04\x81\x01b\x04\x82\x00\x01c")) == [
        (4, b"a"),
        (4, b"b"),
        (4, b"c"),
    ]


def result(tag: int, code: int, text: bytes = b"", number: int = 1) -> bytes:
    content = element(10, bytes([code])), element(4), element(4, text)
    return element(0x30, element(2, bytes([number])), element(tag, *content))


def answers(*written: bytes) -> Handler:
    """Send the bytes, one part for each message of the client."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for one in written:
            if not await reader.read(65_536):
                return
            writer.write(one)
        await reader.read()

    return handle


@asynccontextmanager
async def serving(
    folder: Path, handler: Handler, warn: Callable[[str], None], scheme: str = "ldaps", **more: str
) -> AsyncIterator[Directory]:
    """A directory whose server handles each connection; without TLS if `scheme` is not ldaps."""
    tls = SERVER if scheme == "ldaps" else None
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    url = f"{scheme.partition(' ')[0]}://localhost:{server.sockets[0].getsockname()[1]}"
    directory = Directory(settings(folder, url, **more), warn)
    async with server, asyncio.timeout(PATIENCE_SECONDS):
        try:
            yield directory
        finally:
            directory.close()


def found(
    folder: Path, handler: Handler, *, scheme: str = "ldaps", password: bytes = SECRET, **more: str
) -> tuple[tuple[str, ...] | Failure, list[str]]:
    """What a check of alice's password results in, and the warnings."""
    warnings: list[str] = []

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handler(reader, writer)
        writer.close()
        closed.set()

    closed = asyncio.Event()

    async def run() -> tuple[str, ...] | Failure:
        async with serving(folder, handled, warnings.append, scheme, **more) as directory:
            try:
                return await directory.verify("alice", password)
            finally:
                directory.close()
                if scheme == "ldap":
                    await closed.wait()

    return uvloop.run(run()), warnings


def settings(folder: Path, url: str, **more: str) -> Any:
    given: dict[str, Any] = ssl_listener(
        security_protocol="SASL_SSL",
        sasl_plain_ldap_url=url,
        sasl_plain_ldap_user_dn="uid=$(user),ou=people,dc=example,dc=com",
        **({"sasl_plain_ldap_ssl_truststore_location": "ca.pem"} | more),
    )
    return settings_of(folder, given | {"sasl.enabled.mechanisms": ["PLAIN"]})[0]


def test_files_that_a_start_refuses(directory: Path) -> None:
    """Not only the first login."""
    (directory / "empty").write_text("")
    account = {"sasl_plain_ldap_bind_dn": "cn=a", "sasl_plain_ldap_bind_password": "file:empty"}
    for more, problem in (
        ({"sasl_plain_ldap_ssl_truststore_location": "none.pem"}, "cannot be read"),
        (
            {"sasl_plain_ldap_ssl_truststore_location": "empty"},
            "truststore.location: .*certificate",
        ),
        (account, "bind.password: .* holds no secret"),
    ):
        checks = list(_checks_of_directory(settings(directory, "ldaps://h", **more), "ldap"))
        with pytest.raises(ConfigError, match=problem):
            checks[0]()


BOUND, ENTRY, REFERENCE, SEARCHED = 0x61, 0x64, 0x73, 0x65


def entry(values: list[bytes], number: int = 2, kind: bytes = b"uid") -> bytes:
    attribute = element(0x30, element(4, kind), element(0x31, *(element(4, v) for v in values)))
    content = element(4, b"uid=alice,ou=people"), element(0x30, attribute)
    return element(0x30, element(2, bytes([number])), element(ENTRY, *content))


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
def test_a_right_password(directory: Path, scheme: str) -> None:
    """The same user may have another form of attribute's name, and more values."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scheme == "ldap":
            await reader.read(65_536)
            writer.write(result(0x78, 0))
            await writer.start_tls(SERVER)
        first = 2 if scheme == "ldap" else 1
        await reader.read(65_536)
        writer.write(result(BOUND, 0, number=first))
        await reader.read(65_536)
        there = entry([b"alice", b"al"], first + 1, b"UID")
        writer.write(there + result(SEARCHED, 0, number=first + 1))

    assert found(directory, handle, scheme=scheme) == ((), [])


def test_an_empty_password_is_refused_without_the_directory(directory: Path) -> None:
    """RFC 4513 section 5.1: the bind would succeed."""
    accepted = answers(result(BOUND, 0), entry([b"alice"]) + result(SEARCHED, 0, number=2))
    assert found(directory, accepted) == ((), [])
    verdict, _ = found(directory, accepted, password=b"")
    assert isinstance(verdict, Failure)
    assert verdict.detail == "the name or the password is empty"


def test_what_comes_before_tls_is_not_read_after_it(directory: Path) -> None:
    """A man in the middle could otherwise send the answers of the directory."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(
            result(0x78, 0)
            + result(BOUND, 0, number=2)
            + entry([b"alice"], 3)
            + result(SEARCHED, 0, number=3)
        )
        await writer.start_tls(SERVER)
        await reader.read(65_536)
        writer.write(result(BOUND, 49, number=2))

    verdict, _ = found(directory, handle, scheme="ldap")
    assert isinstance(verdict, Failure)


INVALID = "ended the connection, or sent an invalid message"
YES, NONE_FOUND = result(BOUND, 0), result(SEARCHED, 0, number=2)


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ([result(BOUND, 49, b"data 775\n")], r"result code 49, 'data 775\n'"),
        (
            [result(BOUND, 49, b"not Secret")],
            "result code 49, '(the response is not shown: it repeats a secret)'",
        ),
        ([YES, NONE_FOUND], "0 of 0 entries have exactly this name"),
        ([YES, entry([b"Alice"]) + NONE_FOUND], "0 of 1 entries have exactly this name"),
    ],
)
def test_refusals(directory: Path, written: list[bytes], detail: str) -> None:
    verdict, warnings = found(directory, answers(*written))
    assert isinstance(verdict, Failure)
    expected = (FailureReason.BAD_CREDENTIALS, "alice", detail)
    assert (verdict.reason, verdict.claimed, verdict.detail) == expected
    assert not warnings


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ([result(BOUND, 10)], "cannot check passwords: result code 10, ''"),
        ([result(BOUND, 14)], "cannot check passwords: result code 14, ''"),
        ([result(BOUND, 0, number=2)], INVALID),
        ([result(0x78, 52, number=0)], INVALID),
        ([result(SEARCHED, 0)], INVALID),
        ([entry([b"alice"], 1)], INVALID),
        ([YES, entry([b"alice"]) * 600], INVALID),
        (
            [YES, result(SEARCHED, 50, number=2)],
            "cannot search uid=alice,ou=people,dc=example,dc=com: result code 50, ''",
        ),
        ([b"\x30\x02\x02\x01\x01"], INVALID),
        ([b"\x30\x03\x02\x05\x01"], INVALID),
        ([b"HTTP/1.1 400 Bad Request\r\n"], INVALID),
        ([b"\x30\x84" + (MAX_MESSAGE_BYTES + 1).to_bytes(4)], INVALID),
        ([b"\x30\xff" + b"\xff" * 127], INVALID),
    ],
)
def test_faults(directory: Path, written: list[bytes], detail: str) -> None:
    verdict, (warning,) = found(directory, answers(*written))
    assert isinstance(verdict, Failure)
    expected = (FailureReason.DIRECTORY_UNAVAILABLE, "alice", detail)
    assert (verdict.reason, verdict.claimed, verdict.detail) == expected
    assert warning.startswith("ldaps://localhost:")
    assert warning.endswith(detail)


def test_the_password_is_never_sent_to_another_server(directory: Path) -> None:
    OTHER.write(directory, "other.pem")
    received: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    verdict, (warning,) = found(
        directory, handle, sasl_plain_ldap_ssl_truststore_location="other.pem"
    )
    assert isinstance(verdict, Failure)
    assert verdict.reason is FailureReason.DIRECTORY_UNAVAILABLE
    assert "certificate" in warning
    refused, _ = found(directory, answers(result(0x78, 2, b"unknown")), scheme="ldap")
    assert isinstance(refused, Failure)
    assert refused.detail == "refuses StartTLS: result code 2, 'unknown'"
    assert not any(SECRET in one for one in received)


@pytest.mark.parametrize("hang", ["before TLS", "StartTLS", "bind"])
async def test_a_directory_that_hangs(
    directory: Path, hang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libldap would wait for the handshake forever."""
    monkeypatch.setattr(directories, "TIMEOUT", 0.2)
    warnings: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if hang == "StartTLS":
            await reader.read(65_536)
            writer.write(result(0x78, 0))
        await reader.read(65_536)
        await reader.read()
        writer.close()

    scheme = {"bind": "ldaps", "StartTLS": "ldap"}.get(hang, "ldaps without TLS")
    async with serving(directory, handle, warnings.append, scheme) as one:
        verdict = await one.verify("alice", SECRET)
        assert isinstance(verdict, Failure)
        assert verdict.detail == "has not answered within 0.2 s"
        assert not one._idle
    assert len(warnings) == 1


async def test_an_idle_connection_is_used_again_until_it_is_closed(
    directory: Path,
) -> None:
    opened: list[asyncio.StreamWriter] = []
    binds: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        number = 0
        while await reader.read(65_536):
            number += 1
            binds.append(number)
            writer.write(result(BOUND, 49, number=number))

    async with serving(directory, handle, lambda _: None) as one:

        async def refused() -> None:
            verdict = await one.verify("alice", SECRET)
            assert isinstance(verdict, Failure)
            assert verdict.reason is FailureReason.BAD_CREDENTIALS

        for _ in range(3):
            await refused()
        assert (binds, len(opened)) == ([1, 2, 3], 1)
        (idle,) = one._idle
        opened[0].close()
        await until(lambda: not idle.is_usable)
        await refused()
        opened[1].transport.abort()  # perhaps unnoticed
        await refused()
        assert len(opened) == 3
        one._idle[0].used_at = -directories.MAX_IDLE_SECONDS
        await refused()
        assert len(opened) == 4
        one.close()
        assert not one._idle
