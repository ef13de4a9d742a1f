"""Checks of PLAIN's passwords: their cost, their turns, and what remains of a password."""

import asyncio
from functools import partial
from pathlib import Path

import bcrypt
import pytest

from proxy.worker import passwords
from proxy.worker.identity_services import FileService, read_passwords
from proxy.worker.passwords import CACHE_SECONDS, THREADS, PasswordService, htpasswd
from sasl.identity import Identity
from sasl.mechanism import Failure, FailureReason, PasswordCheck, Success
from tests.support.frames import authenticate, handshake, metadata, read_authenticated
from tests.support.processes import until
from tests.support.relay import listen, read_frame, ssl_listener
from tests.support.tls import AUTHORITY, client_context

REFUSED = Failure(reason=FailureReason.BAD_CREDENTIALS)
SECRET = b"secret"


class Directory:
    """Counts checks; the password of everybody is `secret`. A check waits while it is closed."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def verify(self, user: str, password: bytes) -> tuple[str, ...] | Failure:
        self.checked.append(user)
        await self.open.wait()
        return ("Group:staff",) if password == SECRET else REFUSED


def service_of(directory: Directory, lifetime: float = 3_600.0) -> PasswordService:
    return PasswordService(
        directory.verify,
        lambda user, groups: Identity(f"User:{user}", groups),
        lambda _: lifetime,
        THREADS,
    )


async def verdict(
    service: PasswordService, user: str = "alice", password: bytes = SECRET, owner: str = "a"
) -> Success | Failure | None:
    check = PasswordCheck(user, password)
    await service.check(object(), owner, check)
    assert check.password == b"", "no password outlives its check"
    return check.verdict


async def test_a_check_that_began_before_a_change_is_not_known_after_it() -> None:
    directory = Directory()
    service = service_of(directory)
    directory.open.clear()
    check = asyncio.create_task(verdict(service))
    await until(lambda: directory.checked == ["alice"])
    service.forget()
    directory.open.set()
    assert isinstance(await check, Success)
    await verdict(service)
    assert directory.checked == ["alice", "alice"]


@pytest.mark.parametrize(("lifetime", "known_for"), [(10.0, 5.0), (float("inf"), CACHE_SECONDS)])
async def test_a_right_password_is_known_for_less_than_a_lifetime(
    lifetime: float, known_for: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, now = Directory(), [0.0]
    monkeypatch.setattr(passwords, "monotonic", lambda: now[0])
    alice = Success(
        data=b"", identity=Identity("User:alice", ("Group:staff",)), credential_deadline=None
    )
    service = service_of(directory, lifetime)
    for when, checks in ((0.0, 1), (known_for - 0.1, 1), (known_for, 2)):
        now[0] = when
        assert await verdict(service) == alice
        assert len(directory.checked) == checks
    assert await verdict(service, password=b"wrong") == REFUSED
    assert await verdict(service, password=b"wrong") == REFUSED
    assert len(directory.checked) == 4, "failures are never known"
    service.forget()
    await verdict(service)
    assert len(directory.checked) == 5
    assert SECRET not in repr(service._right).encode()


async def test_addresses_take_turns_in_few_threads() -> None:
    directory = Directory()
    directory.open.clear()
    service = service_of(directory)
    guesses = [asyncio.create_task(verdict(service, f"guess{n}", b"wrong")) for n in range(10)]
    await until(lambda: len(directory.checked) == THREADS)
    other = asyncio.create_task(verdict(service, "alice", owner="b"))
    await asyncio.sleep(0)
    directory.open.set()
    await asyncio.gather(*guesses, other)
    assert directory.checked.index("alice") < len(guesses) - 1
    assert service._slots.taken == 0


async def test_many_logins_of_one_user_are_one_check() -> None:
    """When a broker restarts, all connections of an application log in."""
    directory = Directory()
    directory.open.clear()
    service = service_of(directory)
    logins = [asyncio.create_task(verdict(service)) for _ in range(50)]
    await until(lambda: len(directory.checked) == THREADS)
    directory.open.set()
    assert {type(one) for one in await asyncio.gather(*logins)} == {Success}
    assert len(directory.checked) == THREADS


async def test_a_client_that_leaves_is_not_checked_but_keeps_its_thread() -> None:
    directory = Directory()
    directory.open.clear()
    service = service_of(directory)
    clients = [object() for _ in range(THREADS + 1)]
    checks = [PasswordCheck(f"u{n}", b"wrong") for n, _ in enumerate(clients)]
    tasks = [
        asyncio.create_task(service.check(client, "a", check))
        for client, check in zip(clients, checks, strict=True)
    ]
    await until(lambda: len(directory.checked) == THREADS)
    for client in clients:
        service.leave(client)
    await until(lambda: tasks[-1].done())
    assert checks[-1].verdict is None
    assert service._slots.taken == THREADS, "checks are not interrupted"
    directory.open.set()
    await asyncio.gather(*tasks)
    assert (len(directory.checked), service._slots.taken) == (THREADS, 0)


# A file of bcrypt hashes


def write_users(path: Path, **users: bytes) -> Path:
    lines = [b"%b:%b" % (user.encode(), hashed) for user, hashed in users.items()]
    path.write_bytes(b"\n".join(lines))
    return path


def hashed(password: bytes, cost: int = 4) -> bytes:
    return bcrypt.hashpw(password, bcrypt.gensalt(cost)).replace(b"$2b", b"$2y")


async def never() -> None:
    raise AssertionError


LONG = b"x" * 80


async def test_users_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt costs one check. bcrypt alone would accept 72 bytes of a longer password."""
    path = write_users(
        tmp_path / "users", alice=hashed(SECRET), bob=hashed(SECRET, 5), long=hashed(LONG[:72])
    )
    checks: list[bytes] = []
    original = bcrypt.checkpw

    def counted(password: bytes, against: bytes) -> bool:
        checks.append(against)
        return original(password, against)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    file = FileService(path, partial(read_passwords, path), never)
    verify = htpasswd(file, b"key")
    for user, password, is_right in (
        ("alice", SECRET, True),
        ("bob", SECRET, True),
        ("long", LONG[:72], True),
        ("alice", b"wrong", False),
        ("carol", SECRET, False),
        ("long", LONG, False),
    ):
        checks.clear()
        found = await verify(user, password)
        assert (found == ()) is is_right
        assert len(checks) == 1
        if isinstance(found, Failure):
            assert (found.reason, found.claimed) == (FailureReason.BAD_CREDENTIALS, user)
            assert found.detail == ("unknown user" if user == "carol" else "")
    assert checks


