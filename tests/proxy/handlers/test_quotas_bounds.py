"""Quotas that the store refuses, and bounds on requests."""

from collections.abc import Callable
from typing import Final

import pytest

from proxy.errors import ClientFault
from proxy.handlers.quotas import MAX_BATCH_ITEMS, MAX_BYTES, MAX_ITEMS, answer, answer_batch
from proxy.quota.model import Changes, QuotaEntity, QuotaKey
from proxy.store import StoreRefused
from proxy.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS, MAX_FILTERS
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import MAX_STRING, MAX_TAGS, write_string, write_uvarint
from tests.support.frames import array
from tests.support.kio_messages import decode, response_type
from tests.support.quotas import (
    VERSIONS,
    MemoryStore,
    Op,
    Parts,
    alter,
    alter_request,
    describe,
)

ENTRY, PART, COMPONENT = b"\x01\x01\x00", b"\x01\x00\x00", b"\x01\x00\x00\x00"
CHANGE: Final = b"\x01" + bytes(8) + b"\x01\x00"
TAG: Final = b"\x01\x00"
END: Final = b"\x00\x00"
"""Not to validate only, or not strictly; no tags."""


def entries(count: int) -> bytes:
    return array(ENTRY, count) + END


def parts(count: int) -> bytes:
    return b"\x02" + array(PART, count - 1) + b"\x01\x00" + END


def changes(count: int) -> bytes:
    return b"\x02\x01" + array(CHANGE, count - 1) + b"\x00" + END


def tags(count: int) -> bytes:
    """Entries with as many tagged fields as each may have, and one with the rest."""
    entry = b"\x01\x01" + write_uvarint(MAX_TAGS) + TAG * MAX_TAGS
    full, rest = divmod(count, MAX_TAGS + 1)
    last = b"\x01\x01" + write_uvarint(rest - 1) + TAG * (rest - 1)
    return write_uvarint(full + 2) + entry * full + last + END


@pytest.mark.parametrize("authorized", [True, False])
@pytest.mark.parametrize("items", [entries, parts, changes, tags])
def test_more_items_than_anybody_sends_are_the_clients_fault(
    items: Callable[[int], bytes], authorized: bool
) -> None:
    """Whatever they are; so many are served."""
    store = MemoryStore()
    assert answer(ALTER_CLIENT_QUOTAS, 1, items(MAX_ITEMS), store, authorized=authorized)
    with pytest.raises(ClientFault):
        answer(ALTER_CLIENT_QUOTAS, 1, items(MAX_ITEMS + 1), store, authorized=authorized)


def test_components_are_items_too() -> None:
    store = MemoryStore()
    asked = array(COMPONENT, MAX_ITEMS) + END
    assert answer(DESCRIBE_CLIENT_QUOTAS, 1, asked, store, authorized=True)
    asked = array(COMPONENT, MAX_ITEMS + 1) + END
    with pytest.raises(ClientFault):
        answer(DESCRIBE_CLIENT_QUOTAS, 1, asked, store, authorized=True)


@VERSIONS
def test_as_many_quotas_as_kafka_takes_at_once_are_taken(version: int) -> None:
    store = MemoryStore()
    wanted: list[tuple[Parts, list[Op]]] = [
        (
            [("user", f"user-{number:015}"), ("client-id", f"client-{number:013}")],
            [("request_percentage", 5.0)],
        )
        for number in range(10_000)
    ]
    body = alter_request(wanted, version=version)
    assert len(body) < MAX_BYTES
    assert answer(ALTER_CLIENT_QUOTAS, version, body, store, authorized=True)
    assert len(store.quotas) == 10_000


def test_nothing_is_read_for_who_may_not_describe() -> None:
    """The answer is the same, whatever is asked for."""
    reported = answer(DESCRIBE_CLIENT_QUOTAS, 1, b"\xff" * 99, MemoryStore(), authorized=False)
    response = decode(response_type(DESCRIBE_CLIENT_QUOTAS, 1), reported)
    assert (response.error_code.value, response.error_message, response.entries) == (31, None, None)


@VERSIONS
@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_sentences_can_be_written_whatever_they_repeat(version: int, letter: str) -> None:
    """A string of Kafka has at most 32,767 bytes; the name may have them all."""
    name = letter * (MAX_STRING // len(letter.encode()))
    store = MemoryStore()
    [(code, reported)] = alter(
        store, ([(name, "a")], [("producer_byte_rate", 5.0)]), version=version
    )
    assert code == "invalid_request"
    assert reported is not None
    assert reported.startswith("Unhandled client quota entity type: " + letter)
    assert len(reported.encode()) <= MAX_STRING
    _, reported = describe(store, (name, 0, "a"), version=version)
    assert len(reported.encode()) <= MAX_STRING


def test_sentences_of_many_filters_can_be_written_too() -> None:
    component = write_string("x" * MAX_STRING, flexible=True) + b"\x00\x00\x00"
    body = b"\x00\x02\x02" + component + END
    reported = answer_batch(body, MemoryStore(), authorized=True)
    assert MAX_STRING // 4 < len(reported) < MAX_STRING


@pytest.mark.parametrize("count", [MAX_BATCH_ITEMS, MAX_BATCH_ITEMS + 1])
def test_many_filters_have_no_more_components_than_they_can_need(count: int) -> None:
    body = b"\x00" + b"\x02" + array(COMPONENT, count - 1) + END
    reported = answer_batch(body, MemoryStore(), authorized=True)
    assert (b"cannot be read" in reported) is (count > MAX_BATCH_ITEMS)
    assert MAX_BATCH_ITEMS == 3 * MAX_FILTERS


PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
FIVE: list[Op] = [(PRODUCER, 5.0)]
U: Parts = [("user", "u")]
V: Parts = [("user", "v")]
WHY = "The brokers refused the change: for a reason of theirs"


class Refusing(MemoryStore):
    """Its brokers do nothing."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__()
        self._code = code
        self.asked: list[Changes] = []

    def alter_quotas(self, changes: Changes) -> None:
        self.asked.append(changes)
        raise StoreRefused(self._code, WHY)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "code", [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_entities_keep_their_own_mistakes(version: int, code: ErrorCode) -> None:
    """And one that is named twice its own refusal, though the first of them was asked for."""
    store = Refusing(code)
    twice: Parts = [("user", "w")]
    empty: Parts = [("user", "")]
    entries = [(U, FIVE), (empty, FIVE), (V, FIVE), (twice, FIVE), (twice, FIVE)]
    refused = (code.name.lower(), WHY)
    assert alter(store, *entries, version=version) == [
        refused,
        ("invalid_request", "Empty user not supported"),
        refused,
        ("invalid_request", "Ignoring duplicate entity"),
    ]
    assert store.asked == [{QuotaEntity(user=name): {PRODUCER: 5.0} for name in "uvw"}]
