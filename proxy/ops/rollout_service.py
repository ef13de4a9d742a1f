"""Rollout service of a worker: shares the evidence for `auto`, and applies its decisions.

Rules:

- All disk access, and all work on many principals, happens in a thread.
- While the store is away, evidence is kept, the last promotions stay in force, and nothing is
  decided: decisions are made inside the store's transaction.
- The first worker decides. Proxies that share a store see each other's decisions.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from metrics import registry
from metrics.rollout import Stage
from metrics.snapshot import Snapshot
from proxy import config
from proxy.ops.status.session_facts import Condition
from proxy.rollout import HOUR_MS, TOLERANCE_MS, Decision, Promotions, Record, Rollout
from proxy.store import Store
from proxy.store.interface import StoreError

log = logging.getLogger(__name__)

EXCHANGE_EVERY: Final = 2.0
"""Seconds between two exchanges with the store: a kill demotes its principal, in all workers, after
at most three of them."""
SHARE_OF_A_CORE: Final = 0.05
"""Largest share of a core that exchanges take; with very many principals they are less frequent."""


class RolloutService:
    """Evidence and promotions of a worker's event loop."""

    def __init__(
        self,
        settings: config.Config,
        store: Store,
        worker: int,
        promote: Callable[[Promotions, int | None], None],
        record: Callable[[str, Decision], None],
    ) -> None:
        """`promote` applies promotions, and the lifetime in milliseconds for other principals;
        `record` writes the decision about a principal to the event log."""
        self._store = store
        self._decides = worker == 0
        self._promote, self._record = promote, record
        self._applied: tuple[Promotions, int | None] | None = None
        self._version = self._forgot_ms = 0
        self._spent_s = 0.0
        """CPU time of the last exchange in seconds."""
        self._clock_offset = time.time() - monotonic()
        self._problem = ""
        self._counts = Counter[str]()
        self._funnel: dict[Stage, int] = {}
        self.apply(settings)
        self._known, self.pending = Rollout(self._rules), Rollout(self._rules)
        """Content of the store, and evidence that is not in it yet."""
        self._decided = Rollout(self._rules)
        """Decisions that are not reported yet."""

    def apply(self, settings: config.Config) -> None:
        """Apply the settings of a reload."""
        self._rules = settings.auto.rules()
        self._is_used = any(one.has_auto for one in settings.listeners)

    async def run(self) -> None:
        """Exchange evidence with the store, forever."""
        while True:
            await self.exchange()
            await asyncio.sleep(max(EXCHANGE_EVERY, self._spent_s / SHARE_OF_A_CORE))

    async def exchange(self) -> None:
        """Exchange evidence with the store once, if a listener uses `auto`."""
        if not self._is_used:
            return
        pending, self.pending = self.pending, Rollout(self._rules)
        now_ms, offset = round(time.time() * 1000), time.time() - monotonic()
        if abs(offset - self._clock_offset) * 1000 > TOLERANCE_MS:
            log.warning("auto: the clock was set: earlier evidence does not count")
            pending.floor_ms = now_ms
        self._clock_offset = offset
        try:
            promotions = await asyncio.to_thread(self._exchange, pending, now_ms)
        except Exception as error:
            pending.merge(self.pending)
            self.pending = pending
            self._known, self._version = Rollout(self._rules), 0
            if self._problem != str(error):
                is_expected = isinstance(error, StoreError)
                log.error("auto: nothing is decided: %s", error, exc_info=not is_expected)
            self._problem = str(error)
            return
        self._report()
        applied = promotions, self._rules.lifetime_ms(0)
        if applied != self._applied:
            self._applied = applied
            self._promote(*applied)

    def _exchange(self, pending: Rollout, now_ms: int) -> Promotions:
        """Read and write the store, and return the promotions; called in a thread."""
        began = time.thread_time()
        known, changed = self._known, set(pending.records)
        known.rules = pending.rules
        self._version, rows = self._store.rollout_rows(self._version)
        self._read(rows)
        if now_ms - self._forgot_ms > HOUR_MS:
            self._forgot_ms = now_ms
            changed |= set(known.forget(now_ms)) if self._decides else set()
        if changed or not pending.is_empty or not self._due(now_ms).is_empty:
            decided = Rollout(known.rules)

            def change(rows: dict[str, str]) -> Mapping[str, str | None]:
                self._read(rows)
                known.merge(pending)
                decided.merge(self._due(now_ms))
                known.merge(decided)
                return known.rows(changed | decided.records.keys())

            self._version = self._store.change_rollout(self._version, change)
            self._decided.merge(decided)
        self._funnel = known.funnel(now_ms)
        self._problem = known.pause.reason if known.pause.paused else ""
        promotions = known.promotions(now_ms)
        self._spent_s = time.thread_time() - began
        return promotions

    def _due(self, now_ms: int) -> Rollout:
        return self._known.decide(now_ms) if self._decides else Rollout(self._rules)

    def _read(self, rows: dict[str, str]) -> None:
        records = self._known.records
        before = {name: records[name].decision for name in rows.keys() & records.keys()}
        for name in self._known.read(rows):
            log.error("auto: the evidence about %a is damaged, and is collected again", name)
        for name in rows.keys() & records.keys() if self._decides else ():
            decision = records[name].decision
            if not decision.is_automatic and decision != before.get(name):
                self._decided.add(name, Record(decision=decision))

    def _report(self) -> None:
        decided, self._decided = self._decided, Rollout(self._rules)
        for principal, record in decided.records.items():
            decision = record.decision
            self._record(principal, decision)
            what = "demoted" if decision.probes else "shortened" if decision.step else "promoted"
            level = logging.WARNING if decision.probes else logging.INFO
            log.log(level, "auto: %a is %s: %s", principal, what, decision.reason)
            self._counts[what] += decision.is_automatic
        if decided.pause.paused:
            log.warning("auto: nothing is promoted any more: %a", decided.pause.reason)
            self._counts["frozen"] += 1

    def conditions(self) -> list[Condition]:
        """Return the progress for the status page."""
        if not self._is_used:
            return []
        state = ", ".join(f"{count} {stage}" for stage, count in self._funnel.items() if count)
        if self._problem:
            state += f"; nothing is promoted: {self._problem}"
        return [Condition("auto", "principals", state or "none yet", good=not self._problem)]

    def collect(self, snapshot: Snapshot) -> None:
        """Add the number of principals in each stage, and the decisions of this worker."""
        for stage, count in self._funnel.items() if self._is_used else ():
            snapshot.gauge(registry.AUTO_PRINCIPALS, count, stage.value)
        for what in ("promoted", "shortened", "demoted", "frozen") if self._decides else ():
            snapshot.count(registry.AUTO_DECISIONS, self._counts[what], what)
