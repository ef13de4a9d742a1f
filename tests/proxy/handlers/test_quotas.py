"""DescribeClientQuotas and AlterClientQuotas: Kafka's answers, but where a difference is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey, value_problem
from tests.support.quotas import DONE, VERSIONS, MemoryStore, Op, Parts, alter, describe

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


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], True, []),
        ([("user", 0, "a")], True, ["user:a"]),
        ([("user", 0, "a")], False, ["user:a", "user:a+client-id:None", "user:a+client-id:c"]),
        ([("user", 1, None)], True, ["user:None"]),
        ([("user", 1, None)], False, ["user:None", "user:None+client-id:c"]),
        ([("user", 2, None)], True, ["user:None", "user:a"]),
        ([("user", 0, "<default>")], False, []),
        (
            [("user", 2, None), ("client-id", 2, None)],
            True,
            ["user:None+client-id:c", "user:a+client-id:None", "user:a+client-id:c"],
        ),
        ([("user", 0, "a"), ("client-id", 1, None)], True, ["user:a+client-id:None"]),
        ([("client-id", 0, "c")], True, ["client-id:c"]),
        ([("ip", 2, None)], False, ["ip:10.0.0.1"]),
        ([("user", 0, "nobody")], False, []),
    ],
)
@VERSIONS
def test_filters_find_what_kafkas_find(
    filled: MemoryStore,
    components: list[tuple[str, int, str | None]],
    strict: bool,
    found: list[str],
    version: int,
) -> None:
    assert describe(filled, *components, strict=strict, version=version) == found


def test_no_filter_finds_everything(filled: MemoryStore) -> None:
    assert len(describe(filled)) == 8


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
