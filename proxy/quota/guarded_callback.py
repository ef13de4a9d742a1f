"""Wrapper of a quota callback that contains its errors and delays.

A custom callback may raise, never return, or return invalid answers. Therefore:

- It runs in its own thread, one call after the other. The data path waits for an answer for
  `PATIENCE` at most, and not at all while the callback is busy with something that took longer.
- An answer is kept; when a later one fails, the last good one applies. Where there is none yet,
  KIP-55's precedence over the stored quotas does, as if there were no callback.
- An answer that comes late is used from then on: `generation` shows that something changed.
- Each fault is counted by its kind, and logged once per kind.

A thread cannot be ended from outside: one that never returns stays until the process ends.
"""

import logging
import math
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

from proxy.quota.callback import ClientQuotaType, Cluster, DefaultQuotaCallback, QuotaCallback
from proxy.quota.model import QuotaEntity
from proxy.quota.precedence import Tags

log = logging.getLogger(__name__)

PATIENCE: Final = 0.02
"""Time in seconds that the data path waits for an answer that is not cached."""
MAX_ANSWERS: Final = 16_384
"""Maximum number of cached answers; the least recently used are evicted first."""
MAX_WAITING: Final = 1_024
"""Maximum number of queued questions; beyond it, no question is queued. Notifications are not
bounded: their number is that of the changes made."""
_MAX_TAGS: Final = 16
_MAX_TAG: Final = 65_536


class Fault(StrEnum):
    """Faults of a callback that are counted."""

    RAISED = "raised"
    STALLED = "stalled"
    NONSENSE = "nonsense"


