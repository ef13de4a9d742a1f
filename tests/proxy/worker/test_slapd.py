"""Passwords and groups of a real directory, OpenLDAP's slapd, that changes while clients are
connected."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import uvloop

from proxy.process.connectivity import _identity_services
from proxy.worker import directory as directories
from proxy.worker.directory import Directory
from sasl.mechanism import Failure, FailureReason
from tests.support.frames import authenticate, handshake, metadata, read_authenticated
from tests.support.processes import PATIENCE_SECONDS
from tests.support.relay import listen, read_frame, settings_of
from tests.support.slapd import (
    ADMIN_PASSWORD,
    ALICE,
    PEOPLE,
    READER,
    SECRET,
    SUFFIX,
    Slapd,
    person,
    running_slapd,
)
from tests.support.tls import AUTHORITY, OURS, client_context

pytestmark = pytest.mark.slow


@pytest.fixture
def slapd(directory: Path) -> Iterator[Slapd]:
    people = {name: f"uid={name},{PEOPLE}" for name in ("alice", "bob", "zoë")}
    people |= {",ou=x": f"uid=\\2cou\\3dx,{PEOPLE}", "a*(b)": f"uid=a*(b),{PEOPLE}"}
    people |= {"deep": f"uid=deep,ou=more,{PEOPLE}"}
    accounts = [person(dn, name) for name, dn in people.items()]
    accounts += [person(f"cn={cn},{PEOPLE}", "twice", cn=cn) for cn in ("first", "second")]
    with running_slapd(directory, OURS.pem, *accounts) as slapd:
        yield slapd


GROUPS = f"ou=groups,{SUFFIX}"
AS_READER = {"sasl_plain_ldap_bind_dn": READER, "sasl_plain_ldap_bind_password": "file:reader"}
IS_WRONG = FailureReason.BAD_CREDENTIALS
IS_AWAY = FailureReason.DIRECTORY_UNAVAILABLE


def checked(slapd: Slapd, *logins: tuple[str, bytes], **more: str) -> list[object]:
    """The groups of each user, or the reason of the failure."""

    async def run() -> list[object]:
        directory = slapd.directory(**more)
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                found = [await directory.verify(*login) for login in logins]
            finally:
                directory.close()
        return [one.reason if isinstance(one, Failure) else one for one in found]

    return uvloop.run(run())


HOSTILE = (
    "*",
    "alic*",
    ")(uid=*",
    "alice)(uid=*",
    ",ou=x",
    "a*(b)",
    "alice,ou=more",
    "zoë",
    "\\61lice",
)


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
@pytest.mark.parametrize("account", [{}, AS_READER])
def test_passwords_names_and_groups(slapd: Slapd, scheme: str, account: dict[str, str]) -> None:
    """A directory ignores case, blanks and forms of letters: `ALICE` would be another principal."""
    logins = [
        ("alice", SECRET),
        ("alice", b"wrong"),
        ("alice", SECRET),
        ("bob", SECRET),
        ("carol", SECRET),
        *((name, SECRET) for name in ("ALICE", " alice", "alice ", "\uff41lice")),
        *((name, SECRET) for name in HOSTILE),
    ]
    both, bobs = ("Group:analysts", "Group:auditors"), ("Group:analysts", "Group:interns")
    found = checked(slapd, *logins, scheme=scheme, sasl_plain_ldap_groups_dn=GROUPS, **account)
    assert [sorted(one) if isinstance(one, tuple) else one for one in found[:4]] == [
        [*both],
        IS_WRONG,
        [*both],
        [*bobs],
    ]
    assert {*found[4:9]} == {IS_WRONG}
    exist = {",ou=x", "a*(b)", "zoë"}
    assert found[9:] == [() if name in exist else IS_WRONG for name in HOSTILE]


def test_entries_below(slapd: Slapd) -> None:
    """A user that is two entries has no password that is right for both."""
    logins = [("deep", SECRET), ("deep", b"wrong"), ("twice", SECRET)]
    assert checked(slapd, *logins) == [IS_WRONG] * 3
    assert checked(slapd, *logins, **AS_READER) == [(), IS_WRONG, IS_WRONG]


def test_settings_that_are_wrong_fail_closed(slapd: Slapd) -> None:
    login = ("alice", SECRET)
    for more, reason in (
        ({"sasl_plain_ldap_groups_dn": f"ou=teams,{SUFFIX}"}, FailureReason.BAD_GROUPS),
        ({"sasl_plain_ldap_groups_dn": f"ou=none,{SUFFIX}"}, IS_AWAY),
        ({"sasl_plain_ldap_groups_dn": f"ou=elsewhere,{SUFFIX}"}, IS_AWAY),
        ({"sasl_plain_ldap_groups_dn": SUFFIX}, IS_AWAY),
        ({"sasl_plain_ldap_user_dn": f"uid=$(user),ou=elsewhere,{SUFFIX}"}, IS_WRONG),
        (AS_READER | {"sasl_plain_ldap_bind_password": "file:admin"}, IS_AWAY),
        (AS_READER | {"sasl_plain_ldap_bind_password": "env:NOT_SET"}, IS_AWAY),
    ):
        assert checked(slapd, login, **more) == [reason], more


def test_a_trial_connection(slapd: Slapd) -> None:
    """As by `config check --connect`: without a user's password."""

    async def tried(**more: str) -> list[str]:
        settings = settings_of(slapd.folder, slapd.settings(**more))[0]
        return [str(one) async for one in _identity_services("listeners[0]", settings)]

    assert uvloop.run(tried()) == [f"ldaps://localhost:{slapd.port} answers"]
    takes = f"ldaps://localhost:{slapd.port} answers, and takes {READER}"
    assert uvloop.run(tried(**AS_READER)) == [takes]
    wrong = AS_READER | {"sasl_plain_ldap_bind_password": "file:admin"}
    (problem,) = uvloop.run(tried(**wrong))
    assert problem.startswith("listeners[0].sasl.plain.ldap.url: ldaps://localhost:")
    assert f" refuses {READER}: result code 49, " in problem
    assert ADMIN_PASSWORD not in problem


