"""Changes that the store refuses, or is too busy to make."""

import asyncio
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import Acl, AclFilter
from proxy.connection.commands import AnswerFromStore
from proxy.handlers.acls import MAX_ITEMS
from proxy.store import Store, StoreRefused, open_store
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
)
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import (
    CREATE,
    DELETE,
    NO_NAME,
    VERSIONS,
    MemoryAclStore,
    acl,
    asked,
    asking,
    create_body,
    created,
    creation,
    delete_body,
    deleted,
    reported,
    unknown,
)
from tests.support.kio_messages import decode, response_type
from tests.support.quotas import alter_request
from tests.support.store import SHA_256, Reading, delete, question, request_of, verifier

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


# What clients are answered whose changes the store cannot take: an error for each item

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
