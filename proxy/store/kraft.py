"""Users, ACLs and quotas in the metadata of a KRaft cluster, read from a node's disk.

Records of other types are skipped. An unknown version of a known record type is an error, because
the fields that it adds might matter.

Sources: KIP-630 (snapshots), KIP-868 (transactions), KIP-900 (SCRAM), and the schemas of records in
Kafka's `common/metadata`.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import acl_refusal
from proxy.admin.quota_messages import ClientQuotaEntity, known_quotas
from proxy.errors import ProxyError
from proxy.quota.model import Quotas
from proxy.store.interface import CredentialKey, StoreError
from proxy.wire import messages
from proxy.wire.codec import decode
from proxy.wire.primitives import Malformed, uvarint
from proxy.wire.schema import Message
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

_KINDS: Final[Mapping[int, type[Message]]] = {
    kind.HEAD.api_key: kind
    for kind in (
        messages.UserScramCredentialRecord,
        messages.ClientQuotaRecord,
        messages.AccessControlEntryRecord,
        messages.RemoveAccessControlEntryRecord,
        messages.RemoveUserScramCredentialRecord,
        messages.BeginTransactionRecord,
        messages.EndTransactionRecord,
        messages.AbortTransactionRecord,
    )
}
"""Records that are read, by type; all are at version 0 up to Kafka 4.4."""


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
    _quotas: dict[ClientQuotaEntity, dict[str, float]] = field(default_factory=dict)
    _bad_users: set[tuple[str, int]] = field(default_factory=set)
    _transaction: list[Message] | None = None
    """Records of the open transaction; None without one."""

    def apply(self, record: bytes) -> None:
        """Apply a record to the metadata. Raises Malformed and UnknownRecord."""
        frame, position = uvarint(record, 0)
        if frame != _FRAME_VERSION:
            raise UnknownRecord(
                f"a record in a frame of version {frame} is unknown to this program"
            )
        key, position = uvarint(record, position)
        version, position = uvarint(record, position)
        if (kind := _KINDS.get(key)) is None:
            return
        if not kind.HEAD.versions.has(version):
            raise UnknownRecord(
                f"{kind.__name__} of version {version} is unknown to this program: use a later one"
            )
        entity = decode(kind, version, record, position, is_last=True)
        match entity:
            case messages.BeginTransactionRecord():
                self._transaction = []
            case messages.EndTransactionRecord():
                done, self._transaction = self._transaction or [], None
                for one in done:
                    self._do(one)
            case messages.AbortTransactionRecord():
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(entity)
            case _:
                self._do(entity)

    def end(self) -> None:
        """Drop an open transaction, and count the entries that are left out."""
        self._transaction = None
        _, unknown_quotas = known_quotas(self._quotas)
        acls = sum(one is None for one in self._acls.values())
        self.left_out = len(self._bad_users) + acls + len(unknown_quotas)

    def acls(self) -> frozenset[Acl]:
        """Return the ACLs."""
        return frozenset(one for one in self._acls.values() if one is not None)

    def quotas(self) -> Quotas:
        """Return the quotas."""
        return known_quotas(self._quotas)[0]

    def _do(self, record: Message) -> None:
        match record:
            case messages.UserScramCredentialRecord():
                self._add_scram(record)
            case messages.RemoveUserScramCredentialRecord():
                self._forget(record.name, record.mechanism)
            case messages.AccessControlEntryRecord():
                self._add_acl(record)
            case messages.RemoveAccessControlEntryRecord():
                self._acls.pop(record.id, None)
            case messages.ClientQuotaRecord():
                self._set_quota(record)

    def _add_scram(self, record: messages.UserScramCredentialRecord) -> None:
        user, code = record.name, record.mechanism
        self._forget(user, code)
        mechanism = ScramMechanism.from_code(code)
        try:
            if mechanism is None or len(record.stored_key) != mechanism.key_bytes or not user:
                raise ValueError(code)
            self.credentials[user, mechanism] = ScramCredential(
                salt=record.salt,
                stored_key=record.stored_key,
                server_key=record.server_key,
                iterations=record.iterations,
            )
        except ValueError:
            self._bad_users.add((user, code))

    def _forget(self, user: str, code: int) -> None:
        self._bad_users.discard((user, code))
        if (mechanism := ScramMechanism.from_code(code)) is not None:
            self.credentials.pop((user, mechanism), None)

    def _add_acl(self, record: messages.AccessControlEntryRecord) -> None:
        parsed = Acl(
            ResourceType(record.resource_type),
            PatternType(record.pattern_type),
            record.resource_name,
            record.principal,
            record.host,
            Operation(record.operation),
            Permission(record.permission_type),
        )
        acl = None if acl_refusal(parsed) else parsed
        if acl is None and record.permission_type != Permission.ALLOW:
            raise UnknownRecord(
                f"an ACL of {record.principal!r} that may deny is unknown to this program: use a"
                " later one"
            )
        self._acls[record.id] = acl

    def _set_quota(self, record: messages.ClientQuotaRecord) -> None:
        parts = ((one.entity_type, one.entity_name) for one in record.entity)
        entity = ClientQuotaEntity(tuple(sorted(parts, key=str)))
        values = self._quotas.setdefault(entity, {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value


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
