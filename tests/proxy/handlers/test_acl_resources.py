"""The items of DescribeAcls responses: as the schema's own writer writes them."""

from itertools import groupby
from operator import attrgetter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.handlers import acl_responses
from proxy.handlers.acl_responses import Resources, TooLarge
from tests.support.acls import acl
from tests.support.kio_messages import encode, response_type

ALICE = "User:alice"
RESOURCE = attrgetter("resource_type", "pattern_type", "name")


def by_schema(api_version: int, acls: list[Acl]) -> bytes:
    """The items, each written by kio's class of it."""
    response = response_type(29, api_version)
    resource = response.__annotations__["resources"].__args__[0]
    entry = resource.__annotations__["acls"].__args__[0]
    items = []
    for (kind, pattern, name), group in groupby(acls, RESOURCE):
        entries = tuple(
            entry(
                principal=one.principal,
                host=one.host,
                operation=one.operation.value,
                permission_type=one.permission.value,
            )
            for one in group
        )
        items.append(
            resource(
                resource_type=kind.value,
                resource_name=name,
                pattern_type=pattern.value,
                acls=entries,
            )
        )
    return b"".join(map(encode, items))


some_acls = st.lists(
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


@given(acls=some_acls, version=st.sampled_from([1, 2, 3]))
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
