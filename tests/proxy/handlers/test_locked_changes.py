"""What clients are answered whose changes the store cannot take: an error for each item."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from kio.static.primitive import i8

from proxy.acl.model import AclFilter
from proxy.connection.commands import AnswerFromStore
from proxy.quota.model import QuotaKey
from proxy.store import Store, open_store
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
)
from tests.support.acls import acl, asking, create_body, creation, delete_body
from tests.support.kio_messages import decode, encode, response_type
from tests.support.quotas import alter_request
from tests.support.store import SHA_256, Reading, question, verifier

CANNOT = ("kafka_storage_error", "The store cannot be read or written at the moment.")


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("proxy.store.sqlite.database._WRITE_WAIT_S", 0.05)
    monkeypatch.setattr("proxy.store.sqlite.database._READ_WAIT_S", 0.05)
    with closing(open_store(f"sqlite:{path}")) as opened:
        opened.create_acls([acl("a")])
        opened.alter_credentials(upsert={("alice", SHA_256): verifier()})
        yield opened


def deletion(*names: str) -> bytes:
    return encode(
        AlterUserScramCredentialsRequest(
            deletions=tuple(ScramCredentialDeletion(name=name, mechanism=i8(1)) for name in names),
            upsertions=(),
        )
    )


QUESTIONS = {
    "CreateAcls": question(CREATE_ACLS, create_body(3, [creation(), creation(operation=99)])),
    "DeleteAcls": question(
        DELETE_ACLS, delete_body(3, [asking(resource_name_filter="a"), asking(operation=99)])
    ),
    "AlterClientQuotas": question(
        ALTER_CLIENT_QUOTAS,
        alter_request(
            [
                ([("user", "u")], [(QuotaKey.PRODUCER_BYTE_RATE, 5.0)]),
                ([("user", "")], [(QuotaKey.PRODUCER_BYTE_RATE, 5.0)]),
            ]
        ),
        version=1,
    ),
    "AlterUserScramCredentials": question(
        ALTER_USER_SCRAM_CREDENTIALS, deletion("alice", "eve"), version=0
    ),
}
ITEMS = {
    "CreateAcls": "results",
    "DeleteAcls": "filter_results",
    "AlterClientQuotas": "entries",
    "AlterUserScramCredentials": "results",
}


def outcomes(asked: AnswerFromStore, items: str, reading: Reading) -> list[tuple[str, str | None]]:
    body, _ = asyncio.run(reading.keeper.consult(asked))
    assert isinstance(body, bytes)
    response: Any = decode(response_type(asked.request.api_key, asked.request.api_version), body)
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
        reported = outcomes(QUESTIONS[api], ITEMS[api], reading)
        other.execute("ROLLBACK")
    assert CANNOT in reported
    assert len(reported) == 2
    assert f"a change was not made: {path}: is locked by another program" in caplog.messages
    assert store.acl_snapshot().acls == (acl("a"),)
    assert [user for user, _ in store.credential_snapshot().credentials] == ["alice"]
    assert store.quota_snapshot().quotas == {}
    assert "none" in [code for code, _ in outcomes(QUESTIONS[api], ITEMS[api], reading)]
    if api == "DeleteAcls":
        assert store.delete_acls([AclFilter()]) == ((),)
