"""DescribeAcls v4, and the encoder of resources."""

import tracemalloc
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.handlers import acl_responses
from proxy.handlers.acl_responses import Resources, TooLarge
from proxy.handlers.acls import Acls, answer_batch
from proxy.store import Store
from proxy.wire.apis import MAX_FILTERS, MAX_RESULT_BYTES
from proxy.wire.primitives import write_array_length
from tests.support.acls import MemoryAclStore, acl, answer, asking, whole
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.kio_messages.entities import item_type
from tests.support.messages import message, request_body

DESCRIBE: Final = 29
TAGS: Final = b"\x00"


def body_of(filters: Sequence[dict[str, Any]]) -> bytes:
    return request_body(DESCRIBE, 4, filters=filters)


def answered(
    body: bytes, store: MemoryAclStore | None, *, authorized: bool = True
) -> tuple[Any, bytes]:
    found = answer(DESCRIBE, 4, body, store, authorized=authorized)
    response = decode(response_type(DESCRIBE, 4), found)
    assert encode(response) == found, "and no bytes behind it"
    assert entity_reader(response_type(DESCRIBE, 4))(found, 0) == (response, len(found))
    return response, found


def described(
    store: MemoryAclStore | None, *filters: dict[str, Any], authorized: bool = True
) -> list[Any]:
    response, _ = answered(body_of(filters), store, authorized=authorized)
    assert response.throttle_time.total_seconds() == 0
    return list(response.filter_results)


def alone(store: MemoryAclStore | None, fields: dict[str, Any], *, authorized: bool = True) -> Any:
    """What v3 says of one filter."""
    body = encode(request_type(DESCRIBE, 3)(**fields))
    found = answer(DESCRIBE, 3, body, store, authorized=authorized)
    return decode(response_type(DESCRIBE, 3), found)


def bounded_answer(body: bytes, acls: Acls, max_bytes: int) -> bytes:
    return whole(answer_batch(body, acls, authorized=True, max_bytes=max_bytes))


def bounded(
    store: MemoryAclStore, filters: Sequence[dict[str, Any]], max_bytes: int = MAX_RESULT_BYTES
) -> tuple[Any, int]:
    found = bounded_answer(body_of(filters), store.administered(), max_bytes)
    return decode(response_type(DESCRIBE, 4), found).filter_results, len(found)


def plain(result: Any) -> tuple[object, ...]:
    """A result of v4, or a response of v3, without the classes of its version."""
    return (
        result.error_code,
        result.error_message,
        [
            (
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                [(a.principal, a.host, a.operation, a.permission_type) for a in one.acls],
            )
            for one in result.resources
        ],
    )


def errors(results: Sequence[Any]) -> list[str]:
    return [one.error_code.name for one in results]


# ---------------------------------------------------------------------- as if alone

