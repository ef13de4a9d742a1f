"""The expected answers were given by Apache Kafka 4.1.0, but where a difference is named."""

import asyncio
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.connection.commands import AnswerFromStore
from proxy.handlers.acls import MAX_ITEMS, MAX_SEARCHES
from proxy.store import Store, open_store
from proxy.store.interface import StoreRefused
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
)
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import (
    APPLIED,
    CREATE,
    CREATIONS_SEEN,
    CREATIONS_SEEN_SINCE_4_4,
    DELETE,
    DONE,
    FILTERS_BETTER,
    FILTERS_SEEN,
    NO_NAME,
    VERSIONS,
    MemoryAclStore,
    Result,
    acl,
    asked,
    asking,
    create_body,
    created,
    creation,
    delete_body,
    deleted,
    described,
    reported,
    unknown,
)
from tests.support.kio_messages import decode, response_type
from tests.support.quotas import alter_request
from tests.support.store import SHA_256, Reading, delete, question, request_of, verifier

CREATIONS_BETTER: list[tuple[dict[str, Any], Result]] = [
    # Kafka closes the connection
    ({"resource_type": 0}, unknown("resourceType")),
    ({"resource_pattern_type": 0}, unknown("patternType")),
    ({"operation": 0}, unknown("operation")),
    ({"permission_type": 0}, unknown("permissionType")),
    # Kafka fails the whole request with UNKNOWN_SERVER_ERROR
    ({"resource_type": 1}, unknown("resourceType", "ANY")),
    ({"resource_pattern_type": 1}, unknown("patternType", "ANY")),
    ({"resource_pattern_type": 2}, unknown("patternType", "MATCH")),
    ({"operation": 1}, unknown("operation", "ANY")),
    ({"permission_type": 1}, unknown("permissionType", "ANY")),
]


def acls_of(response: Any) -> list[Acl]:
    return [
        Acl(
            ResourceType(resource.resource_type),
            PatternType(getattr(resource, "pattern_type", 3)),
            resource.resource_name,
            one.principal,
            one.host,
            Operation(one.operation),
            Permission(one.permission_type),
        )
        for resource in response.resources
        for one in resource.acls
    ]


def versioned(
    cases: Sequence[tuple[dict[str, Any], Result]], since_v1: str
) -> list[tuple[int, dict[str, Any], Result]]:
    """Each case in each version that has its fields."""
    return [
        (version, changes, expected)
        for version in VERSIONS
        for changes, expected in cases
        if version or since_v1 not in changes
    ]


# ---------------------------------------------------------------------- CreateAcls


@pytest.mark.parametrize(
    ("version", "changes", "expected"),
    versioned(
        [*CREATIONS_SEEN, *CREATIONS_SEEN_SINCE_4_4, *CREATIONS_BETTER], "resource_pattern_type"
    ),
)
def test_create_answers_as_kafka_does(
    version: int, changes: dict[str, Any], expected: Result
) -> None:
    """An invalid item affects no other, and the answer matches the changes made."""
    store = MemoryAclStore()
    around = creation(principal="User:other", resource_name="first"), creation(principal="User:z")

    results = created(store, around[0], creation(**changes), around[1], version=version)

    assert results == [DONE, expected, DONE]
    assert len(store.acls) == (3 if expected == DONE else 2)
    assert store.transactions == 1


def test_the_same_acl_twice_is_no_error() -> None:
    """Version 0 creates literal patterns."""
    store = MemoryAclStore()
    assert created(store, creation(), creation()) == [DONE, DONE]
    assert created(store, creation(), version=0) == [DONE]
    assert store.acls == {acl()}


def test_all_mistaken_is_no_transaction() -> None:
    store = MemoryAclStore()
    assert created(store, creation(resource_name=""), creation(operation=99)) == [
        NO_NAME,
        unknown("operation"),
    ]
    assert store.transactions == 0


def test_a_long_principal_fits_into_the_message() -> None:
    """Quoted whole, it would make a STRING that no version can hold."""
    [(code, message)] = created(MemoryAclStore(), creation(principal="x" * 32_767), version=1)
    assert code == "invalid_request"
    assert message is not None
    assert len(message) < 400


# ---------------------------------------------------------------------- DeleteAcls


@pytest.mark.parametrize(
    ("version", "changes", "expected"),
    versioned([*FILTERS_SEEN, *FILTERS_BETTER], "pattern_type_filter"),
)
def test_delete_answers_as_kafka_does(
    version: int, changes: dict[str, Any], expected: Result
) -> None:
    store = MemoryAclStore(acl(), acl("kept", "User:bob"))

    results = deleted(
        store, asking(**changes), asking(principal_filter="User:alice"), version=version
    )

    assert [reported(one) for one in results] == [expected, APPLIED]
    assert [len(one.matching_acls) for one in results] == [0, 1]
    assert store.acls == {acl("kept", "User:bob")}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_of_overlapping_filters_reports_the_acl(version: int) -> None:
    """Each is judged by the ACLs as they were before the request."""
    store = MemoryAclStore(acl(), acl(host="h"))
    results = deleted(store, asking(), asking(host_filter="h"), asking(), version=version)
    assert [len(one.matching_acls) for one in results] == [2, 1, 2]
    match = results[1].matching_acls[0]
    assert (match.error_code.name, match.error_message) == ("none", None)
    assert (match.resource_type, match.resource_name) == (2, "t")
    assert (match.principal, match.host) == ("User:alice", "h")
    assert (match.operation, match.permission_type) == (3, 3)
    assert store.acls == set()
    assert store.transactions == 1


