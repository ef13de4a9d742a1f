"""Bodies that a handler cannot trust: cut off, too large, garbage."""

import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ClientFault
from proxy.handlers import quotas, scram_users
from proxy.quota.model import QuotaKey
from proxy.store import open_store
from proxy.store.interface import CredentialStore
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SCRAM_APIS,
)
from proxy.wire.codec import encode
from tests.support import acls, kio_messages
from tests.support.acls import MemoryAclStore, acl, asking, creation
from tests.support.frames import array
from tests.support.messages import request_body
from tests.support.quotas import MemoryStore, alter_request
from tests.support.store import delete, request_of, upsert

Api = tuple[int, int]
"""API key and version."""

USER = {"entity_type": "user", "match_type": 0, "match": "u"}
BODIES: Mapping[Api, bytes] = {
    **{
        api: body
        for version in range(4)
        for api, body in {
            (DESCRIBE_ACLS, version): acls.describe_body(version, asking(resource_name_filter="t")),
            (CREATE_ACLS, version): acls.create_body(version, [creation(), creation(host="h")]),
            (DELETE_ACLS, version): acls.delete_body(version, [asking(), asking(host_filter="h")]),
        }.items()
    },
    **{
        (ALTER_CLIENT_QUOTAS, version): alter_request(
            [([("user", "u")], [(QuotaKey.PRODUCER_BYTE_RATE, 5.0)])], version=version
        )
        for version in range(2)
    },
    (DESCRIBE_CLIENT_QUOTAS, 1): request_body(
        DESCRIBE_CLIENT_QUOTAS, 1, components=[USER], strict=False
    ),
    (DESCRIBE_USER_SCRAM_CREDENTIALS, 0): b"\x03\x02a\x00\x02b\x00\x00",
    (ALTER_USER_SCRAM_CREDENTIALS, 0): encode(request_of([delete("a"), upsert("b")]), 0),
}
BATCHES: Mapping[Api, bytes] = {
    (DESCRIBE_ACLS, 4): request_body(
        DESCRIBE_ACLS, 4, filters=[asking(), asking(principal_filter="User:alice")]
    ),
    (DESCRIBE_CLIENT_QUOTAS, 2): request_body(
        DESCRIBE_CLIENT_QUOTAS, 2, strict=False, filters=[{"components": [USER]}] * 2
    ),
}
BILLIONS = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"]
AUTHORIZED = pytest.mark.parametrize("authorized", [True, False])


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CredentialStore]:
    with closing(open_store(f"sqlite:{tmp_path_factory.mktemp('store') / 'state.db'}")) as store:
        yield store


def answer(api: Api, body: bytes, users: CredentialStore, *, authorized: bool = True) -> bytes:
    api_key, version = api
    if api_key in SCRAM_APIS:
        return scram_users.answer(api_key, body, users, authorized=authorized)
    if api_key in (DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS):
        return quotas.answer(api_key, version, body, MemoryStore(), authorized=authorized)
    return acls.answer(api_key, version, body, MemoryAclStore(acl()), authorized=authorized)


def results(api: Api, body: bytes, users: CredentialStore, *, authorized: bool = True) -> list[Any]:
    """The results of a batch, of which no byte is left over."""
    found = answer(api, body, users, authorized=authorized)
    response = kio_messages.decode(kio_messages.response_type(*api), found)
    assert kio_messages.encode(response) == found
    return list(response.filter_results)


@pytest.mark.parametrize("api", BODIES)
def test_every_truncation_is_the_clients_fault(api: Api, users: CredentialStore) -> None:
    for end in range(len(BODIES[api])):
        with pytest.raises(ClientFault):
            answer(api, BODIES[api][:end], users)


@pytest.mark.parametrize(("api", "body"), [*BODIES.items(), *BATCHES.items()])
def test_bytes_behind_the_body_are_ignored(api: Api, body: bytes, users: CredentialStore) -> None:
    assert answer(api, body + b"more", users) == answer(api, body, users)


