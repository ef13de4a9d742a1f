"""ZooKeeper servers that die, hang, or expire sessions."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from proxy.config import Config, from_mapping
from proxy.net.tls_contexts import open_zookeeper_tls
from proxy.store import StoreError
from proxy.store.zookeeper import Zookeeper, ZookeeperMirror, ZookeeperStore
from proxy.store.zookeeper.follower import Follower
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.acls import acl
from tests.support.certificates import Authority
from tests.support.kafka.cluster import DEADLINE_SECONDS, wait_until
from tests.support.kafka.zookeeper import Ensemble

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SHA_256 = ScramMechanism.SCRAM_SHA_256
VERIFIER = ScramCredential.from_password(SHA_256, "pw", b"salt", 4096)
SESSION_MS = 4_000
PASSWORD = "s3cret,=x"


def settings_of(ensemble: Ensemble, directory: Path, **zookeeper: Any) -> Config:
    mapping = {
        "upstream": {"bootstrap.servers": "127.0.0.1:9092"},
        "listeners": [
            {
                "name": "c",
                "address": "127.0.0.1:9094",
                "routing": "sidecar",
                "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
            }
        ],
        "store": {
            "url": ensemble.url,
            "refresh.ms": zookeeper.pop("refresh_ms", 5_000),
            "zookeeper": {"session.timeout.ms": SESSION_MS, **zookeeper},
        },
        "authorizer": {"mode": "enforce"},
    }
    return from_mapping(mapping, base_dir=directory)


class Following:
    """A follower in a thread, in place of a process, and a worker's store."""

    def __init__(self, settings: Config) -> None:
        self._tls = open_zookeeper_tls(settings.store.zookeeper, time.time())
        with closing(ZookeeperStore(settings.store)) as fresh:
            start = fresh.begin()
        self.store = ZookeeperStore(settings.store, self._tls, start)
        self.follower: Follower
        self._mirror = ZookeeperMirror(settings.store.path(), start)
        self._settings = settings
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.follower = Follower(self._mirror, self._settings, self._tls)
        self._task = asyncio.create_task(self.follower.run())
        await asyncio.wait([self._task])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._mirror.close()
        self.store.close()

    def age(self) -> float:
        asked_at = self.store.mirror().asked_at
        return float("inf") if asked_at is None else time.monotonic() - asked_at

    def problem(self) -> str:
        return self.store.mirror().problem or ""

    def users(self) -> set[str]:
        return {user for user, _ in self.store.credential_snapshot().credentials}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what=what, details=self.problem)


@contextmanager
def following(ensemble: Ensemble, directory: Path, **zookeeper: Any) -> Iterator[Following]:
    one = Following(settings_of(ensemble, directory, **zookeeper))
    one.start()
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes wait for the mirror longer than usual, for busy machines."""
    monkeypatch.setattr("proxy.store.zookeeper.MAX_WAIT_S", DEADLINE_SECONDS)


@pytest.fixture
def three() -> Iterator[Ensemble]:
    with Ensemble(3) as ensemble:
        ensemble.make_nodes()
        yield ensemble


@pytest.fixture
def one() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        ensemble.make_nodes()
        yield ensemble


def test_nothing_acknowledged_is_lost_when_servers_are_killed(
    three: Ensemble, tmp_path: Path
) -> None:
    """Each server is killed in turn during changes; unanswered changes may have succeeded."""
    made: list[str] = []
    unknown: list[str] = []
    ending = threading.Event()
    with following(three, tmp_path) as proxy:
        proxy.until(lambda: proxy.age() < 5, "not read")

        def change() -> None:
            while not ending.is_set():
                name = f"user-{len(made) + len(unknown)}"
                try:
                    proxy.store.alter_credentials(upsert={(name, SHA_256): VERIFIER})
                    proxy.store.create_acls([acl(name)])
                    made.append(name)
                except StoreError:
                    unknown.append(name)

        changing = threading.Thread(target=change)
        changing.start()
        try:
            for node in range(3):
                before = len(made)
                three.kill(node)
                proxy.until(lambda b=before: len(made) > b + 3, "no change after a death")  # type: ignore[misc]
                three.start(node)
        finally:
            ending.set()
            changing.join()
        truth = Zookeeper(settings_of(three, tmp_path).store, None)
        users = {user for user, _ in truth.credential_snapshot().credentials}
        assert users >= {*made}
        assert users <= {*made, *unknown}
        acls = truth.acl_snapshot().acls
        assert {*acls} >= set(map(acl, made))
        proxy.until(lambda: proxy.users() == users, "the mirror differs")
        proxy.until(lambda: proxy.store.acl_snapshot().acls == acls, "the mirror differs")


def test_a_change_does_not_wait_for_the_next_check(
    one: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The notification may arrive before the answer to the change."""
    monkeypatch.setattr("proxy.store.zookeeper.MAX_WAIT_S", 20.0)
    with following(one, tmp_path, refresh_ms=30_000) as proxy:
        proxy.until(lambda: proxy.age() < 25, "not read")
        for number in range(5):
            proxy.store.create_acls([acl(f"t{number}")])
            assert len(proxy.store.acl_snapshot().acls) == number + 1
    assert "is not in" not in caplog.text


