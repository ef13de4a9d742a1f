"""DescribeClientQuotas and AlterClientQuotas: Kafka's answers, but where a difference is named."""

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.errors import ClientFault
from proxy.handlers.quotas import MAX_BATCH_ITEMS, MAX_BYTES, MAX_ITEMS, answer, answer_batch
from proxy.quota.model import DEFAULT, Changes, QuotaEntity, QuotaKey, value_problem
from proxy.store.interface import StoreRefused
from proxy.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS, MAX_FILTERS
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import MAX_STRING, MAX_TAGS, write_string, write_uvarint
from tests.support.frames import array
from tests.support.kio_messages import decode, response_type
from tests.support.quotas import (
    DONE,
    VERSIONS,
    MemoryStore,
    Op,
    Parts,
    alter,
    alter_request,
    describe,
)
from tests.support.tables import table

PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


@VERSIONS
def test_what_is_set_is_told(version: int) -> None:
    store = MemoryStore()
    entry: tuple[Parts, list[Op]] = (
        [("client-id", None), ("user", "u")],
        [("producer_byte_rate", 1024.0), ("request_percentage", 12.5)],
    )
    assert alter(store, entry, version=version) == [DONE]
    assert store.quotas == {
        QuotaEntity(user="u", client_id=DEFAULT): {
            PRODUCER: 1024.0,
            QuotaKey.REQUEST_PERCENTAGE: 12.5,
        }
    }
    assert describe(store, version=version) == ["user:u+client-id:None"]


def test_setting_and_removing() -> None:
    store = MemoryStore()
    user: Parts = [("user", "u")]
    alter(store, (user, [(PRODUCER, 5.0), (CONSUMER, 6.0)]))
    assert alter(store, (user, [(PRODUCER, None), (CONSUMER, 7.0)])) == [DONE]
    assert store.quotas == {QuotaEntity(user="u"): {CONSUMER: 7.0}}
    assert alter(store, (user, [(PRODUCER, None), ("unknown", None)])) == [DONE]
    assert alter(store, (user, [(CONSUMER, None)])) == [DONE]
    assert store.quotas == {}


def test_only_validated_is_not_stored() -> None:
    store = MemoryStore()
    reported = alter(
        store,
        ([("user", "u")], [(PRODUCER, 5.0)]),
        ([("user", "v")], [(PRODUCER, 0.0)]),
        validate_only=True,
    )
    assert [code for code, _ in reported] == ["none", "invalid_request"]
    alter(store, ([("user", "v")], [(PRODUCER, 0.0)]))
    assert store.quota_version() == 0


@pytest.mark.parametrize(
    ("parts", "ops", "message"),
    [
        ([], [(PRODUCER, 5.0)], "Invalid empty client quota entity"),
        ([("user", "")], [(PRODUCER, 5.0)], "Empty user not supported"),
        ([("group", "g")], [(PRODUCER, 5.0)], "Unhandled client quota entity type: group"),
        ([("user", "a"), ("user", "b")], [], "duplicate entity entry user"),
        ([("user", "a"), ("ip", None)], [], "IP entity should not be combined"),
        ([("ip", "nowhere")], [], "nowhere is not a valid IP"),
        ([("user", "a")], [("connection_creation_rate", 5.0)], "Invalid configuration key"),
        ([("ip", "::1")], [(PRODUCER, 5.0)], "Invalid configuration key producer_byte_rate"),
        ([("user", "a")], [("bytes", 5.0)], "Invalid configuration key bytes"),
        ([("user", "a")], [(PRODUCER, 5.0), (PRODUCER, 6.0)], "Duplicate quota key"),
        ([("user", "a")], [(PRODUCER, 5.0), (PRODUCER, None)], "Duplicate quota key"),
        ([("user", "a")], [(PRODUCER, 0.0)], "must be greater than 0"),
        ([("user", "a")], [(PRODUCER, -1.0)], "must be greater than 0"),
        ([("user", "a")], [(PRODUCER, float("nan"))], "must be greater than 0"),
        ([("user", "a")], [(PRODUCER, float("inf"))], "too large for a LONG"),
        ([("user", "a")], [(PRODUCER, 1.5)], "cannot be a fractional value"),
        ([("user", "a")], [(CONSUMER, 7.0), (PRODUCER, 1.5)], "cannot be a fractional value"),
    ],
)
def test_what_is_wrong_is_told_by_entry_and_stores_nothing(
    parts: Parts, ops: list[Op], message: str
) -> None:
    store = MemoryStore()
    good: tuple[Parts, list[Op]] = ([("user", "good")], [(PRODUCER, 5.0)])
    (code, reported), other = alter(store, (parts, ops), good)
    assert code == "invalid_request"
    assert reported is not None
    assert message in reported
    assert other == DONE
    assert store.quotas == {QuotaEntity(user="good"): {PRODUCER: 5.0}}