@AUTHORIZED
@pytest.mark.parametrize("api", [api for api in BODIES if api[0] not in (29, 48)])
def test_an_array_that_claims_billions_is_the_clients_fault(
    api: Api, users: CredentialStore, authorized: bool
) -> None:
    """A reader that allocated memory for them would fail, and with it the whole worker."""
    is_flexible = kio_messages.request_type(*api).__flexible__
    starts = [b"", b"\x01", b"\x02\x02a\x01\x00"] if api[0] == 51 else [b""]
    for claim in BILLIONS if is_flexible else BILLIONS[:1]:
        for start in starts:
            with pytest.raises(ClientFault):
                answer(api, start + claim + b"\x02a\x01\x00", users, authorized=authorized)


@given(
    api=st.sampled_from([*BODIES]),
    start=st.sampled_from([b"", b"\x00", b"\x02\x02\x05user", b"\x02\x02a\x01\x00", *BILLIONS]),
    middle=st.sampled_from([b"", *BILLIONS]),
    rest=st.binary(max_size=80),
    authorized=st.booleans(),
)
def test_garbage_is_answered_or_the_clients_fault(
    users: CredentialStore, api: Api, start: bytes, middle: bytes, rest: bytes, authorized: bool
) -> None:
    """Lengths of billions at any place, too."""
    with suppress(ClientFault):
        found = answer(api, start + middle + rest, users, authorized=authorized)
        response = kio_messages.decode(kio_messages.response_type(*api), found)
        assert kio_messages.encode(response) == found


@pytest.mark.parametrize(
    ("api", "body", "most"),
    [
        ((DESCRIBE_USER_SCRAM_CREDENTIALS, 0), b"\x01\x00", scram_users.MAX_BYTES),
        ((ALTER_USER_SCRAM_CREDENTIALS, 0), b"\x01\x01\x00", scram_users.MAX_BYTES),
        ((DESCRIBE_CLIENT_QUOTAS, 1), b"\x01\x00\x00", quotas.MAX_BYTES),
        ((ALTER_CLIENT_QUOTAS, 1), b"\x01\x00\x00", quotas.MAX_BYTES),
    ],
)
def test_more_bytes_than_anybody_sends_are_the_clients_fault(
    api: Api, body: bytes, most: int, users: CredentialStore
) -> None:
    """Few names may be long, and letters may take four times as much in memory."""
    assert answer(api, body + bytes(most - len(body)), users)
    with pytest.raises(ClientFault):
        answer(api, body + bytes(most + 1 - len(body)), users)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ((DESCRIBE_USER_SCRAM_CREDENTIALS, 0), array(b"\x01\x00", 1_000_000) + b"\x00"),
        ((ALTER_CLIENT_QUOTAS, 1), array(b"\x01\x01\x00", 1_000_000) + b"\x00\x00"),
    ],
    ids=["users", "quotas"],
)
def test_little_memory_is_needed_for_what_is_too_much(
    api: Api, body: bytes, users: CredentialStore
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ClientFault):
            answer(api, body, users, authorized=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


class TestBatches:
    """No ClientFault: the connection lives on."""

    @AUTHORIZED
    @pytest.mark.parametrize(
        "rest", [b"\x00\x00", b"", b"\x80", b"\xff\xff\xff\xff\x07", b"\x03\x01"]
    )
    @pytest.mark.parametrize("api", BATCHES)
    def test_what_cannot_be_read_is_one_invalid_request(
        self, api: Api, rest: bytes, users: CredentialStore, authorized: bool
    ) -> None:
        """Null filters, no bytes, lying counts."""
        start = b"\x00" if api[0] == DESCRIBE_CLIENT_QUOTAS else b""
        (result,) = results(api, start + rest, users, authorized=authorized)
        assert result.error_code.name == "invalid_request"
        assert result.error_message == "The request cannot be read."

    @pytest.mark.parametrize("api", BATCHES)
    def test_every_truncation_is_an_invalid_request(self, api: Api, users: CredentialStore) -> None:
        for end in range(len(BATCHES[api])):
            (result,) = results(api, BATCHES[api][:end], users)
            assert result.error_code.name == "invalid_request", end

    @given(api=st.sampled_from([*BATCHES]), body=st.binary(max_size=80), authorized=st.booleans())
    def test_garbage_is_answered(
        self, users: CredentialStore, api: Api, body: bytes, authorized: bool
    ) -> None:
        results(api, body, users, authorized=authorized)
