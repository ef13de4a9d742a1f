"""DescribeClientQuotas v2: each filter as if it had been sent alone, whatever the others are."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.handlers import quotas
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.wire.apis import MAX_FILTERS, MAX_RESULT_BYTES
from proxy.wire.primitives import write_array_length
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import request_body
from tests.support.quotas import MemoryStore

DESCRIBE = 48
Component = tuple[str, int, str | None]
Components = tuple[Component, ...]
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
ALICE: Components = (("user", 0, "alice"),)
BOB: Components = (("user", 0, "bob"),)


def store_of(*entities: QuotaEntity) -> MemoryStore:
    store = MemoryStore()
    store.quotas = {
        entity: {QuotaKey.CONNECTION_CREATION_RATE if entity.ip else PRODUCER: float(number)}
        for number, entity in enumerate(entities, 1)
    }
    return store


def body_of(*filters: Components, strict: bool = False) -> bytes:
    wanted = [{"components": as_fields(components)} for components in filters]
    return request_body(DESCRIBE, 2, strict=strict, filters=wanted)


def as_fields(components: Components) -> list[dict[str, Any]]:
    return [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]


def for_each(users: list[str]) -> bytes:
    """A filter for each of these names of six letters."""
    one = body_of((("user", 0, "u00000"),))
    head, item, tail = one[:1], one[2:-1], one[-1:]
    items = [item.replace(b"u00000", user.encode()) for user in users]
    return head + write_array_length(len(users), flexible=True) + b"".join(items) + tail


def results(
    store: MemoryStore, body: bytes, *, authorized: bool = True, max_bytes: int = MAX_RESULT_BYTES
) -> list[Any]:
    reported = quotas.answer_batch(body, store, authorized=authorized, max_bytes=max_bytes)
    response = decode(response_type(DESCRIBE, 2), reported)
    assert encode(response) == reported, "and no bytes behind it"
    assert response.throttle_time.total_seconds() == 0
    return list(response.filter_results)


def alone(store: MemoryStore, components: Components, *, strict: bool, authorized: bool) -> Any:
    """What v1 says of one filter."""
    body = request_body(DESCRIBE, 1, components=as_fields(components), strict=strict)
    reported = quotas.answer(DESCRIBE, 1, body, store, authorized=authorized)
    return decode(response_type(DESCRIBE, 1), reported)


def plain(result: Any) -> tuple[object, ...]:
    entries = result.entries and [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [(value.key, value.value) for value in entry.values],
        )
        for entry in result.entries
    ]
    return result.error_code, result.error_message, entries


def names_of(result: Any) -> list[list[str | None]]:
    return [[part.entity_name for part in entry.entity] for entry in result.entries or ()]


def errors(reported: list[Any]) -> list[str]:
    return [one.error_code.name for one in reported]


names = st.sampled_from(["alice", "bob", "<default>", DEFAULT, None])
entities = st.builds(
    lambda user, client_id: (
        QuotaEntity(user=user, client_id=client_id)
        if user or client_id
        else (QuotaEntity(ip=DEFAULT))
    ),
    names,
    names,
) | st.sampled_from([QuotaEntity(ip="192.0.2.1"), QuotaEntity(ip="192.0.2.2")])
good_matches = st.tuples(st.just(0), st.sampled_from(["alice", "bob", "192.0.2.1"])) | st.tuples(
    st.sampled_from([1, 2]), st.none()
)
bad_matches = st.sampled_from([(0, None), (1, "x"), (2, "x"), (3, None), (-1, "x")])
kinds = st.sampled_from(["user", "user", "client-id", "client-id", "ip"])
components = st.lists(
    st.tuples(kinds, good_matches).map(lambda one: (one[0], *one[1]))
    | st.tuples(st.sampled_from(["user", "", "group"]), bad_matches | good_matches).map(
        lambda one: (one[0], *one[1])
    ),
    max_size=3,
).map(tuple)


@settings(max_examples=300, deadline=None)
@given(
    present=st.lists(entities, max_size=12, unique=True),
    filters=st.lists(components, max_size=12),
    strict=st.booleans(),
    authorized=st.sampled_from([True, True, True, False]),
)
def test_results_are_as_if_each_filter_had_been_sent_alone(
    present: list[QuotaEntity], filters: list[Components], strict: bool, authorized: bool
) -> None:
    store = store_of(*present)
    reported = results(store, body_of(*filters, strict=strict), authorized=authorized)
    expected = [alone(store, one, strict=strict, authorized=authorized) for one in filters]
    assert [plain(one) for one in reported] == [plain(one) for one in expected]


def test_100_000_filters_and_one_more() -> None:
    store = store_of(QuotaEntity(user="u00007"))
    users = [f"u{n:05}" for n in range(MAX_FILTERS)]
    found, nothing = (
        quotas.answer_batch(body_of((("user", 0, user),)), store, authorized=True)
        for user in ("u00007", "u00008")
    )
    (one,) = results(store, body_of((("user", 0, "u00007"),)))
    assert names_of(one) == [["u00007"]]
    result, other = found[5:-1], nothing[5:-1]
    whole = quotas.answer_batch(for_each(users), store, authorized=True)
    assert whole == (
        found[:4]
        + write_array_length(MAX_FILTERS, flexible=True)
        + other * 7
        + result
        + other * (MAX_FILTERS - 8)
        + found[-1:]
    )
    for authorized in (True, False):
        too_many = results(store, for_each([*users, "u00007"]), authorized=authorized)
        assert [plain(one)[1] for one in too_many] == ["More than 100000 filters."]


@given(
    most=st.integers(0, 1_500),
    picks=st.lists(st.sampled_from([ALICE, BOB, (), (("user", 2, None),)]), max_size=10),
)
def test_the_bound_is_kept(most: int, picks: list[Components]) -> None:
    """The first filters are those that are answered, repeated ones included."""
    store = store_of(
        *(QuotaEntity(user=user, client_id=str(n)) for user in ("alice", "bob") for n in range(9))
    )
    body = body_of(*picks)
    reported = results(store, body, max_bytes=most)
    fitting = errors(reported).count("none")
    assert errors(reported) == ["none"] * fitting + ["policy_violation"] * (len(picks) - fitting)
    assert [plain(one) for one in reported[:fitting]] == [
        plain(one) for one in results(store, body)[:fitting]
    ]
    refusals = sum(len(one.error_message) + 5 for one in reported[fitting:])
    size = len(quotas.answer_batch(body, store, authorized=True, max_bytes=most))
    assert size <= 4 + 1 + most + refusals + 1
