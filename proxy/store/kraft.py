"""Users, ACLs and quotas in the metadata of a KRaft cluster, read from a node's disk.

Records of other types are skipped. An unknown version of a known record type is an error, because
the fields that it adds might matter.

Sources: KIP-630 (snapshots), KIP-868 (transactions), KIP-900 (SCRAM), and the schemas of records in
Kafka's `common/metadata`.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import acl_refusal
from proxy.errors import ProxyError
from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    Default,
    EntityType,
    QuotaEntity,
    QuotaKey,
    key_of,
    value_problem,
)
from proxy.store.interface import CredentialKey, StoreError
from proxy.wire.primitives import (
    Malformed,
    array_length,
    int8,
    int32,
    nullable_string,
    skip_tags,
    string,
    uvarint,
)
from sasl.credentials import ScramCredential, ScramMechanism

MAX_BATCH: Final = 67_108_864
"""Maximum size of a batch in bytes. Kafka's controllers write batches of at most 8 MiB."""

_PREFIX: Final = struct.Struct(">qi")
"""Base offset, and number of following bytes."""
_HEADER: Final = struct.Struct(">ibIhiqqqhii")
"""Leader epoch, magic, CRC, attributes, last offset delta, two times, producer id and epoch, base
sequence, number of records."""
_CHECKED_FROM: Final = 9
"""Position in the header from which bytes are covered by the CRC."""
_MAGIC: Final = 2
_COMPRESSION: Final = 0x07
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")
"""Version and type."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of records."""

    first: int
    """Offset of the first record."""
    end: int
    """Offset after the last record."""
    values: tuple[bytes, ...]
    """Values of the records; empty for control records."""
    control_type: int | None = None
    """Type of the batch's last control record; None if it has other records."""


def batches(file: BinaryIO, *, is_growing: bool) -> Iterator[Batch]:
    """Yield the batches in a file. Raises Malformed and OSError.

    With `is_growing`, the last batch may be incomplete because a node may be writing it; it is then
    left out.
    """
    while prefix := file.read(_PREFIX.size):
        body = b""
        if len(prefix) == _PREFIX.size:
            first, size = _PREFIX.unpack(prefix)
            if not _HEADER.size <= size <= MAX_BATCH:
                raise Malformed(f"a batch of {size} bytes")
            body = file.read(size)
            if len(body) == size:
                yield _batch(first, body)
                continue
        if is_growing:
            return
        raise Malformed("ends inside a batch")


def _batch(first: int, body: bytes) -> Batch:
    _, magic, crc, attributes, last_delta, _, _, _, _, _, count = _HEADER.unpack_from(body)
    if magic != _MAGIC:
        raise Malformed(f"a batch of the format version {magic}")
    if crc32c(body[_CHECKED_FROM:]) != crc:
        raise Malformed("a batch with a wrong checksum")
    if attributes & _COMPRESSION:
        raise Malformed("a compressed batch, which no controller writes")
    records = tuple(_records(body, count))
    if count != len(records) or last_delta != count - 1:
        raise Malformed("a batch with a wrong number of records")
    end = first + count
    if not attributes & _CONTROL:
        return Batch(first, end, tuple(value for _, value in records))
    try:
        _, control_type = _CONTROL_KEY.unpack_from(records[-1][0])
    except (struct.error, IndexError):
        raise Malformed("a control batch without a type") from None
    return Batch(first, end, (), control_type)


def _records(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of records."""
    position = _HEADER.size
    for _ in range(count):
        size, position = _varint(body, position)
        end = position + size
        position += 1  # its attributes
        _, position = _varint(body, position)  # time
        _, position = _varint(body, position)  # offset
        key, position = _bytes(body, position)
        value, position = _bytes(body, position)
        headers, position = _varint(body, position)
        if headers or position != end or end > len(body):
            raise Malformed("a record with a wrong size")
        yield key, value
    if position != len(body):
        raise Malformed("a batch with bytes behind its records")


def _bytes(body: bytes, position: int) -> tuple[bytes, int]:
    """Read bytes after their length. Null is read as empty."""
    size, position = _varint(body, position)
    end = position + max(size, 0)
    if end > len(body):
        raise Malformed("ends inside a record")
    return body[position:end], end


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Read a VARINT or VARLONG in zigzag encoding."""
    value = 0
    try:
        for shift in range(0, 70, 7):
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1), position
    except IndexError:
        raise Malformed("ends inside a varint") from None
    raise Malformed("a varint longer than ten bytes")


