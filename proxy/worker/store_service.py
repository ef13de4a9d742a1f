"""Store service of a worker: reads changes every second, and answers requests from the store.

Rules:

- No client is accepted before the store was read; a mirror of the brokers' ACLs and quotas must
  also have been filled once (`Mirror`).
- When the store cannot be read, the last known content stays in force, and the proxy is not ready.
- Clients' requests have threads of their own: however many there are, they do not delay the
  reading of changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Final

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config, handlers
from proxy.brokers.access import open_access
from proxy.connection.commands import AnswerFromStore
from proxy.errors import ProxyError
from proxy.net.tls_contexts import ProxyTls
from proxy.store import CachedCredentials, Store, open_store
from proxy.store.interface import Mirror, StoreError, StoreStart, UserStore

if TYPE_CHECKING:
    from proxy.store.brokers import Administration
    from proxy.worker.acl_service import AclService
    from proxy.worker.quota_service import QuotaService

log = logging.getLogger(__name__)

STALE: Final = 60.0
"""Seconds after which the mirror counts as stale: brokers are queried at least every 30 s."""
MAX_WAIT: Final = 60.0
"""Seconds in which a request must be answered, including its wait for earlier ones. Its client
gives up before: Kafka's default of `request.timeout.ms` is 30 s."""
REFRESH_EVERY: Final = 0.8
"""Seconds between two checks whether the store has changed: with the time that a check takes, a
change applies within a second."""
FAILED: Final = "the content of the store could not be applied, see the log"
"""Reason why the worker is not ready after an error of the proxy."""
CHECK_EVERY: Final = 0.2
"""Seconds between two reads of the store before its content is known."""


def open_store_to_share(settings: config.Config, tls: ProxyTls, start: StoreStart | None) -> Store:
    """Open the store that the proxy started with, `start`. Raises StoreError."""

    def brokers() -> "Administration":
        from proxy.store.brokers import Administration

        return Administration(settings.upstream, open_access(settings.upstream, tls.upstream))

    return open_store(settings.store.url, brokers, start=start)


class StoreService:
    """Store of a worker's event loop; all disk access happens in threads."""

    def __init__(
        self,
        store: Store,
        users: UserStore,
        credentials: CachedCredentials,
        authorization: "AclService | None",
        quotas: "QuotaService | None",
        *,
        rights_changed: Callable[[], None],
        quotas_changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Refresh `credentials`, `authorization` and `quotas` from `store` and `users`.

        `rights_changed` is called when ACLs have changed for open connections, `quotas_changed`
        when quotas have.
        """
        self._store = store
        self._users = users
        self._credentials = credentials
        self._authorization = authorization
        self._quotas = quotas
        self._rights_changed = rights_changed
        self._quotas_changed = quotas_changed
        self.fake_secret = b""
        """The 32 bytes from which the salts of users that do not exist are derived; b"" before the
        content of the store is known."""
        self._error: str | None = None
        self._began = self._read_at = monotonic()
        self._mirror: Mirror | None = Mirror()
        self._changes = ThreadPoolExecutor(1, "changes")
        """The thread of changes, one after the other: brokers may be slow to make them."""
        self._questions = ThreadPoolExecutor(2, "questions")
        """The threads of queries; two, so that one that takes long does not block others."""
        self._refusals = ThreadPoolExecutor(1, "refusals")
        """The thread of refusals, so that a principal without rights delays none that has them."""

    async def known(self) -> None:
        """Return once the content of the store is known, so that clients can be judged by it."""
        await self.refresh()
        while not self._is_known:
            await asyncio.sleep(CHECK_EVERY)
            await self.refresh()

    async def follow(self) -> None:
        """Take over changes in the store, forever."""
        while True:
            await asyncio.sleep(REFRESH_EVERY)
            await self.refresh()

    @property
    def _is_known(self) -> bool:
        return self._mirror is None or self._mirror.asked_at is not None

    async def refresh(self) -> None:
        """Take over changes in the store once."""
        began = monotonic()
        try:
            mirror = await asyncio.to_thread(self._store.mirror)
            await asyncio.to_thread(self._credentials.refresh_if_changed)
            self._refuse_older(mirror)
            if self._authorization is not None:
                await asyncio.to_thread(self._authorization.read)
                self._take_over_acls()
            if self._quotas is not None:
                await asyncio.to_thread(self._quotas.read)
                if self._quotas.take_over():
                    await self._quotas_changed()
            if not self._is_known:  # a mirror has it from where it copies
                self.fake_secret = await asyncio.to_thread(self._users.scram_fake_secret)
            # Last: its ACLs and quotas must have been taken over.
            self._mirror = mirror
            if self._error is not None:
                log.warning("the store is read again")
            self._error = None
            self._read_at = max(began, self._read_at)
        except ProxyError as error:  # the last known content stays in force
            if self._error is None:
                log.error("%s", error)
            self._error = str(error)
        except Exception:
            if self._error != FAILED:
                log.exception("the content of the store could not be applied")
            self._error = FAILED

    def _refuse_older(self, mirror: Mirror | None) -> None:
        """Raise StoreError if the file is a copy older than the content in use."""
        if mirror is None or self._mirror is None or self._mirror.asked_at is None:
            return
        if mirror.asked_at is None or mirror.asked_at < self._mirror.asked_at:
            raise StoreError("the store is older than the copy in use, and will be renewed")

    def _take_over_acls(self) -> None:
        if self._authorization is not None and self._authorization.take_over():
            self._rights_changed()

    async def consult(self, question: AnswerFromStore) -> tuple[bytes | Callable[[], bytes], int]:
        """Return the answer to a request, or what makes it, and the thread's time in ns.

        Changes that it made, and ACLs that it read, are in force in this worker then. A request
        that is cancelled before it has begun never begins. Raises what `handlers.answer` does.
        """
        acls = None if self._authorization is None else self._authorization.acls()
        threads = self._threads(question)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MAX_WAIT):
                answer = await loop.run_in_executor(
                    threads, handlers.answer, question, self._store, self._users, acls
                )
        except TimeoutError:  # mostly before it has begun
            raise StoreError(f"no answer within {MAX_WAIT:g} s") from None
        if threads is self._changes:
            await self.refresh()
        else:
            self._take_over_acls()
        return answer

    def _threads(self, question: AnswerFromStore) -> ThreadPoolExecutor:
        if not question.authorized:
            return self._refusals
        return self._changes if question.request.api_key in handlers.CHANGES else self._questions

    def not_ready(self) -> list[str]:
        """Return the reasons why the worker should get no clients; empty if it may."""
        if self._error is not None:
            return [self._error]
        if self._mirror is None:
            return []
        if self._mirror.problem is not None:
            return [self._mirror.problem]
        if self._mirror.asked_at is None:
            return ["the brokers' ACLs and quotas are unknown so far"]
        age = monotonic() - self._mirror.asked_at
        return (
            [f"the brokers' ACLs and quotas were last read {age:.0f} s ago"] if age > STALE else []
        )

    def collect(self, snapshot: Snapshot) -> None:
        """Add the age of the known content."""
        known_at = self._read_at
        if self._mirror is not None:
            asked_at = self._mirror.asked_at
            known_at = min(known_at, self._began if asked_at is None else asked_at)
        snapshot.gauge(registry.STORE_AGE, monotonic() - known_at)