async def test_a_user_that_is_removed_fails_at_the_next_re_authentication(directory: Path) -> None:
    path = write_users(directory / "users", alice=hashed(SECRET), bob=hashed(b"other"))
    given = ssl_listener(security_protocol="SASL_SSL", sasl_plain_htpasswd_file="users") | {
        "sasl.enabled.mechanisms": ["PLAIN"],
        "connections.max.reauth.ms": 3_600_000,
    }
    async with listen(directory, given) as running:
        file = running.listener.password_file
        assert file is not None
        reader, writer = await running.connect(client_context(AUTHORITY))

        async def log_in(password: bytes) -> tuple[int, int | None]:
            writer.write(handshake(1, "PLAIN") + authenticate(2, b"\0alice\0" + password))
            await read_frame(reader)
            error, _, _, lifetime = read_authenticated(await read_frame(reader), 1)
            return error, lifetime

        assert await log_in(SECRET) == (0, 3_600_000)
        connection = running.connection
        assert connection.principal == "User:alice"
        writer.write(metadata(3))
        await read_frame(reader)
        connection.session._reauthentication_began = -1.0
        assert await log_in(SECRET) == (0, 3_600_000)
        write_users(path, bob=hashed(b"other"))
        await file.refresh()
        connection.session._reauthentication_began = -1.0
        error, _ = await log_in(SECRET)
        assert error == 58
        assert await reader.read() == b""
        assert connection.authentication._waiting_content == b""
