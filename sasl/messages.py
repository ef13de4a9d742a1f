"""Bodies of SaslHandshake v0-v1 and SaslAuthenticate v0-v2, and the messages of OAUTHBEARER.

Written by hand because every connection begins with them, authenticated or not: they must be cheap,
and workers then do without a schema library, which takes 16 MiB of memory.

OAUTHBEARER (RFC 7628 section 3) is read in Kafka's grammar: according to Kafka 4.1's
`OAuthBearerClientInitialResponse`, the GS2 header is `n,` (no channel binding), names of extensions
are letters only, and the scheme is case-insensitive and may be followed by several blanks.
"""

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from sasl.scram_messages import decode_saslname

SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
API_VERSIONS = 18

SASL_HANDSHAKE_VERSIONS = range(2)
SASL_AUTHENTICATE_VERSIONS = range(3)
FIRST_FLEXIBLE_SASL_AUTHENTICATE = 2
FIRST_SASL_AUTHENTICATE_WITH_LIFETIME = 1
"""First version whose response ends with session_lifetime_ms (KIP-368)."""

NONE = 0
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
SASL_AUTHENTICATION_FAILED = 58

MAX_RESPONSE_BYTES: Final = 524_288
"""Maximum size of a response to a login in bytes: the default of `sasl.server.max.receive.size`."""
MAX_MECHANISMS = 64
"""Maximum number of a server's mechanisms that are read."""
MAX_TAGS = 16
"""Maximum number of tagged fields of a response that is passed on; Kafka defines no fields yet."""
MAX_PAIRS: Final = 64
"""Maximum number of pairs in a message, including the token. Kafka has no such bound: half a
megabyte of separators, which any client may send, would delay all connections by a tenth of a
second."""

