"""Frames of clients and brokers, and their text in transcripts."""

import struct
from collections.abc import Mapping
from functools import cache

from proxy.wire.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE, is_flexible
from proxy.wire.primitives import write_string, write_uvarint
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, client_initial_response
from tests.support.sasl import claims, ed_key, rsa_key, token

_HEADER = struct.Struct(">hhih")


def name_of(api_key: int) -> str:
    return APIS[api_key].name if api_key in APIS else f"API {api_key}"


def sized(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def array(item: bytes, count: int) -> bytes:
    """A compact array (KIP-482) of one repeated item."""
    return write_uvarint(count + 1) + item * count


def request(
    api_key: int, version: int, correlation_id: int, body: bytes = b"", client_id: str = "app"
) -> bytes:
    """A whole request frame."""
    name = client_id.encode()
    content = _HEADER.pack(api_key, version, correlation_id, len(name)) + name
    if api_key in APIS and is_flexible(api_key, version):
        content += b"\0"
    return sized(content + body)


def response(correlation_id: int, body: bytes = b"") -> bytes:
    """A whole response frame."""
    return sized(struct.pack(">i", correlation_id) + body)


def api_versions(correlation_id: int, version: int = 0) -> bytes:
    body = b"\x05java\x064.1.0\0" if version >= 3 else b""
    return request(API_VERSIONS, version, correlation_id, body)


def meaning(correlation_id: int, cluster_id: str | None, node_id: int = -1) -> bytes:
    """An ApiVersions request that names the intended broker (KIP-1242)."""
    meant = b"\0" if cluster_id is None else write_string(cluster_id, flexible=True)
    body = b"\x05java\x064.4.0" + meant + struct.pack(">i", node_id) + b"\0"
    return request(API_VERSIONS, 5, correlation_id, body)


def handshake(correlation_id: int, mechanism: str, version: int = 1) -> bytes:
    name = mechanism.encode()
    body = struct.pack(">h", len(name)) + name
    return request(SASL_HANDSHAKE, version, correlation_id, body)


def authenticate(correlation_id: int, data: bytes, version: int = 1) -> bytes:
    if version >= 2:
        body = write_uvarint(len(data) + 1) + data + b"\0"
    else:
        body = struct.pack(">i", len(data)) + data
    return request(SASL_AUTHENTICATE, version, correlation_id, body)


@cache
def bearer(**changes: object) -> bytes:
    """The client's message with a valid token; claims can be changed."""
    return client_initial_response(token(claims(**changes), ed_key()))


def bearer_of_unknown_key() -> bytes:
    return client_initial_response(token(claims(), rsa_key()))


def fetch(correlation_id: int, body: bytes = b"", max_bytes: int = 52_428_800) -> bytes:
    """A consumer's Fetch up to the isolation level; the rest is not parsed."""
    head = struct.pack(">iiiib", -1, 500, 1, max_bytes, 0)
    return request(FETCH, 12, correlation_id, head + body)


def metadata(correlation_id: int, body: bytes = b"") -> bytes:
    return request(METADATA, 12, correlation_id, body)


def produce(
    correlation_id: int,
    *,
    version: int = 9,
    acks: int = -1,
    transactional_id: str | None = None,
    records: bytes = b"",
    client_id: str = "app",
) -> bytes:
    name = None if transactional_id is None else transactional_id.encode()
    if version >= 9:
        body = b"\0" if name is None else bytes([len(name) + 1]) + name
    else:
        body = struct.pack(">h", -1 if name is None else len(name)) + (name or b"")
    body += struct.pack(">hi", acks, 30_000) + records
    return request(PRODUCE, version, correlation_id, body, client_id)


def read_answer(frame: bytes, asked: Mapping[int, tuple[int, int]]) -> str:
    """Describe a frame that the client received in one line."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    key, version = asked.get(correlation_id, (-1, 0))
    if key == SASL_HANDSHAKE:
        return f"#{correlation_id} handshake error {struct.unpack_from('>h', frame, 4)[0]}"
    if key == SASL_AUTHENTICATE:
        error, _, _, lifetime_ms = read_authenticated(frame, version)
        lifetime = "" if lifetime_ms is None else f" lifetime {lifetime_ms}"
        return f"#{correlation_id} token error {error}{lifetime}"
    if key == API_VERSIONS:
        return f"#{correlation_id} versions error {struct.unpack_from('>h', frame, 4)[0]}"
    return f"#{correlation_id} {frame[4:].decode('latin-1')}".rstrip()


def read_authenticated(frame: bytes, version: int) -> tuple[int, bytes | None, bytes, int | None]:
    """Error code, message, auth bytes and lifetime of a SaslAuthenticate response."""
    at = 5 if version >= 2 else 4
    (error,) = struct.unpack_from(">h", frame, at)
    at += 2
    if version >= 2:
        message, at = _compact(frame, at)
        data, at = _compact(frame, at)
    else:
        (length,) = struct.unpack_from(">h", frame, at)
        at += 2
        message = None if length < 0 else frame[at : at + length]
        at += max(0, length)
        (length,) = struct.unpack_from(">i", frame, at)
        at += 4
        data = frame[at : at + length]
        at += length
    lifetime = struct.unpack_from(">q", frame, at)[0] if version >= 1 else None
    return error, message, data or b"", lifetime


def _compact(frame: bytes, at: int) -> tuple[bytes | None, int]:
    length = shift = 0
    while True:
        byte = frame[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length == 0:
        return None, at
    return frame[at : at + length - 1], at + length - 1
