"""What a KRaft node has on its disk is read whole, or not at all."""

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.store.interface import StoreError
from proxy.store.kraft import LOG_DIRECTORY, Metadata, UnknownRecord, crc32c, read_metadata
from proxy.wire.primitives import Malformed
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.kraft_records import (
    ABORT,
    BEGIN,
    END,
    acl_record,
    batch,
    checkpoint,
    control,
    framed,
    quota_record,
    remove_acl_record,
    remove_scram_record,
    scram_record,
)

SHA_256, SHA_512 = ScramMechanism
VERIFIER = ScramCredential.from_password(SHA_256, "pw", b"salt", 4096)
OTHER = ScramCredential.from_password(SHA_256, "other", b"salt", 4096)
ALICE = ("alice", SHA_256)
ACL = Acl(
    ResourceType.TOPIC, PatternType.PREFIXED, "t", "User:a", "*", Operation.READ, Permission.DENY
)
ONE, TWO = bytes(range(16)), bytes(16)
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
PAIR = (("user", "alice"), ("client-id", None))


def applied(*records: bytes) -> Metadata:
    metadata = Metadata()
    for record in records:
        metadata.apply(record)
    metadata.end()
    return metadata


def test_the_checksum_is_castagnolis() -> None:
    """RFC 3720, appendix B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_records_add_up() -> None:
    found = applied(
        scram_record("alice", OTHER),
        scram_record("alice", VERIFIER),
        scram_record("bob", VERIFIER),
        remove_scram_record("bob"),
        remove_scram_record("nobody"),
        acl_record(ONE, ACL),
        acl_record(TWO, ACL),
        remove_acl_record(ONE),
        quota_record(PAIR, "producer_byte_rate", 1.0),
        quota_record(PAIR[::-1], "producer_byte_rate", 2.0),
        quota_record([("user", "bob")], "producer_byte_rate", 3.0),
        quota_record([("user", "bob")], "producer_byte_rate", 0.0, removed=True),
        framed(2, b"a topic"),
    )
    assert found.credentials == {ALICE: VERIFIER}
    assert found.acls() == {ACL}
    assert found.quotas() == {QuotaEntity(user="alice", client_id=DEFAULT): {PRODUCER: 2.0}}
    assert not found.left_out


def test_what_is_unknown_is_left_out_and_counted() -> None:
    found = applied(
        scram_record("alice", VERIFIER, code=9),
        scram_record("bob", VERIFIER, code=2),
        acl_record(ONE, replace(ACL, permission=Permission.ALLOW), operation=99),
        quota_record([("moon", "x")], "producer_byte_rate", 1.0),
        quota_record([("user", "x")], "moon_rate", 1.0),
        quota_record([("ip", "host.example")], "connection_creation_rate", 1.0),
    )
    assert (found.credentials, found.acls(), found.quotas()) == ({}, frozenset(), {})
    assert found.left_out == 6


def test_a_verifier_that_was_replaced_by_an_invalid_one_is_gone() -> None:
    invalid = scram_record("alice", VERIFIER).replace(struct.pack(">i", 4096), struct.pack(">i", 1))
    found = applied(scram_record("alice", VERIFIER), invalid)
    assert not found.credentials
    assert found.left_out == 1


def test_a_transaction_counts_when_it_has_ended() -> None:
    began = (BEGIN, scram_record("alice", VERIFIER))
    assert applied(*began, END).credentials == {ALICE: VERIFIER}
    assert not applied(*began, ABORT).credentials
    assert not applied(*began).credentials


@pytest.mark.parametrize(
    "record",
    [
        scram_record("alice", VERIFIER, version=1),
        framed(18, b"", version=1),
        framed(11, b"", frame=2),
        framed(23, b"", version=1),
        acl_record(ONE, ACL, operation=99),
        acl_record(ONE, replace(ACL, principal="no colon")),
        acl_record(ONE, ACL, permission=9),
    ],
)
def test_records_of_a_later_kafka_stop_it(record: bytes) -> None:
    with pytest.raises(UnknownRecord, match="unknown to this program"):
        applied(record)


def test_other_types_of_a_later_kafka_are_skipped() -> None:
    assert applied(framed(999, b"?", version=7)).left_out == 0


@given(data=st.binary(max_size=80), kind=st.sampled_from([11, 14, 18, 19, 22]))
def test_no_bytes_break_it(data: bytes, kind: int) -> None:
    with suppress(Malformed, UnknownRecord):
        applied(data)
    with suppress(Malformed):
        applied(framed(kind, data))


# Files


def node(
    directory: Path, *, checkpoints: dict[str, bytes] | None = None, **segments: bytes
) -> Path:
    """A node's directory; `segments` by their first offset, after an underscore."""
    log = directory / LOG_DIRECTORY
    log.mkdir()
    for name, data in (checkpoints or {}).items():
        (log / f"{name}.checkpoint").write_bytes(data)
    for name, data in segments.items():
        (log / f"{int(name[1:]):020}.log").write_bytes(data)
    return directory