class GuardedCallback:
    """Wrapper that calls a `QuotaCallback` in a thread, and answers in its place when it fails."""

    def __init__(self, callback: QuotaCallback, fallback: DefaultQuotaCallback) -> None:
        """Wrap `callback`; `fallback` answers where the callback never did, and must hold the same
        quotas."""
        self.generation = 0
        """Number that grows when an answer has changed."""
        self.faults: Counter[Fault] = Counter()
        """Number of faults of the callback, by kind."""
        self._callback = callback
        self._fallback = fallback
        self._lock = threading.Lock()
        self._good: OrderedDict[object, object] = OrderedDict()
        self._stalled = False
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._cluster: Cluster | None = None
        self._thread = threading.Thread(target=self._run, name="quota-callback", daemon=True)
        self._thread.start()

    # Questions of the data path

    def tags(self, quota_type: ClientQuotaType, principal: str, client_id: str) -> Tags:
        """Return the tags of the quota that a client uses. Never raises; waits for `PATIENCE` at
        most."""
        good = self._ask(
            (quota_type, principal, client_id),
            lambda: _checked_tags(
                self._callback.quota_metric_tags(quota_type, principal, client_id)
            ),
        )
        if good is None:
            return self._fallback.quota_metric_tags(quota_type, principal, client_id)
        assert isinstance(good, dict)
        return good

    def limit(self, quota_type: ClientQuotaType, tags: Tags) -> float | None:
        """Return the limit of a quota, None if there is none. Never raises; waits for `PATIENCE` at
        most."""
        good = self._ask(
            (quota_type, tuple(sorted(tags.items()))),
            lambda: _checked_limit(self._callback.quota_limit(quota_type, tags)),
        )
        if good is None:
            return self._fallback.quota_limit(quota_type, tags)
        assert isinstance(good, float)
        return None if math.isinf(good) else good

    def _ask(self, key: object, question: Callable[[], object]) -> object | None:
        """Return the answer, or the last good one; None if there never was one."""
        if self._calls.qsize() >= MAX_WAITING:
            self._note_stall()
        else:
            self._wait_for(key, question)
        with self._lock:
            return self._good.get(key)

    def _wait_for(self, key: object, question: Callable[[], object]) -> None:
        answered, gave_up = threading.Event(), threading.Event()

        def call() -> None:
            try:
                self._keep(key, question(), late=gave_up.is_set())
            finally:
                answered.set()

        self._calls.put(call)
        if not answered.wait(0.0 if self._stalled else PATIENCE):
            gave_up.set()
            self._note_stall()

    def _keep(self, key: object, answer: object, *, late: bool) -> None:
        with self._lock:
            if self._good.get(key) != answer and (late or key in self._good):
                self.generation += 1
            self._good[key] = answer
            self._good.move_to_end(key)
            while len(self._good) > MAX_ANSWERS:
                self._good.popitem(last=False)

    def _note_stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self._fault(Fault.STALLED, "did not answer in time")

    # Notifications

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """Notify the callback of a quota that was set."""
        self._fallback.update_quota(quota_type, quota_entity, new_value)
        self._calls.put(lambda: self._callback.update_quota(quota_type, quota_entity, new_value))

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """Notify the callback of a quota that was removed."""
        self._fallback.remove_quota(quota_type, quota_entity)
        self._calls.put(lambda: self._callback.remove_quota(quota_type, quota_entity))

    def update_cluster_metadata(self, cluster: Cluster) -> None:
        """Notify the callback of a change of the cluster; a slow callback receives only the last
        one."""
        with self._lock:
            waiting, self._cluster = self._cluster is not None, cluster
        if not waiting:
            self._calls.put(self._pass_cluster_on)

    def _pass_cluster_on(self) -> None:
        with self._lock:
            cluster, self._cluster = self._cluster, None
        assert cluster is not None
        self._note_change(self._callback.update_cluster_metadata(cluster))

    def check_reset(self) -> None:
        """Check whether limits changed for other reasons. Called about once a second."""
        if self._stalled:
            return
        for quota_type in ClientQuotaType:
            self._calls.put(partial(self._ask_for_reset, quota_type))

    def _ask_for_reset(self, quota_type: ClientQuotaType) -> None:
        self._note_change(self._callback.quota_reset_required(quota_type))

    def _note_change(self, changed: object) -> None:
        if changed is True:
            with self._lock:
                self.generation += 1

    def close(self) -> None:
        """Ask the callback to close, without waiting for it."""
        self._calls.put(self._callback.close)
        self._calls.put(None)

    # The callback's thread

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except _NonsenseError as nonsense:
                self._fault(Fault.NONSENSE, str(nonsense))
            except BaseException as error:  # SystemExit too: it is foreign code
                self._fault(Fault.RAISED, f"raised {type(error).__name__}")
            if self._calls.empty():
                self._stalled = False

    def _fault(self, fault: Fault, how: str) -> None:
        with self._lock:
            self.faults[fault] += 1
            first = self.faults[fault] == 1
        if first:
            name = type(self._callback).__qualname__
            log.error("the quota callback %s %s; the last good limits apply", name, how)


class _NonsenseError(Exception):
    """The callback returned an invalid answer."""


def _checked_tags(tags: object) -> dict[str, str]:
    if not isinstance(tags, Mapping):
        raise _NonsenseError(f"gave a {type(tags).__name__} for tags")
    checked: dict[str, str] = {}
    for name, value in tags.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise _NonsenseError("gave tags that are not text")
        if len(checked) == _MAX_TAGS or len(name) + len(value) > _MAX_TAG:
            raise _NonsenseError("gave tags beyond measure")
        checked[name] = value
    return checked


def _checked_limit(limit: object) -> float:
    """Return the limit; infinity stands for no limit, so that None can stand for an unknown one."""
    if limit is None:
        return math.inf
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise _NonsenseError(f"gave a {type(limit).__name__} for a limit")
    try:
        value = float(limit)
    except OverflowError:
        raise _NonsenseError("gave a limit beyond measure") from None
    if not value > 0.0:  # also false for NaN
        raise _NonsenseError("gave a limit that is not above 0")
    return value
