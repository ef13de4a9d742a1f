"""Workers whose answers a test can change, for the HTTP process."""

from collections.abc import Mapping
from typing import Any

from metrics.registry import EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from proxy.ops.status.session_facts import Selector, SessionFacts
from proxy.ops.worker_queries import ControlError
from tests.proxy.status_given import listener, session


class Workers:
    """Answers that a test can change."""

    def __init__(self) -> None:
        self.written: dict[int, int | None] = {0: 5, 1: 3}
        self.reasons: dict[int, list[str]] = {0: [], 1: []}
        self.hanging: list[str] = []
        self.rounds = 0
        self.pictures = 0
        self.open: dict[int, list[SessionFacts] | ControlError] = {
            0: [session(1), session(2, client_id="app-2")],
            1: [session(3, principal="User:bob")],
        }

    async def snapshots(self) -> Mapping[int, Snapshot | None]:
        self.rounds += 1
        return {worker: self._snapshot(count) for worker, count in self.written.items()}

    async def readiness(self) -> Mapping[int, list[str]]:
        return self.reasons

    def hung(self) -> list[str]:
        return self.hanging

    async def status(self) -> Mapping[int, Mapping[str, Any] | ControlError]:
        self.pictures += 1
        return {
            worker: {
                "reasons": self.reasons[worker],
                "listeners": [listener()],
                "incidents": [],
                "principals": {},
            }
            for worker in self.open
        }

    async def sessions(self, selector: Selector) -> Mapping[int, list[SessionFacts] | ControlError]:
        assert selector == Selector()
        return self.open

    def _snapshot(self, written: int | None) -> Snapshot | None:
        if written is None:
            return None
        snapshot = Snapshot(run="a")
        snapshot.count(EVENTS_WRITTEN, written)
        return snapshot
