"""Everything is read once, then what notifications name; a failure leaves what was known."""

import json

import pytest

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store import StoreError
from proxy.store.zookeeper.content import Content, Reader, Unanswered
from proxy.store.zookeeper.nodes import Resource, acl_change, config_change, write_acls
from tests.support.zookeeper_tree import KAFKAS, FakeTree

TOPIC = Resource(ResourceType.TOPIC, PatternType.LITERAL, "t")
ACL = Acl(*TOPIC, "User:a", "*", Operation.READ, Permission.DENY)
ALICE = QuotaEntity(user="alice")
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE


def config(limit: int) -> dict[str, object]:
    return {"version": 1, "config": {"producer_byte_rate": str(limit)}}


def limited(tree: FakeTree, name: str, limit: int, *, told: bool = True) -> None:
    """Set a user's quota, as a broker does: the node, then the notification."""
    tree.put(f"/config/users/{name}", config(limit))
    if told:
        tree.notify("/config/changes", config_change(QuotaEntity(user=name)).data)


def limits(content: Content) -> dict[str, float]:
    return {str(entity.user): one[PRODUCER] for entity, one in content.quotas().items()}


def reader(tree: FakeTree, *, wants_acls: bool = True) -> Reader:
    return Reader(tree, wants_acls=wants_acls)


def test_everything_is_read_at_first() -> None:
    tree = FakeTree()
    limited(tree, "alice", 1)
    tree.put("/config/users/bob", b"")
    tree.put("/config/users/bob/clients", b"")
    tree.put("/config/users/bob/clients/c%2Fd", config(2))
    tree.put("/config/ips", b"")
    tree.put("/config/ips/10.0.0.1", {"version": 1, "config": {"connection_creation_rate": "3"}})
    tree.put(TOPIC.path, write_acls([ACL]))
    content = reader(tree).read()
    assert content.acls() == {ACL}
    assert content.quotas() == {
        ALICE: {PRODUCER: 1.0},
        QuotaEntity(user="bob", client_id="c/d"): {PRODUCER: 2.0},
        QuotaEntity(ip="10.0.0.1"): {QuotaKey.CONNECTION_CREATION_RATE: 3.0},
    }
    assert not list(content.all_problems())


def test_a_change_is_read_alone() -> None:
    tree = FakeTree()
    limited(tree, "alice", 1)
    limited(tree, "bob", 1)
    followed = reader(tree)
    followed.read()
    limited(tree, "alice", 2)
    tree.put(TOPIC.path, write_acls([ACL]))
    tree.notify("/kafka-acl-changes", acl_change(TOPIC).data)
    tree.reads.clear()
    content = followed.read()
    assert limits(content) == {"alice": 2.0, "bob": 1.0}
    assert content.acls() == {ACL}
    assert {one for one in tree.reads if "change" not in one} == {"/config/users/alice", TOPIC.path}
    assert followed.read() is content, "nothing is new"


def test_a_node_that_is_gone_is_forgotten() -> None:
    tree = FakeTree()
    limited(tree, "alice", 1)
    tree.put(TOPIC.path, write_acls([ACL]))
    followed = reader(tree)
    followed.read()
    del tree.data["/config/users/alice"], tree.data[TOPIC.path]
    tree.notify("/config/changes", config_change(ALICE).data)
    tree.notify("/kafka-acl-changes", acl_change(TOPIC).data)
    assert followed.read() == Content()


def test_thousands_of_changes_are_read_once() -> None:
    tree = FakeTree()
    followed = reader(tree)
    followed.read()
    for number in range(5_000):
        limited(tree, "alice", number + 1)
    tree.reads.clear()
    assert limits(followed.read()) == {"alice": 5_000.0}
    assert tree.reads.count("/config/users/alice") == 1


def test_a_change_during_the_first_read_is_followed() -> None:
    """Half of the content is from before it: none of it is shown."""
    tree = FakeTree()
    limited(tree, "alice", 1)
    tree.before["children"] = [lambda: None, lambda: None, lambda: limited(tree, "alice", 2)]
    tree.before["nodes"] = [lambda: None, lambda: limited(tree, "alice", 3)]
    assert limits(reader(tree).read()) == {"alice": 3.0}