_GS2_HEADER: Final = re.compile(r"n,(?:a=(?P<authzid>(?:[^\0=,]|=2C|=3D)+))?,")
_PAIR: Final = re.compile(r"(?P<name>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_SEPARATOR: Final = "\x01"
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class MalformedMessage(ValueError):
    """The body does not have the format of its API and version."""


def handshake_mechanism(body: bytes) -> str:
    """Return the mechanism in a SaslHandshake request; bytes after it are ignored, as in Kafka.

    Raises MalformedMessage.
    """
    try:
        (length,) = _SHORT.unpack_from(body)
        return _slice(body, 2, length).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage from error


@lru_cache(maxsize=64)
def handshake_response(error_code: int, mechanisms: tuple[str, ...]) -> bytes:
    """Return the body of a SaslHandshake response, the same in v0 and v1."""
    names = [name.encode() for name in mechanisms]
    parts = [_SHORT.pack(error_code), _INT.pack(len(names))]
    for name in names:
        parts += (_SHORT.pack(len(name)), name)
    return b"".join(parts)


def authenticate_token(version: int, body: bytes) -> bytes:
    """Return the token in a SaslAuthenticate request, which no version allows to be null.

    Raises MalformedMessage.
    """
    try:
        if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
            length, start = _uvarint(body)
            return _slice(body, start, length - 1)
        (length,) = _INT.unpack_from(body)
        return _slice(body, 4, length)
    except (struct.error, IndexError) as error:
        raise MalformedMessage from error


def authenticate_response(
    version: int,
    *,
    error_code: int = NONE,
    error_message: str | None = "",
    auth_bytes: bytes = b"",
    session_lifetime_ms: int = 0,
) -> bytes:
    """Return the body of a SaslAuthenticate response; a lifetime of 0 means "no expiry" (v1+).

    The message of a success is empty, not null, as in Kafka.
    """
    message = None if error_message is None else error_message.encode()
    parts = [_SHORT.pack(error_code)]
    if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
        parts += _compact(message), _compact(auth_bytes)
    else:
        parts += _SHORT.pack(-1 if message is None else len(message)), message or b""
        parts += _INT.pack(len(auth_bytes)), auth_bytes
    if version >= FIRST_SASL_AUTHENTICATE_WITH_LIFETIME:
        parts.append(_LONG.pack(session_lifetime_ms))
    if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
        parts.append(b"\0")
    return b"".join(parts)


def handshake_request(mechanism: str) -> bytes:
    """Return the body of a SaslHandshake request, the same in v0 and v1."""
    name = mechanism.encode()
    return _SHORT.pack(len(name)) + name


def read_handshake_response(body: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the error code of a SaslHandshake response, and the server's mechanisms.

    Raises MalformedMessage.
    """
    try:
        error_code, count = struct.unpack_from(">hi", body)
        names, at = [], 6
        for _ in range(min(count, MAX_MECHANISMS)):
            (length,) = _SHORT.unpack_from(body, at)
            names.append(_slice(body, at + 2, length).decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage from error
    return error_code, tuple(names)


def authenticate_request(version: int, token: bytes) -> bytes:
    """Return the body of a SaslAuthenticate request."""
    if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
        return _compact(token) + b"\0"
    return _INT.pack(len(token)) + token


class AuthenticateResponse(NamedTuple):
    """Response of a server to a token."""

    error_code: int
    error_message: str
    """Message of the server; empty if it is null."""
    auth_bytes: bytes
    session_lifetime_ms: int
    """Lifetime of the session in milliseconds; 0 if it has no end, or in v0, which lacks the
    field."""
    lifetime_at: int
    """Position of the lifetime in the body; in v0 the end of the last field."""


def read_authenticate_response(version: int, body: bytes) -> AuthenticateResponse:
    """Parse the body of a SaslAuthenticate response; bytes after it are ignored.

    Raises MalformedMessage.
    """
    try:
        (error_code,) = _SHORT.unpack_from(body)
        if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
            message, at = _nullable_compact(body, 2)
            token, at = _nullable_compact(body, at)
        else:
            (length,) = _SHORT.unpack_from(body, 2)
            message = _slice(body, 4, max(length, 0))
            at = 4 + len(message)
            (length,) = _INT.unpack_from(body, at)
            token = _slice(body, at + 4, length)
            at += 4 + length
        lifetime = 0
        if version >= FIRST_SASL_AUTHENTICATE_WITH_LIFETIME:
            (lifetime,) = _LONG.unpack_from(body, at)
    except (struct.error, IndexError) as error:
        raise MalformedMessage from error
    text = message.decode(errors="replace")
    return AuthenticateResponse(error_code, text, token, lifetime, at)


def read_whole_authenticate_response(version: int, body: bytes) -> AuthenticateResponse:
    """Parse a body to be relayed: nothing may follow it, and the lifetime must not be negative.

    Raises MalformedMessage.
    """
    response = read_authenticate_response(version, body)
    end = response.lifetime_at
    if version >= FIRST_SASL_AUTHENTICATE_WITH_LIFETIME:
        end += _LONG.size
    if version >= FIRST_FLEXIBLE_SASL_AUTHENTICATE:
        end = _tags_end(body, end)
    if end != len(body) or response.session_lifetime_ms < 0:
        raise MalformedMessage
    return response


def with_lifetime(body: bytes, at: int, session_lifetime_ms: int) -> bytes:
    """Return a response's body with another lifetime at position `at`."""
    return body[:at] + _LONG.pack(session_lifetime_ms) + body[at + _LONG.size :]


def _tags_end(body: bytes, at: int) -> int:
    """Return the position after tagged fields (KIP-482). Raises MalformedMessage."""
    try:
        count, used = _uvarint(body[at : at + 5])
        at += used
        if count > MAX_TAGS:
            raise MalformedMessage
        for _ in range(count):
            _, used = _uvarint(body[at : at + 5])
            at += used
            size, used = _uvarint(body[at : at + 5])
            at += used + size
    except IndexError as error:
        raise MalformedMessage from error
    return at


def _nullable_compact(body: bytes, at: int) -> tuple[bytes, int]:
    """Return compact bytes, null as empty, and the position after them."""
    length, used = _uvarint(body[at : at + 5])
    at += used
    length = max(length - 1, 0)
    return _slice(body, at, length), at + length


def _slice(body: bytes, start: int, length: int) -> bytes:
    if length < 0 or start + length > len(body):
        raise MalformedMessage
    return body[start : start + length]


def _compact(value: bytes | None) -> bytes:
    if value is None:
        return b"\0"
    return _encoded_uvarint(len(value) + 1) + value


def _encoded_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _uvarint(body: bytes) -> tuple[int, int]:
    value = 0
    for position in range(5):  # an unsigned 32-bit number never takes more bytes
        byte = body[position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, position + 1
    raise MalformedMessage


class ClientInitialResponse:
    """First message of an OAUTHBEARER client: a token, and possibly extensions."""

    __slots__ = ("authorization_id", "extensions", "token")

    def __init__(
        self, token: str, authorization_id: str | None, extensions: Mapping[str, str]
    ) -> None:
        self.token: Final = token
        self.authorization_id: Final = authorization_id
        self.extensions: Final = extensions
        """SASL extensions (KIP-342), which are unverified and decide nothing."""


def read_client_initial_response(message: bytes) -> ClientInitialResponse | None:
    """Parse the client's message; return None if it does not match the grammar."""
    try:
        header, *pairs = message.decode().split(_SEPARATOR, MAX_PAIRS + 2)
    except UnicodeDecodeError:
        return None
    gs2 = _GS2_HEADER.fullmatch(header)
    # The message ends with two separators: one ends the last pair, one the list
    if gs2 is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        return None
    matches = [_PAIR.fullmatch(pair) for pair in pairs[:-2]]
    values = {match["name"]: match["value"] for match in matches if match is not None}
    if len(values) != len(matches):  # an invalid pair, or a duplicate name
        return None
    bearer = _BEARER.fullmatch(values.pop("auth", ""))
    if bearer is None:
        return None
    authzid = gs2["authzid"]
    return ClientInitialResponse(
        token=bearer["token"],
        authorization_id=None if authzid is None else decode_saslname(authzid),
        extensions=values,
    )


def client_initial_response(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """Return a client's first message; names of extensions consist of letters and must not be
    `auth`."""
    pairs = [f"{name}={value}{_SEPARATOR}" for name, value in (extensions or {}).items()]
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{''.join(pairs)}{_SEPARATOR}".encode()
