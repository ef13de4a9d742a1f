"""Whatever a callback does, the data path gets an answer, soon.

The callbacks here wait on events, never for a time; the guard's own patience is that of a test,
but where it is to run out.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from proxy.quota import guarded_callback as guarded_module
from proxy.quota.callback import ClientPrincipal, ClientQuotaType, Cluster, DefaultQuotaCallback
from proxy.quota.guarded_callback import Fault, GuardedCallback
from proxy.quota.model import QuotaEntity
from proxy.quota.precedence import Tags
from tests.support.processes import PATIENCE_SECONDS

PRODUCE = ClientQuotaType.PRODUCE
TAGS = {"group": "g"}
CLUSTER = Cluster(leaders={}, behind=frozenset())


class Scripted(DefaultQuotaCallback):
    """Behaves as the test sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: Callable[[], object] = lambda: 100.0
        self.tags: Callable[[], object] = lambda: TAGS
        self.reset = False
        self.clusters = 0

    def quota_metric_tags(self, *_: object) -> Tags:
        return self.tags()  # type: ignore[return-value] # nonsense is the point

    def quota_limit(self, *_: object) -> float | None:
        return self.limit()  # type: ignore[return-value]

    def quota_reset_required(self, *_: object) -> bool:
        return self.reset

    def update_cluster_metadata(self, *_: object) -> bool:
        self.clusters += 1
        return True


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a machine that has something else to do than to run the callback's thread."""
    monkeypatch.setattr(guarded_module, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)


def settled(guarded: GuardedCallback) -> None:
    """Wait until the callback's thread has done all it was given."""
    done = threading.Event()
    guarded._calls.put(done.set)
    assert done.wait(PATIENCE_SECONDS)


@contextmanager
def guarding(callback: Scripted) -> Iterator[GuardedCallback]:
    fallback = DefaultQuotaCallback()
    fallback.update_quota(PRODUCE, QuotaEntity(user="u"), 7.0)
    guarded = GuardedCallback(callback, fallback)
    settled(guarded)
    yield guarded
    guarded.close()
    guarded._thread.join(PATIENCE_SECONDS)
    assert not guarded._thread.is_alive()


def raising(error: BaseException) -> Callable[[], object]:
    def raises() -> object:
        raise error

    return raises


def test_a_good_callback_is_what_applies() -> None:
    with guarding(Scripted()) as guarded:
        assert guarded.tags(PRODUCE, ClientPrincipal("User:u"), "c") == TAGS
        assert guarded.limit(PRODUCE, TAGS) == 100.0
        assert not guarded.faults


ERRORS = [ValueError("x"), KeyError(), SystemExit(3), MemoryError()]
NONSENSE: list[object] = [float("nan"), -1.0, 0, True, "100", [], 10**400, object()]


@pytest.mark.parametrize(
    ("limit", "fault"),
    [(raising(error), Fault.RAISED) for error in ERRORS]
    + [(lambda value=value: value, Fault.NONSENSE) for value in NONSENSE],
)
def test_a_fault_leaves_the_last_good_limit(limit: Callable[[], object], fault: Fault) -> None:
    callback = Scripted()
    with guarding(callback) as guarded:
        guarded.limit(PRODUCE, TAGS)
        callback.limit = limit
        assert guarded.limit(PRODUCE, TAGS) == 100.0
        settled(guarded)
        assert guarded.faults[fault] == 1


@pytest.mark.parametrize(
    "nonsense",
    [None, "user", {1: "a"}, {"a": None}, {str(n): "" for n in range(99)}, {"a": "b" * 10**6}],
)
def test_without_a_good_answer_the_precedence_applies(nonsense: object) -> None:
    """As if there were no callback: a quota that is stored is never dropped."""
    callback = Scripted()
    callback.tags = lambda: nonsense
    with guarding(callback) as guarded:
        tags = guarded.tags(PRODUCE, ClientPrincipal("User:u"), "c")
        assert tags == {"user": "u", "client-id": ""}
        callback.limit = raising(ValueError())
        assert guarded.limit(PRODUCE, tags) == 7.0


def test_no_limit_is_an_answer_too() -> None:
    callback = Scripted()
    with guarding(callback) as guarded:
        callback.limit = lambda: None
        assert guarded.limit(PRODUCE, {"user": "u", "client-id": ""}) is None
        callback.limit = lambda: float("inf")
        assert guarded.limit(PRODUCE, TAGS) is None


def test_one_that_stalls_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it called in the waiting thread: that it never returns harms nobody."""
    callback, go_on = Scripted(), threading.Event()
    with guarding(callback) as guarded:
        assert guarded.limit(PRODUCE, TAGS) == 100.0
        callback.limit = lambda: (go_on.wait(PATIENCE_SECONDS), 200.0)[1]
        monkeypatch.setattr(guarded_module, "MAX_WAIT_SECONDS", 0.02)
        for _ in range(5_000):  # far more than may wait, and without waiting
            assert guarded.limit(PRODUCE, TAGS) == 100.0
        assert guarded.faults[Fault.STALLED] == 1
        assert guarded._calls.qsize() <= 1_024
        before = guarded.generation
        go_on.set()
        settled(guarded)
        monkeypatch.setattr(guarded_module, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)
        assert guarded.generation > before, "what came late is news"
        assert guarded.limit(PRODUCE, TAGS) == 200.0


def test_a_first_answer_in_time_is_no_news_to_others() -> None:
    """Or each new client would make all others ask again."""
    with guarding(Scripted()) as guarded:
        for client in range(20):
            guarded.tags(PRODUCE, ClientPrincipal("User:u"), str(client))
        assert not guarded.faults
        assert guarded.generation == 0


def test_faults_are_logged_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    callback = Scripted()
    callback.limit = raising(ValueError("a secret"))
    with caplog.at_level(logging.ERROR), guarding(callback) as guarded:
        for _ in range(10):
            guarded.limit(PRODUCE, TAGS)
        settled(guarded)
        assert guarded.faults[Fault.RAISED] == 10
    reported = [record.message for record in caplog.records if "raised" in record.message]
    assert reported == [
        "the quota callback Scripted raised ValueError; the last valid limits apply"
    ]


def test_changes_are_news() -> None:
    callback = Scripted()
    with guarding(callback) as guarded:
        guarded.update_cluster_metadata(CLUSTER)
        settled(guarded)
        assert guarded.generation == 1
        guarded.check_reset()
        settled(guarded)
        assert guarded.generation == 1
        callback.reset = True
        guarded.check_reset()
        settled(guarded)
        assert guarded.generation > 1


def test_one_that_is_busy_hears_of_the_last_cluster_only() -> None:
    callback, go_on = Scripted(), threading.Event()
    with guarding(callback) as guarded:
        guarded._calls.put(lambda: go_on.wait(PATIENCE_SECONDS))
        for _ in range(100):
            guarded.update_cluster_metadata(CLUSTER)
        go_on.set()
        settled(guarded)
        assert callback.clusters == 1


def test_updates_reach_the_callback_and_the_fallback() -> None:
    callback = Scripted()
    with guarding(callback) as guarded:
        entity = QuotaEntity(user="v")
        guarded.update_quota(PRODUCE, entity, 3.0)
        guarded.remove_quota(PRODUCE, QuotaEntity(user="u"))
        settled(guarded)
        assert callback._quotas == guarded._fallback._quotas == {entity: {PRODUCE.value: 3.0}}
