"""Metadata records, batches and snapshots in the format of Kafka's controllers."""

import struct
from collections.abc import Sequence

from proxy.acl.model import Acl
from proxy.store.kraft import crc32c
from proxy.wire.primitives import write_string, write_uvarint
from sasl.credentials import ScramCredential

NO_TAGS = b"\0"
FOOTER = 4


def framed(kind: int, body: bytes, *, version: int = 0, frame: int = 1) -> bytes:
    return b"".join(map(write_uvarint, (frame, kind, version))) + body + NO_TAGS


BEGIN, END, ABORT = (framed(kind, b"") for kind in (23, 24, 25))


def _bytes(data: bytes) -> bytes:
    return write_uvarint(len(data) + 1) + data


def scram_record(name: str, one: ScramCredential, code: int = 1, version: int = 0) -> bytes:
    keys = b"".join(map(_bytes, (one.salt, one.stored_key, one.server_key)))
    body = write_string(name, True) + bytes([code]) + keys + struct.pack(">i", one.iterations)
    return framed(11, body, version=version)


def remove_scram_record(name: str, code: int = 1) -> bytes:
    return framed(22, write_string(name, True) + bytes([code]))


def acl_record(
    uuid: bytes, acl: Acl, operation: int | None = None, permission: int | None = None
) -> bytes:
    return framed(
        18,
        uuid
        + bytes([acl.resource_type])
        + write_string(acl.name, True)
        + bytes([acl.pattern_type])
        + write_string(acl.principal, True)
        + write_string(acl.host, True)
        + bytes(
            [
                acl.operation if operation is None else operation,
                acl.permission if permission is None else permission,
            ]
        ),
    )


def remove_acl_record(uuid: bytes) -> bytes:
    return framed(19, uuid)


def quota_record(
    parts: Sequence[tuple[str, str | None]], key: str, value: float, *, removed: bool = False
) -> bytes:
    entities = b"".join(
        write_string(kind, True) + (b"\0" if name is None else write_string(name, True)) + NO_TAGS
        for kind, name in parts
    )
    body = write_uvarint(len(parts) + 1) + entities + write_string(key, True)
    return framed(14, body + struct.pack(">d", value) + bytes([removed]))


def _zigzag(value: int) -> bytes:
    return write_uvarint(value << 1 if value >= 0 else -value * 2 - 1)


def batch(
    first: int, *values: bytes, attributes: int = 0, keys: Sequence[bytes] = (), magic: int = 2
) -> bytes:
    """A record batch; control records have keys."""
    records = b""
    for delta, value in enumerate(values):
        key = keys[delta] if keys else None
        body = b"\0" + _zigzag(0) + _zigzag(delta)
        body += _zigzag(-1) if key is None else _zigzag(len(key)) + key
        body += _zigzag(len(value)) + value + _zigzag(0)
        records += _zigzag(len(body)) + body
    count = len(values)
    covered = struct.pack(">hiqqqhii", attributes, count - 1, 0, 0, -1, -1, -1, count) + records
    body = struct.pack(">ibI", 1, magic, crc32c(covered)) + covered
    return struct.pack(">qi", first, len(body)) + body


def control(first: int, kind: int) -> bytes:
    return batch(first, b"\0\0", attributes=0x20, keys=[struct.pack(">hh", 0, kind)])


def checkpoint(*values: bytes) -> bytes:
    """A snapshot with header, records and footer."""
    return control(0, 3) + batch(1, *values) + control(1 + len(values), FOOTER)
