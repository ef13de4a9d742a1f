"""Untrusted input of the ACL APIs: too many items, arrays that lie, halves, garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ClientFault
from proxy.handlers.acls import MAX_ITEMS
from tests.support.acls import (
    CREATE,
    DELETE,
    DESCRIBE,
    VERSIONS,
    MemoryAclStore,
    acl,
    answer,
    asked,
    asking,
    create_body,
    creation,
    delete_body,
    describe_body,
    reported,
)
from tests.support.kio_messages import decode, encode, response_type


@pytest.mark.parametrize("api_key", [CREATE, DELETE])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rights", [True, False])
def test_too_many_items(api_key: int, version: int, rights: bool) -> None:
    """Kafka's limit. They are counted, not read: a request of a million costs no more."""
    body = (
        create_body(version, [creation()] * (MAX_ITEMS + 1))
        if api_key == CREATE
        else delete_body(version, [asking()] * (MAX_ITEMS + 1))
    )
    store = MemoryAclStore()
    response = asked(api_key, version, body, store, may_alter=rights)
    results = response.results if api_key == CREATE else response.filter_results
    expected = "policy_violation" if rights else "cluster_authorization_failed"
    assert {reported(one) for one in results} == {(expected, None)}
    assert len(results) == MAX_ITEMS + 1
    assert store.transactions == 0


@pytest.mark.parametrize("api_key", [CREATE, DELETE])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("store", [None, MemoryAclStore()])
def test_an_array_that_claims_billions(
    api_key: int, version: int, store: MemoryAclStore | None
) -> None:
    """Even where the items would not be looked at: each of them would be answered."""
    claim = b"\x7f\xff\xff\xff" if version < 2 else b"\xff\xff\xff\xff\x07"
    for rights in (True, False):
        with pytest.raises(ClientFault):
            answer(
                api_key, version, claim + bytes(50), store, may_describe=rights, may_alter=rights
            )


def bodies(version: int) -> dict[int, bytes]:
    return {
        DESCRIBE: describe_body(version, asking(resource_name_filter="t")),
        CREATE: create_body(version, [creation(), creation(host="h")]),
        DELETE: delete_body(version, [asking(), asking(host_filter="h")]),
    }


@pytest.mark.parametrize("api_key", [DESCRIBE, CREATE, DELETE])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_the_clients_fault(api_key: int, version: int) -> None:
    whole = bodies(version)[api_key]
    store = MemoryAclStore(acl())
    for end in range(len(whole)):
        with pytest.raises(ClientFault):
            answer(api_key, version, whole[:end], store, may_describe=True, may_alter=True)
    assert store.acls == {acl()}, "and nothing was done"


@pytest.mark.parametrize("api_key", [DESCRIBE, CREATE, DELETE])
@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_behind_the_body_are_ignored(api_key: int, version: int) -> None:
    body = bodies(version)[api_key]
    answers = [
        answer(
            api_key, version, body + more, MemoryAclStore(acl()), may_describe=True, may_alter=True
        )
        for more in (b"", b"more")
    ]
    assert answers[0] == answers[1]


@given(
    api_key=st.sampled_from([DESCRIBE, CREATE, DELETE]),
    version=st.sampled_from(VERSIONS),
    body=st.binary(max_size=80),
    rights=st.booleans(),
)
def test_garbage_is_answered_or_the_clients_fault(
    api_key: int, version: int, body: bytes, rights: bool
) -> None:
    try:
        found = answer(
            api_key, version, body, MemoryAclStore(acl()), may_describe=rights, may_alter=rights
        )
    except ClientFault:
        return
    assert encode(decode(response_type(api_key, version), found)) == found
