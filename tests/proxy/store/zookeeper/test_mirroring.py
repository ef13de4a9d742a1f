"""The mirror after each read of ZooKeeper: changes alone make it equal to ZooKeeper's content."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.store.zookeeper import ZookeeperMirror
from proxy.store.zookeeper.content import Content
from proxy.store.zookeeper.follower import Mirroring
from proxy.store.zookeeper.nodes import Config, Resource, ResourceAcls
from sasl.credentials import ScramCredential, ScramMechanism

SHA_256 = ScramMechanism.SCRAM_SHA_256
VERIFIERS = [
    ScramCredential.from_password(SHA_256, password, b"salt", 4096) for password in ("one", "two")
]
ENTITIES = [
    QuotaEntity(user="alice"),
    QuotaEntity(user="alice", client_id="app"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(ip="10.0.0.1"),
]
RESOURCES = [
    Resource(ResourceType.TOPIC, pattern_type, name)
    for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
    for name in ("t", "u")
]


def acls_of(resource: Resource, *users: str) -> ResourceAcls:
    return ResourceAcls(
        frozenset(
            Acl(*resource, f"User:{user}", "*", Operation.READ, Permission.ALLOW) for user in users
        )
    )


def config_of(entity: QuotaEntity, verifier: ScramCredential | None, limit: float | None) -> Config:
    """The verifier is for users alone."""
    is_user = isinstance(entity.user, str) and entity.client_id is None
    key = QuotaKey.CONNECTION_CREATION_RATE if entity.ip else QuotaKey.PRODUCER_BYTE_RATE
    return Config(
        credentials={SHA_256: verifier} if verifier is not None and is_user else {},
        quotas={key: limit} if limit is not None else {},
    )


@st.composite
def contents(draw: st.DrawFn) -> Content:
    resources = draw(st.sets(st.sampled_from(RESOURCES)))
    entities = draw(st.sets(st.sampled_from(ENTITIES)))
    users = st.sets(st.sampled_from("ab"))
    verifiers, limits = st.sampled_from((None, *VERIFIERS)), st.sampled_from((None, 1.0, 2.0))
    return Content(
        configs={one: config_of(one, draw(verifiers), draw(limits)) for one in entities},
        resources={one: acls_of(one, *draw(users)) for one in resources},
    )


def shows(mirror: ZookeeperMirror, content: Content) -> bool:
    return (
        {*mirror.acl_snapshot().acls} == content.acls()
        and mirror.quota_snapshot().quotas == content.quotas()
        and mirror.credential_snapshot().credentials == content.credentials()
    )


@settings(max_examples=25)
@given(st.lists(contents(), min_size=1, max_size=5))
def test_it_shows_what_was_read_last(read: list[Content]) -> None:
    """The log of ACLs leads there from the first content."""
    with (
        TemporaryDirectory() as directory,
        closing(ZookeeperMirror(Path(directory, "mirror.db"))) as mirror,
    ):
        mirror.begin()
        mirroring = Mirroring(mirror)
        for number, content in enumerate(read):
            mirroring.write(content, monotonic())
            assert shows(mirror, content)
            if number == 0:
                since, present = mirror.acl_version(), {*content.acls()}
        changes = mirror.acl_changes(since)
        assert changes is not None
        assert (present - {*changes.deleted}) | {*changes.created} == read[-1].acls()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[ZookeeperMirror]:
    with closing(ZookeeperMirror(tmp_path / "mirror.db")) as one:
        one.begin()
        yield one


FIRST, ALICE = RESOURCES[0], ENTITIES[0]
BEFORE = Content(
    configs={ALICE: config_of(ALICE, VERIFIERS[0], 1.0)},
    resources={one: acls_of(one, "a") for one in RESOURCES},
)


def test_what_has_not_changed_has_its_version_yet(mirror: ZookeeperMirror) -> None:
    mirroring = Mirroring(mirror)
    mirroring.write(BEFORE, 1.0)
    versions = mirror.acl_version(), mirror.quota_version(), mirror.version()
    for again in (BEFORE, replace(BEFORE, resources={**BEFORE.resources}, problems={"/x": "bad"})):
        mirroring.write(again, monotonic())
        assert (mirror.acl_version(), mirror.quota_version(), mirror.version()) == versions
    mirroring.write(replace(BEFORE, resources={FIRST: acls_of(FIRST, "a")}), monotonic())
    assert mirror.acl_version() != versions[0]
    assert (mirror.quota_version(), mirror.version()) == versions[1:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda mirror: mirror.take_over(asked_at=1.0, new_acls=(), new_quotas=None),
        lambda mirror: mirror.take_over(asked_at=1.0, new_acls=None, new_quotas={}),
        lambda mirror: mirror.alter_credentials(delete=[("alice", SHA_256)], upsert={}),
    ],
)
def test_a_file_that_was_restored_is_written_as_a_whole(
    mirror: ZookeeperMirror, spoil: Callable[[ZookeeperMirror], object]
) -> None:
    """Applying only changes would leave it wrong forever."""
    mirroring = Mirroring(mirror)
    mirroring.write(BEFORE, 1.0)
    spoil(mirror)
    assert not shows(mirror, BEFORE)
    mirroring.write(BEFORE, monotonic())
    assert shows(mirror, BEFORE)