FIFTH = "00000000000000000005-0000000001"


def users(place: Path) -> set[str]:
    return {user for user, _ in read_metadata(place).credentials}


def test_a_log_from_its_beginning_is_read(tmp_path: Path) -> None:
    log = control(0, 2) + batch(1, scram_record("a", VERIFIER), scram_record("b", VERIFIER))
    place = node(tmp_path, _0=log, _3=batch(3, remove_scram_record("a")))
    assert users(place) == users(place / LOG_DIRECTORY) == {"b"}


def test_what_the_snapshot_has_is_not_read_again(tmp_path: Path) -> None:
    """It has the log's records up to 5; a batch may be on both sides of that."""
    later = [scram_record(name, VERIFIER) for name in "xyz"]
    place = node(
        tmp_path,
        checkpoints={
            "00000000000000000002-0000000001": checkpoint(scram_record("old", VERIFIER)),
            FIFTH: checkpoint(scram_record("a", VERIFIER)),
            f"{FIFTH}.deleted": b"?",
        },
        _3=batch(3, *later) + batch(6, scram_record("c", VERIFIER)),
    )
    (place / LOG_DIRECTORY / "bootstrap.checkpoint").write_bytes(b"?")
    assert users(place) == {"a", "z", "c"}
    assert users(place / LOG_DIRECTORY / f"{FIFTH}.checkpoint") == {"a"}


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ({"_6": batch(6, BEGIN)}, "records 5 to 5 are missing"),
        ({"_5": batch(5, BEGIN) + batch(7, BEGIN)}, "record 6 is missing"),
        ({"_5": batch(5, BEGIN)[:-1], "_6": batch(6, BEGIN)}, "ends inside a batch"),
        ({"_5": batch(5, BEGIN)[:-1] + b"\1"}, "wrong checksum"),
        ({"_5": batch(5, BEGIN, attributes=2)}, "a compressed batch"),
        ({"_5": batch(5, BEGIN, magic=1)}, "format version 1"),
        ({"_5": bytes(100)}, "a batch of 0 bytes"),
        ({"_5": struct.pack(">qi", 5, 2**31 - 1) + bytes(99)}, "a batch of 2147483647 bytes"),
        ({"_5": batch(5, framed(11, b"", version=3))}, "of version 3 is unknown"),
        ({"_5": batch(5, framed(11, b""))}, "is damaged, or not of Kafka"),
    ],
)
def test_what_is_missing_or_damaged_stops_it(
    tmp_path: Path, segments: dict[str, bytes], problem: str
) -> None:
    place = node(tmp_path, checkpoints={FIFTH: checkpoint(scram_record("a", VERIFIER))}, **segments)
    with pytest.raises(StoreError, match=problem):
        read_metadata(place)


def test_a_batch_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    whole, half = (batch(at, scram_record(f"u{at}", VERIFIER)) for at in range(2))
    for size in (1, 11, 12, 50, len(half) - 1):
        place = tmp_path / str(size)
        place.mkdir()
        assert users(node(place, _0=whole + half[:size])) == {"u0"}


def test_a_snapshot_that_was_copied_in_part_is_refused(tmp_path: Path) -> None:
    whole = checkpoint(scram_record("a", VERIFIER), scram_record("b", VERIFIER))
    file = tmp_path / f"{FIFTH}.checkpoint"
    file.write_bytes(whole)
    assert users(file) == {"a", "b"}
    footer = len(control(3, 4))
    for size in (0, len(control(0, 3)), len(whole) - footer, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"is incomplete|ends inside a batch"):
            read_metadata(file)


def test_other_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be read: No such file"):
        read_metadata(tmp_path / "no")
    with pytest.raises(StoreError, match=r"give the log\.dirs"):
        read_metadata(tmp_path)
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(StoreError, match="is not a metadata snapshot"):
        read_metadata(tmp_path / "x")