def test_version_0_deletes_no_prefixed_acls() -> None:
    """An old tool that deletes everything cannot mean what it cannot see."""
    prefixed = acl(pattern_type=PatternType.PREFIXED)
    store = MemoryAclStore(acl(), prefixed)
    [result] = deleted(store, asking(), version=0)
    assert len(result.matching_acls) == 1
    assert store.acls == {prefixed}


def test_nothing_found_is_no_error_and_no_transaction() -> None:
    store = MemoryAclStore(acl())
    assert [reported(one) for one in deleted(store, asking(resource_name_filter="x"))] == [APPLIED]
    assert deleted(store) == []
    assert store.transactions == 0


def test_too_many_to_delete() -> None:
    """Seen: the filter is refused, and those beside it are not."""
    many = {acl(str(number)) for number in range(MAX_ITEMS)}
    group = acl("g", resource_type=ResourceType.GROUP)
    store = MemoryAclStore(*many, group)

    results = deleted(store, asking(resource_type_filter=3), asking())

    assert [reported(one) for one in results] == [
        APPLIED,
        ("invalid_request", "Cannot remove more than 10000 acls in a single delete operation."),
    ]
    assert store.acls == many
    [result] = deleted(store, asking(resource_type_filter=2))
    assert len(result.matching_acls) == MAX_ITEMS
    assert store.acls == set()


def test_searches_are_bounded() -> None:
    """Filters that name no resource look at every ACL; ten thousand of them would take minutes."""
    store = MemoryAclStore(acl())
    searches = [asking(principal_filter=f"User:{number}") for number in range(MAX_SEARCHES + 1)]
    results = deleted(store, *searches, asking(resource_name_filter="t"), searches[0])
    assert [reported(one)[0] for one in results] == [
        *["none"] * MAX_SEARCHES,
        "policy_violation",
        "none",
        "none",
    ]
    assert store.acls == set()


# ---------------------------------------------------------------------- DescribeAcls


@pytest.mark.parametrize(
    ("changes", "expected"), [*((changes, DONE) for changes, _ in FILTERS_SEEN), *FILTERS_BETTER]
)
def test_describe_finds_nothing_for_what_cannot_be(
    changes: dict[str, Any], expected: Result
) -> None:
    """KIP-140: it is an error to specify fields as UNKNOWN."""
    response = described(MemoryAclStore(acl()), asking(**changes))
    assert reported(response) == expected
    assert response.resources == ()


def test_version_0_shows_no_prefixed_acls() -> None:
    """Kafka up to 3.9: its clients could not distinguish them from literal ones."""
    store = MemoryAclStore(acl(), acl(pattern_type=PatternType.PREFIXED))
    assert acls_of(described(store, asking(), version=0)) == [acl()]
    assert len(acls_of(described(store, asking(), version=1))) == 2


# ---------------------------------------------------------------------- who may, and when

DENIED: Result = ("cluster_authorization_failed", "Cluster authorization failed.")
OFF: Result = ("security_disabled", "No Authorizer is configured.")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("store", "of_items", "of_all"),
    [
        (MemoryAclStore(acl()), DENIED, DENIED),
        (None, OFF, ("security_disabled", "No Authorizer is configured on the broker")),
    ],
    ids=["denied", "off"],
)
def test_nobody_administers_without_authorization(
    store: MemoryAclStore | None, of_items: Result, of_all: Result, version: int
) -> None:
    """The answer does not reveal errors of an item."""
    how: dict[str, Any] = {"version": version, "authorized": store is None}
    assert created(store, creation(), creation(resource_name=""), **how) == [of_items] * 2
    results = deleted(store, asking(), asking(operation=99), **how)
    assert [reported(one) for one in results] == [of_items] * 2
    response = described(store, asking(), **how)
    assert (reported(response), response.resources) == (of_all, ())
    if store is not None:
        assert (store.acls, store.transactions) == ({acl()}, 0)


# ---------------------------------------------------------------------- all of them