names = st.sampled_from(["", "*", "a", "ab", "abc", "b", "kafka-cluster"])
principals = st.sampled_from(["User:a", "User:b", "User:*"])
hosts = st.sampled_from(["*", "h", "10.0.0.0/8"])
some_acls = st.builds(
    acl,
    names,
    principals,
    host=hosts,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    resource_type=st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.USER]),
    operation=st.sampled_from([Operation.READ, Operation.ALL]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
some_filters = st.fixed_dictionaries(
    {
        "resource_type_filter": st.sampled_from([1, 1, 1, 2, 2, 3, 7, 0, 99]),
        "resource_name_filter": st.none() | names,
        "pattern_type_filter": st.sampled_from([1, 2, 2, 3, 4, 1, 0, 9]),
        "principal_filter": st.none() | principals,
        "host_filter": st.none() | hosts,
        "operation": st.sampled_from([1, 1, 1, 2, 3, 0, 99]),
        "permission_type": st.sampled_from([1, 1, 1, 2, 3, 0, 9]),
    }
)


@settings(max_examples=200, deadline=None)
@given(
    acls=st.lists(some_acls, max_size=60, unique=True),
    filters=st.lists(some_filters, max_size=25),
    rights=st.sampled_from(["yes", "yes", "yes", "no", "off"]),
)
def test_results_are_as_if_each_filter_had_been_sent_alone(
    acls: list[Acl], filters: list[dict[str, Any]], rights: str
) -> None:
    store = None if rights == "off" else MemoryAclStore(*acls)
    results = described(store, *filters, authorized=rights == "yes")
    expected = [alone(store, one, authorized=rights == "yes") for one in filters]
    assert [plain(one) for one in results] == [plain(one) for one in expected]


# ---------------------------------------------------------------------- bad input


def test_100_000_filters() -> None:
    store = MemoryAclStore(acl(principal="User:00007"))
    one = body_of([asking(principal_filter="User:00000")])
    items = [one[1:-1].replace(b"00000", b"%05d" % number) for number in range(MAX_FILTERS)]
    found, nothing = (
        alone_in_batch(store, {"principal_filter": f"User:{n}"}) for n in ("00007", "00008")
    )
    assert b"User:00007" in found
    assert b"User:00007" not in nothing
    assert many(b"".join(items), store) == nothing * 7 + found + nothing * (MAX_FILTERS - 8)


def test_the_same_filter_100_000_times() -> None:
    """Answered with the result of the first."""
    store = MemoryAclStore(acl())
    item = body_of([asking()])[1:-1]
    assert [len(one.resources) for one in described(store, asking())] == [1]
    assert many(item * MAX_FILTERS, store) == alone_in_batch(store, {}) * MAX_FILTERS


def alone_in_batch(store: MemoryAclStore, fields: dict[str, str]) -> bytes:
    """The result of the only filter of a request."""
    body = body_of([asking(**fields)])
    _, found = answered(body, store)
    return found[5:-1]


def many(items: bytes, store: MemoryAclStore) -> bytes:
    """The results of as many filters as a request may have."""
    body = write_array_length(MAX_FILTERS, flexible=True) + items + TAGS
    found = bounded_answer(body, store.administered(), MAX_RESULT_BYTES)
    head = bytes(4) + write_array_length(MAX_FILTERS, flexible=True)
    assert (found[: len(head)], found[-1:]) == (head, TAGS)
    return found[len(head) : -1]


@pytest.mark.parametrize("authorized", [True, False])
def test_too_many_filters_are_one_invalid_request(authorized: bool) -> None:
    """None is evaluated: who may not describe gets no large answer for many small filters."""
    body = body_of([asking()] * (MAX_FILTERS + 1))
    response, _ = answered(body, MemoryAclStore(acl()), authorized=authorized)
    assert errors(response.filter_results) == ["invalid_request"]
    assert response.filter_results[0].error_message == "More than 100000 filters."


# ---------------------------------------------------------------------- large answers


@given(
    most=st.integers(0, 3_000),
    picks=st.lists(st.sampled_from(["User:a", "User:b", "User:*", None, "none"]), max_size=12),
)
def test_the_bound_is_kept(most: int, picks: list[str | None]) -> None:
    """Repeated filters and passes over all ACLs included."""
    store = MemoryAclStore(
        *(acl(f"t{n}", principal) for n in range(20) for principal in ("User:a", "User:b"))
    )
    filters = [asking(principal_filter=one, operation=3) for one in picks]
    results, size = bounded(store, filters, most)
    refused = [one for one in results if one.error_code.name == "policy_violation"]
    refusals = sum(len(one.error_message) + 5 for one in refused)
    assert size <= 4 + 1 + most + refusals + 1
    fitting = len(results) - len(refused)
    assert errors(results) == ["none"] * fitting + ["policy_violation"] * len(refused)
    for fields, result in zip(filters[:fitting], results, strict=False):
        assert plain(result) == plain(alone(store, fields))


def test_memory_stays_near_the_size_of_the_answer() -> None:
    """A thousand filters that each find everything: fifty million ACLs, if all were gathered."""
    acls = [acl(f"topic-{number:05}", host="h" * 40) for number in range(50_000)]
    index = AclIndex(acls, version=1)
    administered = Acls(store=cast(Store, MemoryAclStore()), current=lambda: index)
    filters = [asking(resource_type_filter=2, permission_type=3)] + [
        asking(resource_type_filter=2, operation=code) for code in (1, 3)
    ]
    names = [
        asking(pattern_type_filter=2, resource_name_filter=f"topic-{n:05}") for n in range(1_000)
    ]
    body = body_of(filters + names)
    bound = 4 << 20
    tracemalloc.start()
    try:
        found = bounded_answer(body, administered, bound)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) < bound + 1_003 * 100
    assert peak < 4 * bound


