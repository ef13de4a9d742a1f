"""Wrapper of a quota callback that contains its errors and delays.

A custom callback may raise, never return, or return invalid answers. Therefore:

- It runs in its own thread, one call at a time. The data path waits at most `MAX_WAIT_SECONDS` for
  an answer, and does not wait while an earlier call takes longer.
- Answers are cached; if a later call fails, the last valid answer applies. Before the first valid
  answer, KIP-55's precedence over the stored quotas applies, as without a callback.
- A late answer is used when it arrives, and increases `generation`.
- Faults are counted by kind, and the first fault of each kind is logged.

A thread cannot be stopped from outside: a call that never returns blocks it until the process ends.
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

from proxy.quota.callback import (
    ClientPrincipal,
    ClientQuotaType,
    Cluster,
    DefaultQuotaCallback,
    QuotaCallback,
)
from proxy.quota.model import QuotaEntity
from proxy.quota.precedence import Tags

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS: Final = 0.02
"""Time in seconds that the data path waits for an answer that is not cached."""
MAX_ANSWERS: Final = 16_384
"""Maximum number of cached answers; the least recently used are evicted first."""
MAX_QUEUED: Final = 1_024
"""Maximum number of queued calls; when it is reached, calls for answers are not queued.
Notifications are not bounded, because there is only one per change."""
_MAX_TAGS: Final = 16
_MAX_TAG_CHARACTERS: Final = 65_536


class Fault(StrEnum):
    """Faults of a callback that are counted."""

    RAISED = "raised"
    STALLED = "stalled"
    NONSENSE = "nonsense"


class GuardedCallback:
    """Wrapper that calls a `QuotaCallback` in a thread, and answers itself when the callback
    fails."""

    def __init__(self, callback: QuotaCallback, fallback: DefaultQuotaCallback) -> None:
        """Wrap `callback`. `fallback` answers until the callback does, and must have the same
        quotas."""
        self.generation = 0
        """Number that increases when an answer has changed."""
        self.faults: Counter[Fault] = Counter()
        """Number of faults of the callback, by kind."""
        self._callback = callback
        self._fallback = fallback
        self._lock = threading.Lock()
        self._answers: OrderedDict[object, object] = OrderedDict()
        self._stalled = False
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._cluster: Cluster | None = None
        self._thread = threading.Thread(target=self._run, name="quota-callback", daemon=True)
        self._thread.start()

    # Questions of the data path

    def tags(self, quota_type: ClientQuotaType, principal: ClientPrincipal, client_id: str) -> Tags:
        """Return the tags of the quota that a client uses. Never raises; waits at most
        `MAX_WAIT_SECONDS`."""
        answer = self._ask(
            (quota_type, principal, principal.groups, client_id),
            lambda: _checked_tags(
                self._callback.quota_metric_tags(quota_type, principal, client_id)
            ),
        )
        if answer is None:
            return self._fallback.quota_metric_tags(quota_type, principal, client_id)
        assert isinstance(answer, dict)
        return answer

    def limit(self, quota_type: ClientQuotaType, tags: Tags) -> float | None:
        """Return the limit of a quota; None if the usage is unlimited. Never raises; waits at most
        `MAX_WAIT_SECONDS`."""
        answer = self._ask(
            (quota_type, tuple(sorted(tags.items()))),
            lambda: _checked_limit(self._callback.quota_limit(quota_type, tags)),
        )
        if answer is None:
            return self._fallback.quota_limit(quota_type, tags)
        assert isinstance(answer, float)
        return None if math.isinf(answer) else answer

    def _ask(self, key: object, question: Callable[[], object]) -> object | None:
        """Return the answer, or the last valid one; None before the first valid answer."""
        if self._calls.qsize() >= MAX_QUEUED:
            self._note_stall()
        else:
            self._wait_for(key, question)
        with self._lock:
            return self._answers.get(key)

    def _wait_for(self, key: object, question: Callable[[], object]) -> None:
        answered, gave_up = threading.Event(), threading.Event()

        def call() -> None:
            try:
                self._keep(key, question(), late=gave_up.is_set())
            finally:
                answered.set()

        self._calls.put(call)
        if not answered.wait(0.0 if self._stalled else MAX_WAIT_SECONDS):
            gave_up.set()
            self._note_stall()

    def _keep(self, key: object, answer: object, *, late: bool) -> None:
        with self._lock:
            if self._answers.get(key) != answer and (late or key in self._answers):
                self.generation += 1
            self._answers[key] = answer
            self._answers.move_to_end(key)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)

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
        """Notify the callback of a change of the cluster. A slow callback receives only the last
        change."""
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
            except _InvalidAnswerError as error:
                self._fault(Fault.NONSENSE, str(error))
            except BaseException as error:  # including SystemExit
                self._fault(Fault.RAISED, f"raised {type(error).__name__}")
            if self._calls.empty():
                self._stalled = False

    def _fault(self, fault: Fault, how: str) -> None:
        with self._lock:
            self.faults[fault] += 1
            first = self.faults[fault] == 1
        if first:
            name = type(self._callback).__qualname__
            log.error("the quota callback %s %s; the last valid limits apply", name, how)


class _InvalidAnswerError(Exception):
    """The callback returned an invalid answer."""


def _checked_tags(tags: object) -> dict[str, str]:
    if not isinstance(tags, Mapping):
        raise _InvalidAnswerError(f"returned {type(tags).__name__} instead of tags")
    checked: dict[str, str] = {}
    for name, value in tags.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise _InvalidAnswerError("returned tags that are not strings")
        if len(checked) == _MAX_TAGS or len(name) + len(value) > _MAX_TAG_CHARACTERS:
            raise _InvalidAnswerError("returned too many tags, or too long ones")
        checked[name] = value
    return checked


def _checked_limit(limit: object) -> float:
    """Return the limit. Infinity means no limit, because None means that the limit is unknown."""
    if limit is None:
        return math.inf
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise _InvalidAnswerError(f"returned {type(limit).__name__} instead of a limit")
    try:
        value = float(limit)
    except OverflowError:
        raise _InvalidAnswerError("returned too large a limit") from None
    if not value > 0.0:  # also false for NaN
        raise _InvalidAnswerError("returned a limit that is not above 0")
    return value