names = st.text(max_size=4)
any_acl = st.builds(
    acl,
    names,
    names,
    host=names,
    resource_type=st.sampled_from([one for one in ResourceType if one > 1]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    operation=st.sampled_from([one for one in Operation if one > 1]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(acls=st.lists(any_acl, max_size=20, unique=True), version=st.integers(1, 3))
def test_whatever_is_there_is_described_and_deleted(acls: list[Acl], version: int) -> None:
    """What we write by hand, kio reads as it was."""
    store = MemoryAclStore(*acls)
    assert acls_of(described(store, asking(), version=version)) == sorted(acls)
    [result] = deleted(store, asking(), version=version)
    assert len(result.matching_acls) == len(acls)
    assert store.acls == set()


# Changes that the store refuses, or is too busy to make


CODES = [
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
WHY = "The brokers refused the change: for a reason of theirs"


class Refusing(MemoryAclStore):
    """Its brokers do nothing."""

    def __init__(self, *acls: Acl, code: ErrorCode = CODES[0]) -> None:
        super().__init__(*acls)
        self._code = code
        self.asked: list[Collection[Acl] | Sequence[AclFilter]] = []

    def create_acls(self, acls: Collection[Acl]) -> int:
        self.asked.append(acls)
        raise StoreRefused(self._code, WHY)

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        self.asked.append(filters)
        raise StoreRefused(self._code, WHY)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", CODES)
def test_creations_keep_their_own_mistakes(version: int, code: ErrorCode) -> None:
    """An invalid item keeps its own error, whatever the brokers answer for the others."""
    store = Refusing(code=code)
    refused = (code.name.lower(), WHY)
    items = creation(), creation(resource_name=""), creation(operation=99), creation(host="h")
    results = created(store, *items, version=version)
    assert results == [refused, NO_NAME, unknown("operation"), refused]
    assert store.asked == [[acl(), acl(host="h")]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", CODES)
def test_deletions_keep_their_own_mistakes(version: int, code: ErrorCode) -> None:
    """A filter that found nothing has nothing that could be refused."""
    store = Refusing(acl("a"), acl("b"), code=code)
    results = deleted(
        store,
        asking(resource_name_filter="a", resource_type_filter=2),
        asking(operation=99),
        asking(resource_name_filter="none"),
        asking(resource_name_filter="a"),
        version=version,
    )
    refused = (code.name.lower(), WHY)
    [first, wrong, nothing, last] = [reported(one) for one in results]
    assert (first, last) == (refused, refused)
    assert wrong[0] == "invalid_request"
    assert nothing[0] == "none"
    assert [one.matching_acls for one in results] == [(), (), (), ()], "nothing is said to be gone"
    assert store.acls == {acl("a"), acl("b")}


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
    response = asked(api_key, version, body, store, authorized=rights)
    results = response.results if api_key == CREATE else response.filter_results
    expected = "policy_violation" if rights else "cluster_authorization_failed"
    assert {reported(one) for one in results} == {(expected, None)}
    assert len(results) == MAX_ITEMS + 1
    assert store.transactions == 0


# If the store cannot apply a client's changes, the response has an error for each item

CANNOT = ("kafka_storage_error", "The store cannot be read or written at the moment.")


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("proxy.store.sqlite.database._WRITE_WAIT_S", 0.05)
    monkeypatch.setattr("proxy.store.sqlite.database._READ_WAIT_S", 0.05)
    with closing(open_store(f"sqlite:{path}")) as opened:
        opened.create_acls([acl("a")])
        opened.alter_credentials(upsert={("alice", SHA_256): verifier()})
        yield opened


QUESTIONS = {
    "CreateAcls": question(CREATE_ACLS, create_body(3, [creation(), creation(operation=99)])),
    "DeleteAcls": question(
        DELETE_ACLS, delete_body(3, [asking(resource_name_filter="a"), asking(operation=99)])
    ),
    "AlterClientQuotas": question(
        ALTER_CLIENT_QUOTAS,
        alter_request([([("user", user)], [("producer_byte_rate", 5.0)]) for user in ("u", "")]),
        version=1,
    ),
    "AlterUserScramCredentials": question(
        ALTER_USER_SCRAM_CREDENTIALS,
        encode(request_of([delete("alice"), delete("eve")]), 0),
        version=0,
    ),
}


def outcomes(asked: AnswerFromStore, reading: Reading) -> list[tuple[str, str | None]]:
    body, _ = asyncio.run(reading.keeper.consult(asked))
    assert isinstance(body, bytes)
    response: Any = decode(response_type(asked.request.api_key, asked.request.api_version), body)
    (items,) = {"results", "filter_results", "entries"} & {*response.__dataclass_fields__}
    return [(one.error_code.name, one.error_message) for one in getattr(response, items)]


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
@pytest.mark.parametrize("api", QUESTIONS)
def test_a_locked_store_is_an_error_for_each_item(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture, api: str, lock: str
) -> None:
    """The connection stays open, the log has the reason, and nothing was changed."""
    reading = Reading(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(lock)
        reported = outcomes(QUESTIONS[api], reading)
        other.execute("ROLLBACK")
    assert CANNOT in reported
    assert len(reported) == 2
    assert f"a change was not made: {path}: is locked by another program" in caplog.messages
    assert store.acl_snapshot().acls == (acl("a"),)
    assert [user for user, _ in store.credential_snapshot().credentials] == ["alice"]
    assert store.quota_snapshot().quotas == {}
    assert "none" in [code for code, _ in outcomes(QUESTIONS[api], reading)]
    if api == "DeleteAcls":
        assert store.delete_acls([AclFilter()]) == ((),)
