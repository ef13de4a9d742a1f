"""The block list of several proxies that share a file, without their processes."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from metrics.snapshot import Snapshot
from proxy.connection.blocks import BlockList
from proxy.connection.connection import Connection
from proxy.errors import ConfigError
from proxy.worker import block_service
from proxy.worker.block_service import BlockService
from tests.support.blocks import document
from tests.support.frames import metadata
from tests.support.playbook import Playbook, log_in, logged_in
from tests.support.sasl import NOW
from tests.support.settings import PLAINTEXT, configured

EMPTY = document(version=0)
ALICE = document({"principal": "User:alice", "author": "ops", "reason": "lost\n"}, version=1)


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Proxy:
    """A worker's block service, and the sessions of its clients."""

    directory: Path
    clock: Clock
    settings: dict[str, object] = field(default_factory=dict)
    sessions: list[Playbook] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = configured(self.directory, PLAINTEXT, block=self.settings)
        self.list = BlockList()
        self.service = BlockService(config, self.list, 0, self.enforce)

    async def enforce(self) -> None:
        for one in self.sessions:
            one.call(Connection.end_if_blocked)

    def client(self, name: str) -> Playbook:
        play = Playbook()
        object.__setattr__(play.rules, "blocks", self.list)
        self.sessions.append(logged_in(play, sub=name))
        return play

    def refresh(self, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        asyncio.run(self.service.refresh())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(block_service, "monotonic", made)
    return made


def test_a_block_reaches_every_proxy_and_no_other_session(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(EMPTY)
    proxies = [Proxy(tmp_path, clock, {"file": "blocks"}) for _ in range(5)]
    names = ["alice", "bob", "carol", "alice"]
    clients = [(name, one.client(name)) for one in proxies for name in names]
    path.write_bytes(ALICE)
    for one in proxies:
        one.refresh()
    for name, play in clients:
        assert play.connection.closed is (name == "alice")
        play.client(metadata(3))
        assert (play.take()[-1:] == ["to broker: Metadata v12 #3"]) is (name != "alice")
    late = Playbook()
    object.__setattr__(late.rules, "blocks", proxies[3].list)
    log_in(late)
    assert "failed blocked" in late.take()
    beats = sorted((tmp_path / "blocks.proxies").iterdir())
    assert {one.read_text() for one in beats} == {"1"}
    path.write_bytes(document(version=2))
    proxies[0].refresh()
    assert {one.read_text() for one in beats} == {"2"}
    proxies[0].service.close()
    assert not beats[0].exists()
    proxies[0].client("alice")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (ALICE[:-20], "is incomplete"),
        (b"", "must begin with a line"),
        (document(count=1_000_000, version=2), "20000 are the most"),
        (None, "is missing"),
    ],
)
def test_the_last_good_list_applies_until_the_file_is_good_again(
    content: bytes | None, problem: str, tmp_path: Path, clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = tmp_path / "blocks"
    path.write_bytes(ALICE)
    proxy = Proxy(tmp_path, clock, {"file": "blocks", "stale.logins": "refuse"})
    bob = proxy.client("bob")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(3):
        proxy.refresh(10)
    assert [problem in record.getMessage() for record in caplog.records] == [True], "logged once"
    assert proxy.list.blocks.entries.keys() == {"0"}
    assert (proxy.service.not_ready(), proxy.service.condition().good) == ([], False)
    proxy.refresh(30)
    (reason,) = proxy.service.not_ready()
    assert reason.startswith("the block list was last read 1 min ago: ")
    assert problem in reason
    assert proxy.list.refuses_after == NOW + 60, "no login after it"
    assert not bob.connection.closed
    snapshot = Snapshot()
    proxy.service.collect(snapshot)
    path.write_bytes(document(version=3))
    proxy.refresh()
    assert (proxy.service.not_ready(), proxy.service.condition().good) == ([], True)
    assert proxy.list.blocks.entries == {}
    assert proxy.list.refuses_after > clock.now


def test_a_store_that_does_not_answer_is_noticed(tmp_path: Path, clock: Clock) -> None:
    """A read that hangs never returns; readiness and logins do not wait for it."""
    proxy = Proxy(tmp_path, clock, {"stale.logins": "refuse"})
    assert proxy.service.not_ready() == []
    clock.now += 60
    assert "does not answer" in proxy.service.not_ready()[0]
    assert proxy.list.refuses_after <= clock.now


def test_a_file_beside_the_store_may_be_missing_until_it_has_a_list(
    tmp_path: Path, clock: Clock
) -> None:
    proxy = Proxy(tmp_path, clock)
    proxy.refresh()
    assert proxy.service.problem is None
    path = tmp_path / "state.db.blocks"
    path.write_bytes(ALICE)
    proxy.refresh()
    path.unlink()
    proxy.refresh()
    assert "is missing" in str(proxy.service.problem)
    assert proxy.list.blocks.entries.keys() == {"0"}
    with pytest.raises(ConfigError, match="is missing: restore it"):
        Proxy(tmp_path, clock, {"file": "elsewhere"})


def test_changes_are_logged_with_author_and_reason(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "state.db.blocks"
    proxy = Proxy(tmp_path, clock)
    for content in (ALICE, document(*[{"jti": str(number)} for number in range(30)])):
        path.write_bytes(content)
        proxy.refresh()
    first, *others, last = [record.getMessage() for record in caplog.records]
    assert first == ("blocked: principal 'User:alice', id '0', author 'ops', reason 'lost\\n'")
    assert len(others) == block_service.MAX_LOGGED
    assert last == "10 more entries of the block list changed"