def _table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        rest = number
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
        table.append(rest)
    return tuple(table)


_CRC: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of RFC 3720 section 12.1."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest = _CRC[(rest ^ byte) & 0xFF] ^ rest >> 8
    return rest ^ 0xFFFFFFFF


_FRAME_VERSION: Final = 1
_FLOAT64: Final = struct.Struct(">d")
_UUID_BYTES: Final = 16

_Entity = tuple[tuple[str, str | None], ...]


class _Type(IntEnum):
    """Types of records that are read; all are at version 0 up to Kafka 4.4."""

    UserScramCredentialRecord = 11
    ClientQuotaRecord = 14
    AccessControlEntryRecord = 18
    RemoveAccessControlEntryRecord = 19
    RemoveUserScramCredentialRecord = 22
    BeginTransactionRecord = 23
    EndTransactionRecord = 24
    AbortTransactionRecord = 25


_TYPES: Final = {one.value: one for one in _Type}


class UnknownRecord(ProxyError):
    """A later Kafka wrote the record."""


@dataclass(slots=True)
class Metadata:
    """Users, ACLs and quotas of a cluster."""

    credentials: dict[CredentialKey, ScramCredential] = field(default_factory=dict)
    left_out: int = 0
    """Number of users, ACLs and quotas that are invalid or that this version does not know. Set by
    `end`."""
    _acls: dict[bytes, Acl | None] = field(default_factory=dict)
    _quotas: dict[_Entity, dict[str, float]] = field(default_factory=dict)
    _bad_users: set[tuple[str, int]] = field(default_factory=set)
    _transaction: list[tuple[_Type, bytes]] | None = None
    """Records of the open transaction; None without one."""

    def apply(self, record: bytes) -> None:
        """Apply a record to the metadata. Raises Malformed and UnknownRecord."""
        frame, position = uvarint(record, 0)
        if frame != _FRAME_VERSION:
            raise UnknownRecord(
                f"a record in a frame of version {frame} is unknown to this program"
            )
        kind, position = uvarint(record, position)
        version, position = uvarint(record, position)
        if (known := _TYPES.get(kind)) is None:
            return
        if version != 0:
            raise UnknownRecord(
                f"{known.name} of version {version} is unknown to this program: use a later one"
            )
        body = record[position:]
        match known:
            case _Type.BeginTransactionRecord:
                self._transaction = []
            case _Type.EndTransactionRecord:
                done, self._transaction = self._transaction or [], None
                for one in done:
                    self._do(*one)
            case _Type.AbortTransactionRecord:
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append((known, body))
            case _:
                self._do(known, body)

    def end(self) -> None:
        """Drop an open transaction, and count the entries that are left out."""
        self._transaction = None
        known = self.quotas()
        quotas = sum(map(len, self._quotas.values())) - sum(map(len, known.values()))
        acls = sum(one is None for one in self._acls.values())
        self.left_out = len(self._bad_users) + acls + quotas

    def acls(self) -> frozenset[Acl]:
        """Return the ACLs."""
        return frozenset(one for one in self._acls.values() if one is not None)

    def quotas(self) -> dict[QuotaEntity, dict[QuotaKey, float]]:
        """Return the quotas."""
        found: dict[QuotaEntity, dict[QuotaKey, float]] = {}
        for parts, values in self._quotas.items():
            if (entity := _entity(parts)) is None:
                continue
            for name, value in values.items():
                key = key_of(entity, name)
                if key is not None and value_problem(key, value) is None:
                    found.setdefault(entity, {})[key] = value
        return found

    def _do(self, kind: _Type, body: bytes) -> None:
        if skip_tags(body, self._read(kind, body)) != len(body):
            raise Malformed("a record with a wrong size")

    def _read(self, kind: _Type, body: bytes) -> int:
        """Apply a record; return the position of its tagged fields."""
        match kind:
            case _Type.UserScramCredentialRecord:
                return self._scram(body)
            case _Type.RemoveUserScramCredentialRecord:
                return self._remove_scram(body)
            case _Type.AccessControlEntryRecord:
                return self._acl(body)
            case _Type.RemoveAccessControlEntryRecord:
                return self._remove_acl(body)
            case _:
                return self._quota(body)

    def _scram(self, body: bytes) -> int:
        user, position = string(body, 0, True)
        code, position = int8(body, position)
        salt, position = _compact_bytes(body, position)
        stored_key, position = _compact_bytes(body, position)
        server_key, position = _compact_bytes(body, position)
        iterations, position = int32(body, position)
        self._forget(user, code)
        mechanism = ScramMechanism.from_code(code)
        try:
            if mechanism is None or len(stored_key) != mechanism.key_bytes or not user:
                raise ValueError(code)
            self.credentials[user, mechanism] = ScramCredential(
                salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
            )
        except ValueError:
            self._bad_users.add((user, code))
        return position

    def _remove_scram(self, body: bytes) -> int:
        user, position = string(body, 0, True)
        code, position = int8(body, position)
        self._forget(user, code)
        return position

    def _forget(self, user: str, code: int) -> None:
        self._bad_users.discard((user, code))
        if (mechanism := ScramMechanism.from_code(code)) is not None:
            self.credentials.pop((user, mechanism), None)

    def _acl(self, body: bytes) -> int:
        uuid, position = _uuid(body, 0)
        resource_type, position = int8(body, position)
        name, position = string(body, position, True)
        pattern_type, position = int8(body, position)
        principal, position = string(body, position, True)
        host, position = string(body, position, True)
        operation, position = int8(body, position)
        permission, position = int8(body, position)
        acl: Acl | None
        try:
            acl = Acl(
                ResourceType(resource_type),
                PatternType(pattern_type),
                name,
                principal,
                host,
                Operation(operation),
                Permission(permission),
            )
        except ValueError:
            acl = None
        if acl is not None and acl_refusal(acl) is not None:
            acl = None
        if acl is None and permission != Permission.ALLOW:
            raise UnknownRecord(
                f"an ACL of {principal!r} that may deny is unknown to this program: use a later one"
            )
        self._acls[uuid] = acl
        return position

    def _remove_acl(self, body: bytes) -> int:
        uuid, position = _uuid(body, 0)
        self._acls.pop(uuid, None)
        return position

    def _quota(self, body: bytes) -> int:
        count, position = array_length(body, 0, True)
        parts = []
        for _ in range(count):
            kind, position = string(body, position, True)
            name, position = nullable_string(body, position, True)
            position = skip_tags(body, position)
            parts.append((kind, name))
        key, position = string(body, position, True)
        if position + _FLOAT64.size > len(body):
            raise Malformed("ends inside a float64")
        (value,) = _FLOAT64.unpack_from(body, position)
        removed, position = int8(body, position + _FLOAT64.size)
        values = self._quotas.setdefault(tuple(sorted(parts, key=str)), {})
        if removed:
            values.pop(key, None)
        else:
            values[key] = value
        return position


