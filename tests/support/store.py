"""Users in files, the SCRAM APIs, and a worker's store service with faults."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.acl.model import Acl, AuthorizerMode
from proxy.config import Authorizer
from proxy.connection.commands import AnswerFromStore
from proxy.store import CachedCredentials, Store, open_store
from proxy.store.interface import StoreError, UserStore
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.wire.apis import CREATE_ACLS, DESCRIBE_ACLS, DESCRIBE_USER_SCRAM_CREDENTIALS
from proxy.wire.messages import AlterUserScramCredentialsRequest
from proxy.wire.request import Request
from proxy.worker.acl_service import AclService
from proxy.worker.store_service import StoreService
from sasl.credentials import ScramCredential, ScramMechanism, verifier_text
from tests.support.acls import asking, create_body, creation, describe_body
from tests.support.processes import PATIENCE_SECONDS
from tests.support.tables import table

# Files of SCRAM users

SHA_256 = ScramMechanism.SCRAM_SHA_256
PASSWORD = "secret"
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYyE="


def verifier(
    password: str = PASSWORD, mechanism: ScramMechanism = SHA_256, iterations: int = 4096
) -> ScramCredential:
    return ScramCredential.from_password(mechanism, password, b"salt", iterations)


def content(**users: dict[str, str] | Any) -> dict[str, Any]:
    return {"secret": SECRET, "users": users}


def of(*mechanisms: ScramMechanism, password: str = PASSWORD) -> dict[str, str]:
    """Entry of one user."""
    return {each.value: verifier_text(verifier(password, each)) for each in mechanisms}


def put(path: Path, found: object) -> None:
    """Replace the file like configuration management does."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(found if isinstance(found, str) else json.dumps(found))
    new.replace(path)


# AlterUserScramCredentials requests and answers; a user `old` exists before each

DUPLICATE = ("duplicate_resource", "A user credential cannot be altered twice in the same request")
NOT_FOUND = ("resource_not_found", "Attempt to delete a user credential that does not exist")
NO_USER = ("unacceptable_credential", "Username must not be empty")
UNKNOWN_MECHANISM = ("unsupported_sasl_mechanism", "Unknown SCRAM mechanism")
TOO_FEW = ("unacceptable_credential", "Too few iterations")
TOO_MANY = ("unacceptable_credential", "Too many iterations")
DONE = ("none", None)
SALT = b"salt" * 8
SALTED_PASSWORD = b"p" * 32

Answer = dict[str, tuple[str, str | None]]
"""Error name and message by user."""
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Change = Deletion | Upsertion


def delete(name: str, mechanism: int = 1) -> Deletion:
    return Deletion(name=name, mechanism=mechanism)


def upsert(
    name: str,
    mechanism: int = 1,
    iterations: int = 4096,
    salt: bytes = SALT,
    salted_password: bytes = SALTED_PASSWORD,
) -> Upsertion:
    return Upsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password,
    )


def request_of(changes: Sequence[Change]) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=tuple(c for c in changes if isinstance(c, Deletion)),
        upsertions=tuple(c for c in changes if isinstance(c, Upsertion)),
    )


_CHANGES: dict[str, Callable[..., Change]] = {"delete": delete, "upsert": upsert}
SEEN: list[tuple[tuple[Change, ...], Answer]] = [
    *(
        (
            tuple(_CHANGES[kind](*values) for kind, *values in changes),
            {user: (error, message) for user, (error, message) in answer.items()},
        )
        for changes, answer in table(__file__, "users_changed")
    ),
    ((upsert("a", salted_password=b"x"),), {"a": DONE}),
    ((upsert("a", salted_password=b"x" * 1000),), {"a": DONE}),
]
"""Answers of Apache Kafka 4.1, verified in tests/kafka."""


# Programs that write to a store concurrently

PATIENT_WRITER = f"""
from proxy.store.sqlite import database
database._WRITE_WAIT_S = database._READ_WAIT_S = {PATIENCE_SECONDS}
"""
"""Start of such a program: SQLite admits writers in random order, and disks may be slow."""


# A worker's store service with faults, and requests of clients

NOT_YET = ["the brokers' ACLs and quotas are unknown so far"]


class Watched:
    """A store with faults and hooks during reads."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.broken: set[str] = set()
        """Methods that fail."""
        self.then: dict[str, Callable[[], object]] = {}
        """Hooks that run once, after a method has read."""
        self.each: dict[str, Callable[[], object]] = {}
        """Hooks that run before each call of a method."""
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.looks += name == "mirror"
            if name in self.broken:
                raise StoreError("state.db: is damaged")
            self.each.get(name, lambda: None)()
            found = method(*arguments, **named)
            self.then.pop(name, lambda: None)()
            return found

        return call


class Reading:
    """A store service with ACLs, and its notifications to the worker."""

    def __init__(self, store: Store, users: UserStore | None = None) -> None:
        self.store = Watched(store)
        shared = cast(Store, self.store)
        users = users or shared
        self.credentials = CachedCredentials(users)
        settings = Authorizer.model_validate({"mode": AuthorizerMode.ENFORCE})
        self.authorization = AclService(settings, shared, observer=cast(Any, None))
        self.judged_anew = 0
        self.keeper = StoreService(
            shared,
            users,
            self.credentials,
            self.authorization,
            None,
            rights_changed=self._rights_changed,
            quotas_changed=cast(Any, None),
        )

    def _rights_changed(self) -> None:
        self.judged_anew += 1

    def acls(self) -> int:
        """Number of applied ACLs."""
        snapshot = Snapshot()
        self.authorization.collect(snapshot)
        return int(snapshot.values[registry.ACLS.name][()])

    def age(self) -> float:
        snapshot = Snapshot()
        self.keeper.collect(snapshot)
        return snapshot.values[registry.STORE_AGE.name][()]

    def refresh(self) -> None:
        asyncio.run(self.keeper.refresh())


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:{tmp_path / 'own.db'}")
    opened.begin()
    yield opened
    opened.close()


def answered(mirror: SqliteMirror, *acls: Acl, at: float | None = None) -> None:
    asked_at = monotonic() if at is None else at
    assert mirror.take_over(asked_at=asked_at, new_acls=acls, new_quotas={})


def denied(one: AnswerFromStore) -> AnswerFromStore:
    return one._replace(authorized=False)


def users_question() -> AnswerFromStore:
    return question(DESCRIBE_USER_SCRAM_CREDENTIALS, b"\0\0", version=0)


def create_question() -> AnswerFromStore:
    return question(CREATE_ACLS, create_body(3, [creation()]))


def describe_question() -> AnswerFromStore:
    return question(DESCRIBE_ACLS, describe_body(3, asking()))


def question(api_key: int, body: bytes, *, version: int = 3) -> AnswerFromStore:
    request = Request(
        api_key=api_key,
        api_version=version,
        correlation_id=1,
        client_id=None,
        content=body,
        body_at=0,
        flexible=True,
    )
    return AnswerFromStore(request=request, authorized=True)