def test_a_password_that_is_wrong_is_told(tmp_path: Path) -> None:
    """With the right password nodes get the ACLs of `zookeeper.set.acl`."""
    (tmp_path / "right").write_text(PASSWORD)
    (tmp_path / "wrong").write_text("wrong")
    sasl = {"security.protocol": "SASL_PLAINTEXT", "username": "kafka", "set.acl": True}
    with Ensemble(sasl={"kafka": PASSWORD}) as ensemble:
        ensemble.make_nodes()
        wrong = tmp_path / "w"
        wrong.mkdir()
        with following(ensemble, wrong, **sasl, password=f"file:{tmp_path / 'wrong'}") as proxy:
            proxy.until(lambda: "check the user name and password" in proxy.problem(), "not told")
            assert PASSWORD not in proxy.problem()
        with following(ensemble, tmp_path, **sasl, password=f"file:{tmp_path / 'right'}") as proxy:
            proxy.until(lambda: proxy.age() < 5, "not read")
            proxy.store.alter_credentials(upsert={("alice", SHA_256): VERIFIER})
            proxy.store.create_acls([acl("t")])
            assert proxy.users() == {"alice"}
        login_of_kafka = {"mechanism": "DIGEST-MD5", "username": "kafka", "password": PASSWORD}
        with ensemble.client(sasl_options=login_of_kafka) as kafka:
            for path, schemes in (
                ("/config/users/alice", {"sasl"}),
                ("/kafka-acl/Topic/t", {"sasl", "world"}),
                ("/kafka-reauth-proxy/scram-secret", {"sasl"}),
            ):
                acls, _ = kafka.get_acls(path)
                assert {entry.id.scheme for entry in acls} == schemes, path
        without = tmp_path / "without"
        without.mkdir()
        stranger = Zookeeper(settings_of(ensemble, without).store, None)
        with pytest.raises(StoreError, match="access control list"):
            stranger.credential_snapshot()
        with pytest.raises(StoreError, match=r"refused the change: .* access control list"):
            stranger.create_acls([replace(acl("t"), host="10.0.0.1")])


# TLS


@pytest.mark.parametrize("scheme", ["sasl", "digest", "x509"])
def test_tls_with_every_way_to_log_in(scheme: str, tmp_path: Path) -> None:
    """Nodes belong to their creator; a thousand simultaneous responses are all read."""
    authority = Authority()
    authority.write(tmp_path)
    (tmp_path / "client.pem").write_bytes(authority.issue("kafka").pem)
    (tmp_path / "password").write_text(PASSWORD)
    login = {"username": "kafka", "password": f"file:{tmp_path / 'password'}"}
    settings: dict[str, Any] = {
        "security.protocol": "SASL_SSL" if scheme == "sasl" else "SSL",
        "ssl.truststore.location": "ca.pem",
        "set.acl": True,
        **({"ssl.keystore.location": "client.pem"} if scheme == "x509" else login),
    }
    upsert = {(f"user-{number}", SHA_256): VERIFIER for number in range(1_000)}
    with Ensemble(sasl={"kafka": PASSWORD}, authority=authority) as ensemble:
        ensemble.make_nodes()
        with following(ensemble, tmp_path, **settings) as proxy:
            proxy.until(lambda: proxy.age() < 5, "not read")
            proxy.store.alter_credentials(upsert=upsert)
            assert len(proxy.users()) == len(upsert)
            tree = proxy.follower._tree
            assert tree is not None
            acls, _ = tree._client.get_acls("/config/users/user-0")
            assert [entry.id.scheme for entry in acls] == [scheme]
        with ensemble.client() as anybody, pytest.raises(NoAuthError):
            anybody.get("/config/users/user-0")


@pytest.mark.parametrize(
    ("trusted", "hosts", "problem"),
    [
        ("another", ("127.0.0.1",), "unable to get local issuer certificate"),
        ("ours", ("zookeeper.example.com",), "IP address mismatch"),
    ],
)
def test_a_server_that_is_not_whom_it_says_is_told_nothing(
    trusted: str,
    hosts: tuple[str, ...],
    problem: str,
    tmp_path: Path,
) -> None:
    """Its certificate is from another authority or for another host."""
    ours, another = Authority(), Authority("another")
    (ours if trusted == "ours" else another).write(tmp_path)
    (tmp_path / "password").write_text(PASSWORD)
    settings = {
        "security.protocol": "SASL_SSL",
        "username": "kafka",
        "password": f"file:{tmp_path / 'password'}",
        "ssl.truststore.location": "ca.pem",
    }
    with (
        Ensemble(sasl={"kafka": PASSWORD}, authority=ours, hosts=hosts) as ensemble,
        following(ensemble, tmp_path, **settings) as proxy,
    ):
        proxy.until(lambda: problem in proxy.problem(), "not told")
        assert proxy.age() == float("inf")