async def test_an_account_that_ends_while_its_client_is_connected(slapd: Slapd) -> None:
    """Until its next re-authentication, which the cache never shortens."""
    given = slapd.settings(sasl_plain_ldap_groups_dn=GROUPS) | {
        "connections.max.reauth.ms": 3_600_000
    }
    async with listen(slapd.folder, given) as running:
        service = running.listener.passwords
        assert service is not None

        async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await running.connect(client_context(AUTHORITY))
            assert await log_in(reader, writer, SECRET) == 0
            writer.write(metadata(3))
            await read_frame(reader)
            return reader, writer

        async def log_in(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: bytes
        ) -> int:
            for client in running.listener.clients:
                if client.connection is not None:
                    client.connection.session._reauthentication_began = -1.0
            writer.write(handshake(1, "PLAIN") + authenticate(2, b"\0alice\0" + password))
            await read_frame(reader)
            return read_authenticated(await read_frame(reader), 1)[0]

        first, second, third = [await connected() for _ in range(3)]
        (groups,) = {
            client.connection.authentication.identity.groups
            for client in running.listener.clients
            if client.connection is not None and client.connection.authentication.identity
        }
        assert groups == ("Group:analysts", "Group:auditors")
        service.forget()
        assert await log_in(*first, SECRET) == 0
        await slapd.replace(ALICE, "pwdAccountLockedTime", "000001010000Z")
        service.forget()
        assert await log_in(*first, SECRET) == 58
        await slapd.replace(ALICE, "pwdAccountLockedTime")
        assert await log_in(*second, SECRET) == 0
        await slapd.replace(ALICE, "userPassword", "another")
        service.forget()
        assert await log_in(*second, SECRET) == 58
        assert await log_in(*third, b"another") == 0
        await slapd.delete(ALICE)
        service.forget()
        assert await log_in(*third, b"another") == 58
        for _, writer in (first, second, third):
            writer.close()
        service._verify.__self__.close()  # type: ignore[attr-defined]  # a method


async def test_a_directory_that_stops(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts connections for it all the same. Idle connections hang, too."""
    warnings: list[str] = []
    settings = settings_of(slapd.folder, slapd.settings())[0]
    with closing(Directory(settings, warnings.append)) as directory:
        assert await directory.verify("alice", SECRET) == ()
        slapd.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitpid, slapd.process.pid, os.WUNTRACED)
        monkeypatch.setattr(directories, "TIMEOUT", 0.5)
        for _ in range(2):
            found = await directory.verify("alice", SECRET)
            assert isinstance(found, Failure)
            assert found.reason is IS_AWAY
        slapd.process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(directories, "TIMEOUT", PATIENCE_SECONDS)
        assert await directory.verify("alice", SECRET) == ()
        slapd.process.kill()
        await asyncio.to_thread(slapd.process.wait)
        found = await directory.verify("alice", SECRET)
        assert isinstance(found, Failure)
        assert found.detail.startswith("cannot be reached: ")
    assert [one.partition(" ")[2] for one in warnings[:2]] == ["has not answered within 0.5 s"] * 2
