"""A worker's keeper of a store, its store that can break, and what clients ask of it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.acl.model import Acl, AuthorizerMode
from proxy.config import Authorizer
from proxy.connection.commands import AnswerFromStore
from proxy.store import CachedCredentials, Store, StoreError, UserStore, open_store
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.wire.apis import (
    CREATE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from proxy.wire.request import Request
from proxy.worker.acl_service import AclService
from proxy.worker.store_service import StoreService
from tests.proxy.acl.api_cases import asking, creation
from tests.proxy.acl.api_given import create_body, describe_body

NOT_YET = ["what the brokers keep is not known yet"]


class Watched:
    """A store that can break, and during whose reads something else may happen."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.broken: set[str] = set()
        """Methods that fail."""
        self.then: dict[str, Callable[[], object]] = {}
        """What happens once, right after a method has returned what it had seen."""
        self.each: dict[str, Callable[[], object]] = {}
        """What happens each time, right before a method is called."""
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
    """A keeper of a store with ACLs, and what it says to its worker."""

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
        """How many are applied."""
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
    return replace(one, authorized=False)


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