@pytest.mark.parametrize("data", [b"", b"?", b'{"version":9,"entity_path":"users/alice"}'])
def test_a_notification_that_says_nothing_has_all_read(data: bytes) -> None:
    tree = FakeTree()
    limited(tree, "alice", 1)
    followed = reader(tree)
    followed.read()
    limited(tree, "alice", 2, told=False)
    tree.notify("/config/changes", data)
    assert limits(followed.read()) == {"alice": 2.0}


def test_a_notification_that_is_gone_has_all_read() -> None:
    """Kafka deletes them after a quarter of an hour; who was away for longer missed them."""
    tree = FakeTree()
    limited(tree, "alice", 1)
    followed = reader(tree)
    followed.read()
    limited(tree, "alice", 2, told=False)
    path = tree.notify("/config/changes", config_change(QuotaEntity(user="bob")).data)
    tree.before["nodes"] = [lambda: tree.data.pop(path)]
    assert limits(followed.read()) == {"alice": 2.0}


def test_after_a_loss_all_is_read() -> None:
    tree = FakeTree()
    limited(tree, "alice", 1)
    followed = reader(tree)
    followed.read()
    limited(tree, "alice", 2, told=False)
    assert limits(followed.read()) == {"alice": 1.0}
    followed.forget()
    assert limits(followed.read()) == {"alice": 2.0}


def test_a_loss_during_a_read_has_all_read_again() -> None:
    tree = FakeTree()
    followed = reader(tree)
    tree.before["sync"] = [lambda: None, followed.forget]
    followed.read()
    limited(tree, "alice", 2, told=False)
    assert limits(followed.read()) == {"alice": 2.0}


def test_a_read_that_fails_has_all_read_again() -> None:
    tree = FakeTree()
    followed = reader(tree)
    followed.read()
    tree.is_away = True
    with pytest.raises(Unanswered):
        followed.read()
    tree.is_away = False
    limited(tree, "alice", 2, told=False)
    assert limits(followed.read()) == {"alice": 2.0}


def test_a_missing_chroot_is_no_empty_cluster() -> None:
    """With no ACLs and allow.everyone.if.no.acl.found everything would be allowed."""
    for missing in ("/config/users", "/config/clients"):
        tree = FakeTree(*(path for path in KAFKAS if path != missing))
        with pytest.raises(StoreError, match=r"zookeeper\.connect, with its chroot"):
            reader(tree).read()


def test_brokers_without_an_authorizer_have_no_acls() -> None:
    tree = FakeTree("/config", "/config/users", "/config/clients", "/config/changes")
    with pytest.raises(StoreError, match="the brokers have no authorizer"):
        reader(tree).read()
    assert reader(tree, wants_acls=False).read() == Content()


def test_acls_that_cannot_be_read_stop_everything() -> None:
    """They may deny something; what was known before stays in force."""
    tree = FakeTree()
    limited(tree, "alice", 1)
    followed = reader(tree)
    followed.read()
    tree.put(TOPIC.path, b"{")
    tree.notify("/kafka-acl-changes", acl_change(TOPIC).data)
    for _ in range(2):
        with pytest.raises(StoreError, match="/kafka-acl/Topic/t does not hold a JSON object"):
            followed.read()
    tree.put(TOPIC.path, write_acls([ACL]))
    assert followed.read().acls() == {ACL}


def test_a_configuration_that_cannot_be_read_is_left_out() -> None:
    """And named, until it is repaired."""
    tree = FakeTree()
    limited(tree, "alice", 1)
    tree.put("/config/users/bob", b"{")
    tree.put("/config/users/%zz", config(1))
    followed = reader(tree)
    content = followed.read()
    assert limits(content) == {"alice": 1.0}
    assert "/config/users/bob does not hold a JSON object" in content.all_problems()
    assert any("%zz" in one for one in content.all_problems())
    limited(tree, "bob", 2)
    content = followed.read()
    assert limits(content) == {"alice": 1.0, "bob": 2.0}
    assert len(list(content.all_problems())) == 1


def test_unknown_acls_are_named() -> None:
    tree = FakeTree()
    entry = {"principal": "User:a", "permissionType": "Allow", "operation": "Fly", "host": "*"}
    tree.put(TOPIC.path, json.dumps({"version": 1, "acls": [entry]}).encode())
    content = reader(tree).read()
    assert not content.acls()
    assert list(content.all_problems()) == [
        "/kafka-acl/Topic/t: 1 ACLs are unknown to this version"
    ]
