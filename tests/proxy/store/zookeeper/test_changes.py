"""A change is made on the present content, with its notification, or not at all."""

from collections.abc import Callable

import pytest

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store import StoreError, StoreRefused
from proxy.store.zookeeper.changes import (
    CHANGE_TIMEOUT_S,
    MAX_ATTEMPTS,
    MAX_TRANSACTION_BYTES,
    Change,
    Create,
    CredentialChange,
    Deletion,
    Replace,
    creation,
    quota_edits,
    shared_secret,
)
from proxy.store.zookeeper.content import Unanswered, read_all
from proxy.store.zookeeper.nodes import Notification, Resource, write_acls
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.zookeeper_tree import FakeTree

TOPIC = Resource(ResourceType.TOPIC, PatternType.LITERAL, "t")
PREFIXED = TOPIC._replace(pattern_type=PatternType.PREFIXED)
SHA_256, SHA_512 = ScramMechanism
VERIFIER = ScramCredential.from_password(SHA_256, "pw", b"salt", 4096)
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")


def acl(name: str = "User:a", resource: Resource = TOPIC) -> Acl:
    return Acl(*resource, name, "*", Operation.READ, Permission.ALLOW)


class Clock:
    """Time passes by pauses alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def changing(tree: FakeTree) -> Change:
    clock = Clock()
    return Change(tree, now=clock, pause=clock.pause)


def acls(tree: FakeTree) -> frozenset[Acl]:
    return read_all(tree, wants_acls=True).acls()


def test_a_new_node_comes_with_its_notification() -> None:
    tree = FakeTree()
    changing(tree).make([creation(TOPIC, [acl()])])
    ((node, notification),) = tree.commits
    assert isinstance(node, Create)
    assert notification == Notification("/kafka-acl-changes/acl_changes_", b"TOPIC:t")
    assert acls(tree) == {acl()}


def test_what_is_there_stays() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, write_acls([acl("User:old")], [_LATER]))
    changing(tree).make([creation(TOPIC, [acl()])])
    assert acls(tree) == {acl("User:old"), acl()}
    assert _LATER in tree.content(TOPIC.path)["acls"]
    ((node, _),) = tree.commits
    assert isinstance(node, Replace)


_LATER = {"principal": "User:a", "permissionType": "Allow", "operation": "Fly", "host": "*"}


def test_what_is_as_wanted_is_not_changed() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, write_acls([acl()]))
    change = changing(tree)
    change.make([creation(TOPIC, [acl()]), Deletion(PREFIXED, [AclFilter()]).edit()])
    assert not tree.commits
    assert not change.may_be_made


def test_the_last_acl_takes_its_node_along() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, write_acls([acl(), acl("User:b")]))
    tree.put(PREFIXED.path, write_acls([acl("User:a", PREFIXED)]))
    deletions = [Deletion(one, [AclFilter(principal="User:a")]) for one in (TOPIC, PREFIXED)]
    changing(tree).make([one.edit() for one in deletions])
    assert [one.deleted for one in deletions] == [{acl()}, {acl("User:a", PREFIXED)}]
    assert acls(tree) == {acl("User:b")}
    assert PREFIXED.path not in tree.data


def test_parents_are_made() -> None:
    """For a user without a node, and for addresses, whose parent node is missing at first."""
    tree = FakeTree()
    pair = QuotaEntity(user="alice", client_id="c")
    changes = {
        pair: {PRODUCER: 1.0},
        ALICE: {PRODUCER: 2.0},
        QuotaEntity(ip="10.0.0.1"): {QuotaKey.CONNECTION_CREATION_RATE: 3.0},
    }
    changing(tree).make(quota_edits(changes))
    assert read_all(tree, wants_acls=False).quotas() == changes
    assert len(tree.commits) == 1


def test_verifiers_and_quotas_share_a_node() -> None:
    tree = FakeTree()
    changing(tree).make(quota_edits({ALICE: {PRODUCER: 1.0}}))
    change = CredentialChange((), {("alice", SHA_256): VERIFIER})
    changing(tree).make(change.edits())
    content = read_all(tree, wants_acls=False)
    assert content.credentials() == {("alice", SHA_256): VERIFIER}
    assert content.quotas() == {ALICE: {PRODUCER: 1.0}}
    removal = CredentialChange([("alice", SHA_256), ("alice", SHA_512), ("bob", SHA_256)], {})
    changing(tree).make(removal.edits())
    assert removal.missing == {("alice", SHA_512), ("bob", SHA_256)}
    content = read_all(tree, wants_acls=False)
    assert not content.credentials()
    assert content.quotas() == {ALICE: {PRODUCER: 1.0}}


def test_a_change_that_was_overtaken_is_made_on_what_is_there_then() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, write_acls([acl("User:old")]))
    others = [f"User:{number}" for number in range(MAX_ATTEMPTS - 1)]
    present = ["User:old"]

    def overtake(name: str) -> Callable[[], None]:
        def write() -> None:
            present.append(name)
            tree.put(TOPIC.path, write_acls([*map(acl, present)]))

        return write

    tree.before["commit"] = [overtake(name) for name in others]
    changing(tree).make([creation(TOPIC, [acl()])])
    assert acls(tree) == {acl(), *map(acl, present)}


def test_who_is_always_overtaken_gives_up() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, write_acls([acl("User:old")]))
    again = lambda: tree.put(TOPIC.path, write_acls([acl("User:old")]))  # noqa: E731
    tree.before["commit"] = [again] * MAX_ATTEMPTS
    with pytest.raises(StoreRefused) as refused:
        changing(tree).make([creation(TOPIC, [acl()])])
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert acls(tree) == {acl("User:old")}


def test_a_lost_answer_is_not_made_twice() -> None:
    """The transaction may have been made: what it wanted is found, and nothing is left to do."""
    tree = FakeTree()
    first = tree.commit

    def lose(operations: object) -> None:
        tree.commit = first  # type: ignore[method-assign]
        first(operations)  # type: ignore[arg-type]
        raise Unanswered("ZooKeeper does not answer")

    tree.commit = lose  # type: ignore[method-assign]
    deletion = Deletion(TOPIC, [AclFilter(principal="User:gone")])
    tree.put(TOPIC.path, write_acls([acl(), acl("User:gone")]))
    changing(tree).make([deletion.edit()])
    assert len(tree.commits) == 1
    assert deletion.deleted == {acl("User:gone")}, "it was there"


def test_nothing_was_changed_if_nobody_answers_from_the_start() -> None:
    tree = FakeTree()
    tree.is_away = True
    with pytest.raises(Unanswered):
        changing(tree).make([creation(TOPIC, [acl()])])


def test_what_may_have_been_made_is_refused_as_that() -> None:
    tree = FakeTree()

    def leave() -> None:
        tree.is_away = True

    tree.before["commit"] = [leave]
    change = changing(tree)
    with pytest.raises(StoreRefused, match="It is not known") as refused:
        change.make([creation(TOPIC, [acl()])])
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert change._now() > CHANGE_TIMEOUT_S


def test_a_large_change_is_several_transactions() -> None:
    tree = FakeTree()
    users = {(f"user-{number}", SHA_256): VERIFIER for number in range(1_200)}
    change = CredentialChange((), users)
    changing(tree).make(change.edits())
    assert read_all(tree, wants_acls=False).credentials() == users
    assert len(tree.commits) > 2
    for operations in tree.commits:
        sent = sum(len(one.data) for one in operations if isinstance(one, Create | Notification))
        assert sent < MAX_TRANSACTION_BYTES


@pytest.mark.parametrize("name", ["a/b", "..", "a\x01", "😀"])
def test_names_that_zookeeper_cannot_have_are_refused(name: str) -> None:
    """Kafka fails to create such ACLs as well."""
    tree = FakeTree()
    resource = TOPIC._replace(name=name)
    with pytest.raises(StoreRefused) as refused:
        changing(tree).make([creation(resource, [acl("User:a", resource)])])
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert not tree.commits


def test_a_node_that_cannot_be_read_is_not_overwritten() -> None:
    tree = FakeTree()
    tree.put(TOPIC.path, b"{")
    with pytest.raises(StoreError, match="was not changed: /kafka-acl/Topic/t"):
        changing(tree).make([creation(TOPIC, [acl()])])
    assert tree.data[TOPIC.path][0] == b"{"


def test_a_cluster_that_is_migrated_is_changed_at_its_brokers() -> None:
    """KRaft's controller would overwrite it, or never learn of it."""
    tree = FakeTree()
    tree.put("/controller", {"version": 2, "brokerid": 3000, "kraftControllerEpoch": 1})
    with pytest.raises(StoreRefused, match="make the change at the brokers") as refused:
        changing(tree).make([creation(TOPIC, [acl()])])
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert not tree.commits


def test_all_proxies_have_one_secret() -> None:
    tree = FakeTree()
    secret = shared_secret(tree)
    assert len(secret) == 32
    assert shared_secret(tree) == secret
    other = FakeTree()
    other.before["commit"] = [lambda: shared_secret(other)]
    assert shared_secret(other) == other.data["/kafka-reauth-proxy/scram-secret"][0]


def test_a_secret_that_is_none_is_not_used() -> None:
    tree = FakeTree()
    tree.put("/kafka-reauth-proxy/scram-secret", b"short")
    with pytest.raises(StoreError, match="does not have 32 bytes"):
        shared_secret(tree)