def test_of_an_entity_named_twice_the_first_is_applied() -> None:
    """Seen; in whatever order its parts come. There is one answer for both."""
    store = MemoryStore()
    reported = alter(
        store,
        ([("user", "u"), ("client-id", "c")], [(PRODUCER, 1.0)]),
        ([("client-id", "c"), ("user", "u")], [(PRODUCER, 2.0)]),
    )
    assert reported == [("invalid_request", "Ignoring duplicate entity")]
    assert store.quotas == {QuotaEntity(user="u", client_id="c"): {PRODUCER: 1.0}}


def test_default_is_an_ordinary_name() -> None:
    store = MemoryStore()
    alter(
        store, ([("user", "<default>")], [(PRODUCER, 1.0)]), ([("user", None)], [(PRODUCER, 2.0)])
    )
    assert store.quotas == {
        QuotaEntity(user="<default>"): {PRODUCER: 1.0},
        QuotaEntity(user=DEFAULT): {PRODUCER: 2.0},
    }


@pytest.fixture
def filled() -> MemoryStore:
    store = MemoryStore()
    entities: list[Parts] = [
        [("user", "a")],
        [("user", None)],
        [("client-id", "c")],
        [("client-id", None)],
        [("user", "a"), ("client-id", "c")],
        [("user", "a"), ("client-id", None)],
        [("user", None), ("client-id", "c")],
        [("ip", "10.0.0.1")],
    ]
    for parts in entities:
        key = "connection_creation_rate" if parts[0][0] == "ip" else PRODUCER
        assert alter(store, (parts, [(key, 5.0)])) == [DONE]
    return store


@pytest.mark.parametrize(("components", "strict", "found"), table(__file__, "quota_filters"))
@VERSIONS
def test_filters_find_what_kafkas_find(
    filled: MemoryStore,
    components: list[tuple[str, int, str | None]],
    strict: bool,
    found: list[str],
    version: int,
) -> None:
    assert describe(filled, *components, strict=strict, version=version) == found


INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 0, "a")], INVALID_REQUEST, "Invalid empty entity type."),
        ([("group", 0, "a")], UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 0, "a"), ("user", 2, None)], INVALID_REQUEST, "more than once"),
        ([("user", 0, None)], INVALID_REQUEST, "set match string to null"),
        ([("user", 1, "a")], INVALID_REQUEST, "also specified a match string"),
        ([("user", 2, "a")], INVALID_REQUEST, "also specified a match string"),
        ([("user", 3, None)], INVALID_REQUEST, "Unknown match type 3"),
        ([("user", -1, "a")], INVALID_REQUEST, "Unknown match type -1"),
        ([("ip", 2, None), ("user", 2, None)], INVALID_REQUEST, "should not be used"),
    ],
)
def test_filters_that_make_no_sense(
    filled: MemoryStore, components: list[tuple[str, int, str | None]], code: int, message: str
) -> None:
    reported = describe(filled, *components)
    assert reported[0] == code
    assert message in reported[1]


def test_nobody_without_authorization(filled: MemoryStore) -> None:
    """The answer reveals neither existing quotas nor errors of the request."""
    before = filled.quota_version()
    reported = alter(
        filled, ([("user", "a")], [(PRODUCER, 7.0)]), ([("group", "")], []), authorized=False
    )
    assert reported == [("cluster_authorization_failed", "Cluster authorization failed.")] * 2
    assert filled.quota_version() == before
    refused = describe(filled, ("group", 9, None), authorized=False)
    assert refused == (31, None)


names = st.sampled_from(["a", "b", "", None])
kinds = st.sampled_from(["user", "client-id", "ip", "group"])
values = st.sampled_from([None, 1.0, 1.5, 0.0, float("nan"), 1e30])
keys = st.sampled_from([*(key.value for key in QuotaKey), "unknown"])


@settings(deadline=None, max_examples=60)
@given(
    requests=st.lists(
        st.lists(
            st.tuples(
                st.lists(st.tuples(kinds, names), max_size=3),
                st.lists(st.tuples(keys, values), max_size=3),
            ),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_nothing_impossible_is_ever_stored(requests: list[list[tuple[Parts, list[Op]]]]) -> None:
    store = MemoryStore()
    for entries in requests:
        reported = alter(store, *entries)
        assert len(reported) == len({frozenset(parts) for parts, _ in entries})
        for limits in store.quotas.values():
            assert limits
            assert all(value_problem(key, value) is None for key, value in limits.items())
    assert len(describe(store)) == len(store.quotas)


# Quotas that the store refuses, and bounds on requests


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