def _entity(parts: _Entity) -> QuotaEntity | None:
    """Return an entity; None if this version does not know it."""
    names: dict[EntityType, str | Default] = {}
    try:
        for kind, name in parts:
            names[EntityType(kind)] = DEFAULT if name is None else name
        return QuotaEntity.of(names)
    except (ValueError, BadEntity):
        return None


def _compact_bytes(body: bytes, position: int) -> tuple[bytes, int]:
    """Read COMPACT_BYTES."""
    size, position = uvarint(body, position)
    end = position + size - 1
    if size < 1 or end > len(body):
        raise Malformed("ends inside bytes")
    return body[position:end], end


def _uuid(body: bytes, position: int) -> tuple[bytes, int]:
    end = position + _UUID_BYTES
    if end > len(body):
        raise Malformed("ends inside a uuid")
    return body[position:end], end


LOG_DIRECTORY: Final = "__cluster_metadata-0"
_CHECKPOINT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_SEGMENT: Final = re.compile(r"(\d{20})\.log", re.ASCII)
_SNAPSHOT_FOOTER: Final = 4
"""Type of the control record that ends a snapshot (KIP-630)."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    path: Path
    end: int
    """Offset of the first record that is not in the snapshot."""


def read_metadata(place: Path) -> Metadata:
    """Return the metadata in a snapshot, or in a log directory with its latest snapshot.

    The whole log is read, including records at its end that other nodes may not have yet. Raises
    StoreError.
    """
    metadata = Metadata()
    snapshot, segments = _files(place)
    if snapshot is not None:
        _read_snapshot(snapshot, metadata)
    _read_log(segments, 0 if snapshot is None else snapshot.end, metadata)
    metadata.end()
    return metadata


def _files(place: Path) -> tuple[_Snapshot | None, list[Path]]:
    """Return the latest snapshot, if any, and the segments of the log, in order."""
    if place.is_file():
        found = _CHECKPOINT.fullmatch(place.name)
        if found is None:
            raise StoreError(f"{place}: is not a metadata snapshot (OFFSET-EPOCH.checkpoint)")
        return _Snapshot(place, int(found[1])), []
    below = place / LOG_DIRECTORY
    directory = below if below.is_dir() else place
    try:
        names = sorted(one.name for one in directory.iterdir())
    except OSError as error:
        raise StoreError(f"{directory}: cannot be read: {error.strerror}") from None
    checkpoints = [found for name in names if (found := _CHECKPOINT.fullmatch(name))]
    segments = [directory / name for name in names if _SEGMENT.fullmatch(name)]
    if not checkpoints and not segments:
        raise StoreError(
            f"{place}: has neither {LOG_DIRECTORY} nor metadata snapshots: give the log.dirs or"
            " metadata.log.dir of a KRaft node"
        )
    latest = checkpoints[-1] if checkpoints else None
    snapshot = None if latest is None else _Snapshot(directory / latest[0], int(latest[1]))
    return snapshot, segments


def _read_snapshot(snapshot: _Snapshot, metadata: Metadata) -> None:
    is_whole = False
    for batch in _batches(snapshot.path, is_growing=False):
        is_whole = batch.control_type == _SNAPSHOT_FOOTER
        _apply(snapshot.path, batch, metadata)
    if not is_whole:
        raise StoreError(f"{snapshot.path}: is incomplete")


def _read_log(segments: list[Path], start: int, metadata: Metadata) -> None:
    """Read the records of a log, starting at an offset."""
    offset: int | None = None
    for number, path in enumerate(segments, 1):
        for batch in _batches(path, is_growing=number == len(segments)):
            if offset is None and batch.first > start:
                raise StoreError(
                    f"{path}: records {start} to {batch.first - 1} are missing: the snapshot that"
                    " has them is not there"
                )
            if offset is not None and batch.first != offset:
                raise StoreError(f"{path}: record {offset} is missing")
            offset = batch.end
            if batch.end > start:
                _apply(path, batch, metadata, start - batch.first)


def _batches(path: Path, *, is_growing: bool) -> Iterator[Batch]:
    try:
        with path.open("rb") as file:
            yield from batches(file, is_growing=is_growing)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    except Malformed as malformed:
        raise StoreError(f"{path}: is damaged, or not of Kafka: {malformed}") from None


def _apply(path: Path, batch: Batch, metadata: Metadata, skipped: int = 0) -> None:
    try:
        for value in batch.values[max(skipped, 0) :]:
            metadata.apply(value)
    except Malformed as malformed:
        raise StoreError(f"{path}: is damaged, or not of Kafka: {malformed}") from None
    except UnknownRecord as unknown:
        raise StoreError(f"{path}: {unknown}") from None
