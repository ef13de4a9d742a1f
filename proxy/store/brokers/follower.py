"""Follower of the brokers' ACLs and quotas, a separate process.

A cluster may have 100,000 ACLs, which take a second to read. Clients must not wait for that, so
workers do not read them from the brokers. Rules:

- While brokers do not answer, the mirror does not change, and still applies.
- Reading takes at most a tenth of a core, unless a query every 30 seconds needs more.
- ACLs and quotas that this version does not know are skipped, and logged.
"""

import asyncio
import logging
from contextlib import closing, suppress
from dataclasses import dataclass
from time import monotonic, process_time
from typing import Final

from proxy import config
from proxy.acl.model import Acl, AuthorizerMode, Permission
from proxy.acl.validation import acl_refusal
from proxy.admin import AdminClient, AuthenticationFailed, UnsupportedVersion
from proxy.admin.quota_messages import known_quotas
from proxy.brokers.access import Access, open_access
from proxy.brokers.discovery import FIRST_BACKOFF, MAX_AFTER_REFUSAL, MAX_BACKOFF
from proxy.config import QuotasMode
from proxy.errors import ProxyError
from proxy.net.tls_contexts import Tls
from proxy.net.tls_contexts import follow as follow_certificates
from proxy.quota.model import Quotas
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.lifeline import heed_parent, run_until
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.store.brokers import Administration, reason_of
from proxy.store.interface import StoreError, StoreStart
from proxy.store.sqlite.mirror import SqliteMirror
from sasl.untrusted import fit_for_log

log = logging.getLogger(__name__)

MAX_OF_A_CORE: Final = 0.1
"""Maximum share of a core that is spent on reading brokers' responses."""
MAX_PAUSE: Final = 30.0
"""Maximum pause in seconds: revoked permissions must not apply for longer."""


@dataclass(frozen=True, slots=True)
class _Written:
    """State that was last written to the mirror, so that unchanged data is not written again."""

    acls: tuple[Acl, ...] | None = None
    quotas: Quotas | None = None
    acl_version: int = -1
    quota_version: int = -1


class Follower:
    """Follower of the brokers' ACLs and quotas."""

    def __init__(self, mirror: SqliteMirror, settings: config.Config, access: Access) -> None:
        self._mirror = mirror
        self._refresh_s = settings.store.refresh_ms / 1000
        self._wants_acls = settings.authorizer.mode is not AuthorizerMode.OFF
        self._wants_quotas = settings.quotas.mode is not QuotasMode.OFF
        self._admin = Administration(settings.upstream, access)
        self._written = _Written()
        self._repeats = LogRateLimit()

    async def run(self) -> None:
        """Query the brokers until cancelled."""
        failures = 0
        while True:
            began = process_time()
            max_backoff = await self._attempt(monotonic())
            spent = process_time() - began
            rest = min(spent / MAX_OF_A_CORE - spent, MAX_PAUSE)
            if max_backoff is None:
                failures = 0
                pause = self._refresh_s
            else:
                failures += 1
                pause = min(FIRST_BACKOFF * 2.0 ** min(failures, 10), max_backoff)
            await asyncio.sleep(max(pause, rest))

    async def _attempt(self, now: float) -> float | None:
        """Query once. Return None, or after a failure the maximum pause in seconds before the next
        query."""
        try:
            await self.query(now)
        except ProxyError as error:
            problem = f"the brokers' ACLs and quotas are unknown: {reason_of(error)}"
            self._warn(problem, now)
            with suppress(ProxyError):
                self._mirror.note_problem(problem)
            refused = isinstance(error, AuthenticationFailed)
            return MAX_AFTER_REFUSAL if refused else MAX_BACKOFF
        except Exception:  # the mirror does not change until the next query
            log.exception("the brokers' ACLs and quotas could not be read")
            return MAX_BACKOFF
        return None

    async def query(self, now: float) -> None:
        """Query the brokers, and update the mirror. Raises AdminError and StoreError."""
        admin = await self._admin.client()
        # Store no ACLs rather than outdated ones: the file may become the proxy's own store
        acls = await self._acls(admin) if self._wants_acls else ()
        quotas = await self._quotas(admin)
        mirror, written = self._mirror, self._written
        same_acls = acls == written.acls and mirror.acl_version() == written.acl_version
        same_quotas = quotas == written.quotas and mirror.quota_version() == written.quota_version
        versions = mirror.take_over(
            asked_at=now,
            new_acls=None if same_acls else acls,
            new_quotas=None if same_quotas else quotas,
        )
        self._written = _Written() if versions is None else _Written(acls, quotas, *versions)

    async def _acls(self, admin: AdminClient) -> tuple[Acl, ...]:
        found = (await admin.describe_acls()).values()
        unknown = [acl for acl in found if acl_refusal(acl) is not None]
        if not unknown:
            return found
        for acl in unknown:
            if acl.permission is not Permission.ALLOW:
                text = fit_for_log(str(acl), ())
                raise StoreError(f"an ACL that may deny is unknown to this version: {text}")
        self._warn_skipped(f"{len(unknown)} ACLs", str(unknown[0]))
        skipped = {*unknown}
        return tuple(acl for acl in found if acl not in skipped)

    async def _quotas(self, admin: AdminClient) -> Quotas:
        try:
            found = (await admin.describe_client_quotas()).entities()
        except UnsupportedVersion:  # before KIP-546
            if self._wants_quotas:
                raise
            return {}
        known, unknown = known_quotas(found)
        if unknown:
            self._warn_skipped(f"{len(unknown)} quotas", unknown[0])
        return known

    def _warn_skipped(self, number: str, example: str) -> None:
        text = f"{number} of the brokers are unknown to this version, and skipped, such as"
        self._warn(f"{text} {fit_for_log(example, ())}", monotonic())

    def _warn(self, problem: str, now: float) -> None:
        self._repeats.warn(log, problem, now)


def run(
    settings: config.Config, tls: Tls | None, start: StoreStart, lifeline: int, heartbeat: Heartbeat
) -> int:
    """Keep the mirror up to date until SIGTERM, or until `lifeline` ends; return 0.

    Raises any error of its tasks; the parent then starts another process.
    """

    async def follow() -> None:
        stopping = heed_parent(lifeline, heartbeat)
        access = open_access(settings.upstream, tls)
        with closing(SqliteMirror(settings.store.path(), start)) as mirror:
            work = [Follower(mirror, settings, access).run()]
            if tls is not None:
                work.append(follow_certificates([tls]))
            if access.identity is not None:
                work.append(access.identity.run())
            await run_until(stopping, work)

    asyncio.run(follow())
    return 0