ALICE = "User:alice"
RESOURCE = attrgetter("resource_type", "pattern_type", "name")


def by_schema(api_version: int, acls: list[Acl]) -> bytes:
    """The items, each written by kio's class of it."""
    resource = item_type(response_type(DESCRIBE, api_version), "resources")
    items = []
    for (kind, pattern, name), group in groupby(acls, RESOURCE):
        entries = [
            {"principal": one.principal, "host": one.host}
            | {"operation": one.operation.value, "permission_type": one.permission.value}
            for one in group
        ]
        fields = {"resource_type": kind.value, "pattern_type": pattern.value}
        items.append(message(resource, {**fields, "resource_name": name, "acls": entries}))
    return b"".join(map(encode, items))


distinct_acls = st.lists(
    st.builds(
        Acl,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(["a", "b", "ü" * 70, "c" * 249]),
        st.sampled_from([ALICE, "User:bob", "User:" + "x" * 300]),
        st.integers(0, 300).map(str),
        st.sampled_from([Operation.READ, Operation.ALL]),
        st.sampled_from([Permission.ALLOW, Permission.DENY]),
    ),
    unique=True,
    max_size=40,
).map(sorted)


@given(acls=distinct_acls, version=st.sampled_from([1, 2, 3]))
@example(acls=sorted(acl("t", host=str(n)) for n in range(1_000)), version=3)
@example(acls=sorted(acl(f"t{n // 3:03}", host=str(n)) for n in range(1_000)), version=1)
@example(
    acls=sorted(
        acl("a" if n < 100 else "b" if n < 500 else f"c{n}", host=str(n)) for n in range(900)
    ),
    version=2,
)
def test_items_are_as_the_schema_has_them(acls: list[Acl], version: int) -> None:
    """Also where a resource has more ACLs than are written at once."""
    written, count = Resources(version).write(acls)
    assert written == by_schema(version, acls)
    assert count == len(set(map(RESOURCE, acls)))


def test_strings_cached_for_one_list_are_right_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the cache is emptied in between."""
    lists = [[acl(f"t{m}{n}", f"User:{m}") for n in range(3)] for m in range(9)] * 2
    for size in (acl_responses._MAX_CACHED, 2, 0):
        monkeypatch.setattr(acl_responses, "_MAX_CACHED", size)
        writer = Resources(3)
        for acls in lists:
            assert writer.write(acls)[0] == by_schema(3, acls)


@pytest.mark.parametrize("same", [True, False], ids=["one resource", "many"])
def test_what_is_too_large_is_given_up_early(same: bool) -> None:
    looked_at = 0

    def endless() -> "object":
        nonlocal looked_at
        while looked_at < 100_000:
            looked_at += 1
            name = "t" if same and looked_at < 5_000 else f"t{looked_at}"
            yield acl(name, host=str(looked_at))

    with pytest.raises(TooLarge):
        Resources(3).write(endless(), max_bytes=1_000)  # type: ignore[arg-type]
    assert looked_at < 10_000
