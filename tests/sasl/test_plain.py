"""PLAIN's message, and files of bcrypt hashes."""

import pytest

from sasl.identity import Identity
from sasl.mechanism import Failure, FailureReason, PasswordCheck, Success
from sasl.plain import (
    MAX_LINE_BYTES,
    MAX_PASSWORD_BYTES,
    BadPasswordFile,
    PasswordFile,
    PlainServer,
)

HASH = b"$2y$04$" + b"a" * 53
NOW = 1_000.0


@pytest.mark.parametrize(
    ("message", "user", "password"),
    [
        (b"\0alice\0secret", "alice", b"secret"),
        (b"alice\0alice\0secret", "alice", b"secret"),
        ("\0zoë\0pässword".encode(), "zoë", "pässword".encode()),
        (b"\0alice\0" + b"x" * MAX_PASSWORD_BYTES, "alice", b"x" * MAX_PASSWORD_BYTES),
    ],
)
def test_messages(message: bytes, user: str, password: bytes) -> None:
    check = PlainServer().exchange().step(message, NOW)
    assert isinstance(check, PasswordCheck)
    assert (check.user, check.password) == (user, password)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", FailureReason.BAD_MESSAGE),
        (b"\0alice", FailureReason.BAD_MESSAGE),
        (b"\0\0secret", FailureReason.BAD_MESSAGE),
        (b"\0alice\0", FailureReason.BAD_MESSAGE),
        (b"\0alice\0secret\0", FailureReason.BAD_MESSAGE),
        pytest.param(bytes(524_288), FailureReason.BAD_MESSAGE, id="zeros"),
        (b"\0alice\0\xff", FailureReason.BAD_MESSAGE),
        (b"\0al\rice\0secret", FailureReason.BAD_MESSAGE),
        (b"\0" + b"a" * 256 + b"\0secret", FailureReason.BAD_MESSAGE),
        (b"\0alice\0" + b"x" * (MAX_PASSWORD_BYTES + 1), FailureReason.BAD_MESSAGE),
        (b"bob\0alice\0secret", FailureReason.BAD_CREDENTIALS),
    ],
)
def test_invalid_messages(message: bytes, reason: FailureReason) -> None:
    exchange = PlainServer().exchange()
    step = exchange.step(message, NOW)
    assert isinstance(step, Failure)
    assert step.reason is reason
    again = exchange.step(b"\0alice\0secret", NOW)
    assert isinstance(again, Failure)
    assert again.reason is FailureReason.ILLEGAL_STATE


@pytest.mark.parametrize(
    "verdict",
    [
        Success(data=b"", identity=Identity("User:alice"), credential_deadline=None),
        Failure(reason=FailureReason.BAD_CREDENTIALS),
        None,
    ],
)
def test_the_verdict_ends_the_exchange(verdict: Success | Failure | None) -> None:
    """A check that could not be made is a failure."""
    exchange = PlainServer().exchange()
    check = exchange.step(b"\0alice\0secret", NOW)
    assert isinstance(check, PasswordCheck)
    check.verdict = verdict
    expected = verdict or Failure(reason=FailureReason.BAD_CREDENTIALS)
    assert exchange.step(b"\0alice\0secret", NOW) == expected
    ended = exchange.step(b"\0alice\0secret", NOW)
    assert isinstance(ended, Failure)
    assert ended.reason is FailureReason.ILLEGAL_STATE


def test_a_file() -> None:
    content = b"# users\n\nalice:%b\r\nzo\xc3\xab:%b\n" % (HASH, HASH.replace(b"2y", b"2b"))
    users = PasswordFile.parse(content)
    assert users.find("alice") == HASH
    assert users.find("zoë") == HASH.replace(b"2y", b"2b")
    assert users.find("bob") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no user"),
        (b"# nobody\n", "has no user"),
        (b"alice\n", "line 1"),
        (b"\nalice:secret\n", "line 2"),
        (b"alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n", "line 1"),
        (b"alice:" + HASH.replace(b"$04", b"$31"), "line 1"),
        (b"alice:" + HASH + b":x\n", "line 1"),
        (b"al\tice:" + HASH, "line 1"),
        (b"a" * MAX_LINE_BYTES + b":" + HASH, "line 1"),
        (b"x" * 1_000_000, "line 1"),
        (b"alice:%b\nalice:%b\n" % (HASH, HASH), "user of line 2 twice"),
    ],
)
def test_invalid_files(content: bytes, problem: str) -> None:
    """Their error repeats nothing of them."""
    with pytest.raises(BadPasswordFile, match=problem) as bad:
        PasswordFile.parse(content)
    assert len(str(bad.value)) < 150
    assert "secret" not in str(bad.value)


def test_the_decoy_of_a_name_is_always_the_same_and_anybody_s() -> None:
    """Costs differ between users, and a name that does not exist must have one of them."""
    hashes = {f"user{n}": b"%d" % n for n in range(10)}
    users = PasswordFile(hashes)
    decoys = {name: users.decoy(name, b"key") for name in map(str, range(100))}
    assert set(decoys.values()) == set(hashes.values())
    assert decoys == {name: users.decoy(name, b"key") for name in decoys}
    assert decoys != {name: users.decoy(name, b"another") for name in decoys}
