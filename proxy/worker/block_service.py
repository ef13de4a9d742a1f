"""Block list of a worker: read from its file, enforced, and reported."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from socket import gethostname
from time import monotonic, time
from typing import Final

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.config.model import StaleLogins
from proxy.connection.blocks import BlockList, Blocks
from proxy.ops.status.session_facts import Condition
from proxy.ops.status.text import duration
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.store.block_file import BlockFile
from proxy.worker.identity_services import FileService

log = logging.getLogger(__name__)

CHECKS_PER_AGE: Final = 4
"""Number of checks within `block.max.age.ms`: one check may be late, and sessions are closed one by
one."""
MAX_LOGGED: Final = 20
"""Maximum number of entries of one change that are logged."""


class BlockService(FileService[Blocks]):
    """Block list that follows its file."""

    def __init__(
        self,
        settings: config.Config,
        block_list: BlockList,
        worker: int,
        enforce: Callable[[], Awaitable[None]],
    ) -> None:
        """Read the file into `block_list`; `enforce` closes sessions. Worker 0 logs changes.

        Raises ConfigError.
        """
        self._settings = settings.block
        self._list = block_list
        self._worker = worker
        self._enforce = enforce
        self._file, port = BlockFile(settings), settings.listeners[0].address.port
        self._heartbeat = self._file.heartbeats / f"{gethostname()}:{port} worker {worker}"
        """File with the version that is enforced; `blocks --wait` reads it."""
        self._repeats = LogRateLimit()
        super().__init__(
            self._file.path,
            lambda: self._file.read(block_list.blocks, monotonic()),
            self._take_over,
            interval=settings.block.max_age_ms / 1000 / CHECKS_PER_AGE,
        )
        self._list.blocks = self.current
        self._checked(monotonic())
        self._beat()  # or `blocks --wait` would not know of a worker that has just started

    async def refresh(self) -> None:
        """Check the file, and close sessions that are blocked now."""
        began = monotonic()
        await super().refresh()
        if self.problem is None:
            self._checked(began)
        if self.current.may_change:
            await self._enforce()
        await asyncio.to_thread(self._beat)

    def _beat(self) -> None:
        """Write which version is enforced, unless the list was never used."""
        if not self._file.is_shared and not self.current.version:
            return
        try:
            self._heartbeat.parent.mkdir(exist_ok=True)
            self._heartbeat.write_text(str(self.current.version))
        except OSError as error:
            self._repeats.warn(
                log, f"{self._heartbeat}: cannot be written: {error.strerror}", monotonic()
            )

    def close(self) -> None:
        """Remove the heartbeat: the worker has no sessions any more."""
        with suppress(OSError):
            self._heartbeat.unlink()

    def _checked(self, at: float) -> None:
        self._read_at = at
        self._list.wall_offset = time() - monotonic()
        refuses = self._settings.stale_logins is StaleLogins.REFUSE
        self._list.refuses_after = at + self._settings.max_stale_ms / 1000 if refuses else inf

    async def _take_over(self) -> None:
        before, self._list.blocks = self._list.blocks, self.current
        await self._enforce()
        if self._worker != 0:
            return
        old, new = before.entries, self.current.entries
        changes = [("blocked", one) for one in new.values() if old.get(one.id) != one]
        changes += [("unblocked", one) for one in old.values() if one.id not in new]
        for what, block in changes[:MAX_LOGGED]:
            log.warning("%s: %s, id %a, author %a, reason %a", what, block, block.id, block.author,
                        block.reason)  # fmt: skip
        if len(changes) > MAX_LOGGED:
            log.warning("%d more entries of the block list changed", len(changes) - MAX_LOGGED)

    # Reports

    @property
    def _is_stale(self) -> bool:
        return monotonic() - self._read_at >= self._settings.max_stale_ms / 1000

    def not_ready(self) -> list[str]:
        """Return why the worker should get no clients; empty if it may."""
        if not self._is_stale:
            return []
        reason = self.problem or f"{self._path} does not answer"
        return [
            f"the block list was last read {duration(monotonic() - self._read_at)} ago: {reason}"
        ]

    def condition(self) -> Condition:
        """Return the state of the list, for the status page."""
        age = duration(monotonic() - self._read_at)
        within = duration(self._settings.max_age_ms / 1000)
        state = f"{self.current}, read {age} ago, changes apply within {within}"
        good = self.problem is None and not self._is_stale
        return Condition("block list", str(self._path), self.problem or state, good=good)

    def collect(self, snapshot: Snapshot) -> None:
        """Add the number of entries and the age of the list."""
        snapshot.gauge(registry.BLOCKS, len(self.current.entries))
        snapshot.gauge(registry.BLOCKS_AGE, monotonic() - self._read_at)
        snapshot.gauge(registry.BLOCKS_MAX_AGE, self._settings.max_age_ms / 1000)
        snapshot.gauge(registry.BLOCKS_MAX_STALE, self._settings.max_stale_ms / 1000)
