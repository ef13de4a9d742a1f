"""ACLs in memory follow the store, and outlive its failures."""

import sqlite3
from pathlib import Path

import pytest

from proxy.acl.model import AclFilter, Operation, ResourceType
from proxy.store import CachedAcls, Store, open_store
from proxy.store.interface import StoreError
from tests.support.acls import acl


def test_changes_are_taken_over(store: Store, path: Path) -> None:
    """Also those of another process, which has the file open for itself."""
    store.create_acls([acl("a"), acl("b")])
    cached = CachedAcls(store)
    first = cached.index
    assert not cached.refresh_if_changed()
    other = open_store(f"sqlite:{path}")
    other.create_acls([acl("c")])
    other.delete_acls([AclFilter(name="a")])
    other.close()
    assert cached.refresh_if_changed()
    assert [one.name for one in cached.index.matching(AclFilter())] == ["b", "c"]
    assert cached.index.version == store.acl_version()
    assert [one.name for one in first.matching(AclFilter())] == ["a", "b"]


def test_other_concerns_do_not_matter(store: Store) -> None:
    """A changed password is no reason to drop every decision."""
    cached = CachedAcls(store)
    before = store.version()
    store.create_acls([acl("a")])
    assert store.version() == before
    cached.refresh_if_changed()
    assert not cached.refresh_if_changed()


def test_settings_last(store: Store) -> None:
    cached = CachedAcls(
        store, allow_everyone_if_no_acl_found=True, super_users=frozenset({"User:root"})
    )
    store.create_acls([acl("a")])
    cached.refresh_if_changed()
    asked = ("10.0.0.1", Operation.WRITE, ResourceType.TOPIC)
    assert cached.index.decide(("User:root",), *asked, "a").super_user
    assert not cached.index.decide(("User:bob",), *asked, "a").allowed
    assert cached.index.decide(("User:bob",), *asked, "z").allowed


def test_super_users_may_be_replaced(store: Store) -> None:
    """`super.users` is reloadable, and lasts over the next change of ACLs."""
    cached = CachedAcls(store, super_users=frozenset({"User:old"}))
    cached.replace_super_users(frozenset({"User:new"}))
    store.create_acls([acl("a")])
    for _ in range(2):
        asked = ("10.0.0.1", Operation.WRITE, ResourceType.TOPIC, "x")
        assert cached.index.decide(("User:new",), *asked).super_user
        assert not cached.index.decide(("User:old",), *asked).allowed
        cached.refresh_if_changed()


def test_a_store_that_fails_leaves_the_last_known_acls(store: Store) -> None:
    """Neither open nor closed: the last ACLs continue to apply, and the error is reported."""
    store.create_acls([acl("a")])
    cached = CachedAcls(store)
    known = cached.index
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError):
            cached.refresh_if_changed()
    assert cached.index is known
    assert cached.error is not None


def test_without_a_readable_store_nothing_begins(store: Store, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE acls")
    connection.close()
    with pytest.raises(StoreError):
        CachedAcls(store)
