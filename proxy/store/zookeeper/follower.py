"""Follower of ZooKeeper, a separate process that updates the mirror.

Rules:

- A successful read replaces the mirror in one transaction; a failed one does not change it.
- The age of the mirror is that of the last read or check that ZooKeeper answered. A check first
  brings the server up to date with the rest of its ensemble.
- After a lost connection everything is read again.
- Reading takes at most half a core, unless a check every 30 seconds needs more.
"""

import asyncio
import logging
from contextlib import closing, suppress
from time import monotonic, process_time
from typing import Final, NamedTuple

from proxy import config
from proxy.acl.model import AuthorizerMode
from proxy.brokers.discovery import FIRST_BACKOFF, MAX_BACKOFF
from proxy.errors import ProxyError
from proxy.net.tls_contexts import Tls
from proxy.net.tls_reload import follow as follow_certificates
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.lifeline import heed_parent, run_until
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.store.interface import StoreError, StoreStart
from proxy.store.sqlite.mirror import SqliteMirror, Versions
from proxy.store.zookeeper import ZookeeperMirror
from proxy.store.zookeeper.changes import shared_secret
from proxy.store.zookeeper.client import ZookeeperTree
from proxy.store.zookeeper.content import Content, Reader, Unanswered, difference
from sasl.untrusted import fit_for_log

log = logging.getLogger(__name__)

MAX_OF_A_CORE: Final = 0.5
"""Maximum share of a core that is spent on consecutive changes."""
AGAIN_S: Final = 0.03
"""Pause in seconds after a read that a notification caused. The author of the change waits for a
read that begins after ZooKeeper's answer to it, which may arrive later than the notification."""
MAX_PAUSE: Final = 30.0
"""Maximum pause in seconds between two reads."""


class _Written(NamedTuple):
    """State that was last written to the mirror, so that only changes are written."""

    content: Content
    versions: Versions


class Mirroring:
    """Mirror of a tree that is read repeatedly."""

    def __init__(self, mirror: SqliteMirror) -> None:
        self._mirror = mirror
        self._written: _Written | None = None

    def write(self, content: Content, asked_at: float, secret: bytes | None = None) -> None:
        """Update the mirror to the content as of `asked_at`. Raises StoreError."""
        mirror = self._mirror
        written, self._written = self._written, None
        present = Versions(mirror.acl_version(), mirror.quota_version(), mirror.version())
        # With another version, the file was restored; with a secret, this is the first full read
        if written is None or written.versions != present or secret is not None:
            versions = mirror.take_over(
                asked_at=asked_at,
                new_acls=content.acls(),
                new_quotas=content.quotas(),
                new_users=content.credentials(),
                secret=secret,
            )
        else:
            versions = mirror.follow(difference(written.content, content), asked_at=asked_at)
        self._written = None if versions is None else _Written(content, versions)


class Follower:
    """Follower of ZooKeeper."""

    def __init__(self, mirror: SqliteMirror, settings: config.Config, tls: Tls | None) -> None:
        self._mirror = mirror
        self._mirroring = Mirroring(mirror)
        self._settings = settings.store
        self._wants_acls = settings.authorizer.mode is not AuthorizerMode.OFF
        self._tls = tls
        self._tree: ZookeeperTree | None = None
        self._reader: Reader | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._repeats = LogRateLimit()
        self._reported: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Follow until cancelled."""
        failures = 0
        is_notified = False
        try:
            while True:
                began = process_time()
                self._changed.clear()
                is_read = await asyncio.to_thread(self._attempt)
                spent = process_time() - began
                rest = min(spent / MAX_OF_A_CORE - spent, MAX_PAUSE)
                failures = 0 if is_read else failures + 1
                if is_read:
                    await asyncio.sleep(rest)
                    is_notified = await self._notified(
                        AGAIN_S if is_notified else self._settings.refresh_ms / 1000
                    )
                else:
                    await asyncio.sleep(min(FIRST_BACKOFF * 2.0 ** min(failures, 10), MAX_BACKOFF))
        finally:
            self._disconnect()

    async def _notified(self, within_s: float) -> bool:
        """Wait for a notification; return whether one arrived in that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        return self._changed.is_set()

    def _attempt(self) -> bool:
        """Read once; return whether it succeeded."""
        try:
            self._read()
        except ProxyError as error:
            problem = f"the data in ZooKeeper is unknown: {error}"
            self._warn(problem)
            with suppress(ProxyError):
                self._mirror.note_problem(problem)
        except Exception:  # the mirror does not change until the next read
            log.exception("ZooKeeper could not be read")
        else:
            return True
        if self._reader is None or (self._tree is not None and self._tree.is_closed):
            self._disconnect()
        return False

    def _read(self) -> None:
        asked_at = monotonic()
        secret = None
        if self._tree is None or self._reader is None:
            self._tree = self._connected()
            reader = Reader(self._tree, wants_acls=self._wants_acls)
            content = reader.read()
            secret = self._secret(self._tree)
            self._reader = reader
        else:
            content = self._reader.read()
        self._mirroring.write(content, asked_at, secret)
        self._report(frozenset(content.all_problems()))

    def _connected(self) -> ZookeeperTree:
        context = None if self._tls is None else self._tls.context
        tree = ZookeeperTree(self._settings, context, changed=self._wake, lost=self._lost)
        tree.connect()
        return tree

    def _secret(self, tree: ZookeeperTree) -> bytes | None:
        """Return the secret of all proxies; None if this proxy may not read it."""
        try:
            return shared_secret(tree)
        except Unanswered:
            raise
        except StoreError as error:
            self._warn(f"other proxies derive other salts for users that do not exist: {error}")
            return None

    def _disconnect(self) -> None:
        tree, self._tree, self._reader = self._tree, None, None
        if tree is not None:
            tree.close()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def _lost(self) -> None:
        if (reader := self._reader) is not None:
            reader.forget()
        self._wake()

    def _report(self, problems: frozenset[str]) -> None:
        if new := sorted(problems - self._reported):
            self._warn(
                f"{len(problems)} nodes or values in ZooKeeper are left out, such as {new[0]}"
            )
        self._reported = problems

    def _warn(self, problem: str) -> None:
        text = fit_for_log(problem, ())
        self._repeats.warn(log, text, monotonic())


def run(
    settings: config.Config, tls: Tls | None, start: StoreStart, lifeline: int, heartbeat: Heartbeat
) -> int:
    """Keep the mirror up to date until SIGTERM, or until `lifeline` ends; return 0.

    Raises any error of its tasks; the parent then starts another process.
    """

    async def follow() -> None:
        stopping = heed_parent(lifeline, heartbeat)
        with closing(ZookeeperMirror(settings.store.path(), start)) as mirror:
            work = [Follower(mirror, settings, tls).run()]
            if tls is not None:
                work.append(follow_certificates([tls]))
            await run_until(stopping, work)

    asyncio.run(follow())
    return 0
