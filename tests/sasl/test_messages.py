"""SaslHandshake and SaslAuthenticate, judged by the captured answers of a real broker."""

import re
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.messages import (
    MalformedMessage,
    authenticate_response,
    authenticate_token,
    handshake_mechanism,
    handshake_response,
)
from tests.support.frames import authenticate, handshake, read_authenticated

WIRE = Path(__file__).parent.parent / "proxy/wire/captured"


@pytest.mark.parametrize("version", [0, 1, 2])
@given(data=st.binary(max_size=300), lifetime=st.integers(0, 2**62), error=st.integers(0, 100))
def test_responses_read_as_they_were_written(
    version: int, data: bytes, lifetime: int, error: int
) -> None:
    body = authenticate_response(
        version,
        error_code=error,
        error_message="why",
        auth_bytes=data,
        session_lifetime_ms=lifetime,
    )
    header = b"\0\0\0\1" + (b"\0" if version >= 2 else b"")
    announced = lifetime if version >= 1 else None
    assert read_authenticated(header + body, version) == (error, b"why", data, announced)


@pytest.mark.parametrize("version", [0, 1, 2])
@given(data=st.binary(max_size=300), behind=st.binary(max_size=5))
def test_tokens_are_found_whatever_stands_behind(version: int, data: bytes, behind: bytes) -> None:
    """Bytes behind a body are ignored, as by Kafka."""
    body = authenticate(1, data, version)[4 + 13 + (version >= 2) :]
    assert authenticate_token(version, body + behind) == data


@pytest.mark.parametrize("version", [0, 1, 2])
@given(body=st.binary(max_size=12))
def test_arbitrary_bodies_are_malformed_or_a_token(version: int, body: bytes) -> None:
    with suppress(MalformedMessage):
        assert authenticate_token(version, body) in body
    with suppress(MalformedMessage):
        assert handshake_mechanism(body).encode() in body


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\xff\xff", b"\x7f\xff", b"\0\x02a", b"\0\x01\xff", b"\0\x05PLAI"]
)
def test_malformed_handshakes(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        handshake_mechanism(body)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, b"\xff\xff\xff\xff"),  # null is not allowed
        (1, b"\x7f\xff\xff\xff"),
        (2, b"\0"),
        (2, b"\xff\xff\xff\xff\x0f"),
        (2, b"\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_malformed_tokens(version: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        authenticate_token(version, body)


def test_a_handshake_names_its_mechanism() -> None:
    assert handshake_mechanism(handshake(1, "OAUTHBEARER")[4 + 13 :] + b"more") == "OAUTHBEARER"


@pytest.mark.parametrize("path", sorted(WIRE.glob("sasl_handshake_v*.hex")), ids=lambda p: p.stem)
def test_handshake_answers_are_kafkas_byte_for_byte(path: Path) -> None:
    text = "".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    captured = bytes.fromhex(re.sub(r"\s", "", text))
    at = next(at for at in (0, 4, 8) if _reads_as_handshake(captured[at:]))
    error, mechanisms = _read_handshake(captured[at:])
    assert handshake_response(error, tuple(mechanisms)) == captured[at:]


def _read_handshake(body: bytes) -> tuple[int, list[str]]:
    error, count = struct.unpack_from(">hi", body)
    at, names = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", body, at)
        names.append(body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    assert at == len(body)
    return error, names


def _reads_as_handshake(body: bytes) -> bool:
    try:
        return bool(_read_handshake(body)[1])
    except (AssertionError, struct.error, UnicodeDecodeError):
        return False
