"""Authorizer service of a worker: loads ACLs from the store, applies them to connections.

A thread updates the index; the event loop then switches to it, and earlier verdicts are forgotten.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Final, Protocol, cast

from metrics import registry
from metrics.snapshot import Snapshot
from metrics.usage import UsageLog, Use
from proxy import config
from proxy.acl.authorizer import Authorizer, Denial, DenialNotice, Denials
from proxy.acl.decision import FURTHER
from proxy.acl.index import AclIndex
from proxy.acl.model import AuthorizerMode, Operation, ResourceType
from proxy.acl.topic_ids import KnownTopics
from proxy.connection.authorization import RequestAuthorization
from proxy.connection.connection import Connection
from proxy.connection.interfaces import AuthorizedConnection
from proxy.connection.usage import Tally
from proxy.handlers.acls import Acls
from proxy.store import CachedAcls, Store
from proxy.wire.apis import APIS
from sasl.identity import Identity

log = logging.getLogger("proxy.denials")

MAX_NAME_LOGGED: Final = 128
"""Largest length of a name in the log, in characters: clients choose names."""


class DenialObserver(Protocol):
    """Recorder of denials as session events."""

    def denied(self, connection: Connection, notice: DenialNotice, now: float) -> None:
        """Record that a connection was denied something, or would have been."""


class AclService:
    """Authorization service for all connections of one worker; its event loop uses it."""

    def __init__(
        self,
        settings: config.Authorizer,
        store: Store,
        *,
        observer: Callable[[Connection], DenialObserver],
        usage: UsageLog | None = None,
    ) -> None:
        """Load the ACLs of `store`; `observer` returns a connection's observer; `usage` records
        uses; None to count no uses.

        Raises StoreError.
        """
        self._observer = observer
        self._usage = usage
        self._store = store
        self._super_users = frozenset(settings.super_users)
        self._brokers_make_topics = settings.auto_create_topics_enable
        self._acls = CachedAcls(
            store, allow_everyone_if_no_acl_found=settings.allow_everyone_if_no_acl_found
        )
        self._authorizer = Authorizer(self._acls.index, mode=settings.mode, report=self._report)
        self._denials = Denials()
        self._topics: KnownTopics = {}

    def admit(
        self, connection: AuthorizedConnection, identity: Identity
    ) -> RequestAuthorization | None:
        """Return the authorization stage of a connection from now on; None for a super user."""
        if self.is_super_user(identity):
            return None
        authority = self._authorizer.authority(identity.principals, connection.peer_host)
        admission = connection.authorization
        counted = None
        if self._usage is not None:
            counted = partial(self._used, connection, identity.principal)
        if admission is None:
            return RequestAuthorization(
                authority,
                self._topics,
                asks=partial(self._asks, connection),
                forget=connection.forget,
                brokers_make_topics=self._brokers_make_topics,
                counted=counted,
            )
        admission.rights_changed(authority, counted)
        return admission

    @property
    def records_uses(self) -> bool:
        """True to report the outcomes of administrative requests to the observer."""
        return self._usage is not None

    def _asks(self, connection: AuthorizedConnection) -> None:
        self._authorizer.on_behalf_of = connection

    def _used(self, connection: AuthorizedConnection, principal: str, tally: Tally) -> None:
        """Record the uses that a connection has counted."""
        assert self._usage is not None
        client_id = cast(Connection, connection).authentication.client_id or ""
        for code, name in tally.used:
            use = None
            if code != FURTHER[0]:
                operation, kind = Operation(code & 0xF).name, ResourceType(code >> 4).name
                use = Use(principal, client_id, connection.peer_host, operation, kind, name)
            self._usage.add(use, tally.count, tally.bytes, tally.first_at, tally.last_at)

    def read(self) -> None:
        """Read changed ACLs from the store; called in a thread.

        Raises StoreError: the last known ACLs stay in force.
        """
        self._acls.refresh_if_changed()

    def take_over(self) -> bool:
        """Put the ACLs that were read into effect; return whether connections must follow."""
        before, self._authorizer.index = self._authorizer.index, self._acls.index
        return before is not self._authorizer.index

    def acls(self) -> Acls:
        """Return the ACLs for the ACL APIs; used in a thread."""
        return Acls(store=self._store, current=self._current)

    def _current(self) -> AclIndex:
        self.read()
        return self._acls.index

    def is_super_user(self, identity: Identity) -> bool:
        """Return whether a client may do everything, whatever the ACLs are."""
        return not self._super_users.isdisjoint(identity.principals)

    def passes_unjudged(
        self, connection: AuthorizedConnection, identity: Identity, key: int
    ) -> None:
        """Report a request that `enforce` would refuse, also from super users: versions that ACLs
        cannot judge are offered to no client."""
        if self._authorizer.mode is AuthorizerMode.AUDIT:
            self._asks(connection)
            authority = self._authorizer.authority(identity.principals, connection.peer_host)
            authority.passes_unjudged(f"{APIS[key >> 16].name} v{key & 0xFFFF}")

    def replace_super_users(self, super_users: Iterable[str]) -> None:
        """Replace the super users; the caller informs connections."""
        self._super_users = frozenset(super_users)

    # Reports

    def _report(self, denial: Denial) -> None:
        now = monotonic()
        if (notice := self._denials.note(denial, now)) is not None:
            self._log(notice, now)

    def sweep(self) -> None:
        """Report the denials since the last call; called about once a second."""
        now = monotonic()
        for notice in self._denials.sweep(now):
            self._log(notice, now)

    def close(self) -> None:
        """Report the remaining denials."""
        now = monotonic()
        for notice in self._denials.rest(now):
            self._log(notice, now)

    def _log(self, notice: DenialNotice, now: float) -> None:
        log.info("%s", sentence(notice))
        connection = cast(Connection, notice.denial.on_behalf_of)
        if not notice.others and not connection.closed:
            self._observer(connection).denied(connection, notice, now)

    def collect(self, snapshot: Snapshot) -> None:
        """Add the decisions, the cache hits, and the ACLs that they are based on."""
        counts = self._authorizer.counts
        for result in ("allowed", "denied", "would_be_denied"):
            for code, number in enumerate(getattr(counts, result)):
                if number:
                    name = Operation(code).name
                    snapshot.count(registry.AUTHORIZER_DECISIONS, number, name, result)
        snapshot.count(registry.AUTHORIZER_CACHE_HITS, counts.cache_hits)
        snapshot.gauge(registry.ACLS, len(self._acls.index))
        snapshot.gauge(registry.STORE_VERSION, self._acls.index.version)


def sentence(notice: DenialNotice) -> str:
    """Return a denial as one line; names that clients chose are escaped and cut."""
    denial = notice.denial
    verb = "would be denied" if denial.would_be else "is denied"
    resource = f"{denial.resource_type.name} {_quoted(denial.name)}"
    if notice.others:
        resource = f"other resources, such as {resource}"
    why = "no ACL allows it" if denial.rule is None else f"by {_rule(denial)}"
    times = "" if notice.count == 1 else f", {notice.count} times"
    who = f"{_quoted(denial.principal)} at {denial.host}"
    if not (denial.judged or notice.others):
        return f"{who} {verb} {denial.name}: ACLs cannot judge this old version{times}"
    return f"{who} {verb} {denial.operation.name} on {resource}: {why}{times}"


def _rule(denial: Denial) -> str:
    rule = denial.rule
    assert rule is not None
    return (
        f"{rule.permission.name} {rule.operation.name} on {rule.pattern_type.name} "
        f"{_quoted(rule.name)} for {_quoted(rule.principal)} at {_quoted(rule.host)}"
    )


def _quoted(text: str) -> str:
    if len(text) > MAX_NAME_LOGGED:
        text = text[:MAX_NAME_LOGGED] + "…"
    return ascii(text)[1:-1]
