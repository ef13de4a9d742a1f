"""Store whose ACLs and quotas the brokers keep: reads use a mirror, writes change both.

The mirror is a file on this host, which `follower` keeps up to date. SCRAM verifiers and the
deployment's secrets are only in the file, because brokers never reveal theirs (KIP-554). Each
change has its own connection and event loop, because changes are rare and are made in a thread
outside the worker's event loop.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, Generic, TypeVar

from proxy import config
from proxy.acl.model import Acl, AclFilter, exactly
from proxy.acl.validation import acl_refusal
from proxy.admin import AdminClient, AdminError, FilterResult, KafkaError
from proxy.brokers.access import Access
from proxy.errors import ProxyError
from proxy.quota.model import Changes
from proxy.store.interface import StoreError, StoreRefused, StoreStart
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.wire.error_codes import ErrorCode
from proxy.wire.request import CLIENT_ID
from sasl.login import LoginError

log = logging.getLogger(__name__)

CHANGE_TIMEOUT: Final = 30.0
"""Limit of a whole change in seconds, the default of Kafka's `request.timeout.ms`."""
_REFUSED: Final = "The brokers refused the change"
_PARTLY_REFUSED: Final = "The brokers refused a part of the change"
_NOT_KNOWN: Final = "It is not known whether the brokers made the change, or a part of it"

T = TypeVar("T")


class Administration:
    """Client of the brokers that is replaced when the proxy's certificate changes.

    The client is kept because it first tries the server that answered last.
    """

    def __init__(self, upstream: config.Upstream, access: Access) -> None:
        self._upstream = upstream
        self._access = access
        self._context = access.context
        self._client = administrator(upstream, access)

    async def client(self) -> AdminClient:
        """Return a client that uses the current certificate."""
        if self._access.context is not self._context:
            await self.close()
            self._context = self._access.context
            self._client = administrator(self._upstream, self._access)
        return self._client

    async def close(self) -> None:
        """Close the client's connection. The next request opens another one."""
        await self._client.close()


def administrator(upstream: config.Upstream, access: Access) -> AdminClient:
    """Return a client of the brokers that logs in as the proxy."""
    return AdminClient(
        [str(server) for server in upstream.bootstrap_servers],
        login=access.identity,
        ssl_context=access.context,
        client_id=CLIENT_ID,
        request_timeout_s=access.timeout_s,
        dialler=access.dialler,
    )


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Result of a change by the brokers."""

    items: Sequence[T]
    """Changed items; for deletions, the ACLs that each filter deleted."""
    refusal: KafkaError | None = None
    """Error of the first refused item; None if all succeeded."""
    at: float = field(default_factory=monotonic)
    """Time of the brokers' response in monotonic seconds."""

    def raise_refusal(self) -> None:
        """Raise StoreRefused if an item was refused."""
        if self.refusal is not None:
            raise _refused(self.refusal, _PARTLY_REFUSED if any(self.items) else _REFUSED)

    @classmethod
    def of(cls, outcomes: Mapping[T, KafkaError | None]) -> "Done[T]":
        """Return the result for items with their errors. None stands for success."""
        refusals = [error for error in outcomes.values() if error is not None]
        return cls(
            [item for item, error in outcomes.items() if error is None],
            refusals[0] if refusals else None,
        )


def reason_of(error: ProxyError) -> str:
    """Return the reason for an error without the broker's message, which might repeat
    credentials."""
    if isinstance(error.__cause__, LoginError):
        return f"the proxy's login failed: {error.__cause__.reason}"
    if not isinstance(error, KafkaError):
        return str(error)
    if not isinstance(error.code, ErrorCode):
        return f"error {error.code}"
    name = error.code.name.upper()
    return f"{name}: {_MEANINGS[error.code]}" if error.code in _MEANINGS else name


_MEANINGS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the proxy's principal lacks permissions on the"
    " cluster: allow it Describe and DescribeConfigs, for changes also Alter and AlterConfigs",
    ErrorCode.SECURITY_DISABLED: "the brokers have no authorizer, so no ACLs",
    ErrorCode.UNSUPPORTED_VERSION: "the brokers are too old",
}


def _refused(error: KafkaError, outcome: str) -> StoreRefused:
    code = error.code if isinstance(error.code, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
    return StoreRefused(code, f"{outcome}: {reason_of(error)}")


def _unanswered(error: AdminError) -> StoreRefused:
    """Log the reason for the operator. It may contain addresses and files, which clients must not
    see."""
    log.warning("the brokers did not answer a change: %s", reason_of(error))
    return StoreRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"{_NOT_KNOWN}.")


class BrokerStore(SqliteMirror):
    """Store whose ACLs and quotas the brokers keep, a `proxy.store.Store`.

    If the brokers reject a part of a change, the rest is mirrored.
    """

    def __init__(
        self, path: Path, brokers: Administration, start: StoreStart | None = None
    ) -> None:
        """`path` is the file of the mirror; with `start`, it must be the store of that start.

        `brokers` is used in the event loops of the changes. Do not use it in any other.
        """
        super().__init__(path, start)
        self._brokers = brokers
        self._lock = threading.Lock()

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Add ACLs at the brokers and in the mirror; existing ones count as added.

        Raises StoreRefused.
        """
        done = Done.of(self._change(lambda admin: admin.create_acls(acls)).values())
        with _logged():
            self.note_acls(done.at, done.items, created=True)
            super().create_acls(done.items)
        done.raise_refusal()
        return self.acl_version()

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete the ACLs that any filter matches, at the brokers and in the mirror.

        Raises StoreRefused.
        """
        results = self._change(lambda admin: admin.delete_acls(filters)).values()
        done = _deleted([results[wanted] for wanted in filters])
        deleted = dict.fromkeys(acl for found in done.items for acl in found)
        with _logged():
            self.note_acls(done.at, deleted, created=False)
            super().delete_acls([exactly(acl) for acl in deleted])
        done.raise_refusal()
        return tuple(done.items)

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove quotas at the brokers and in the mirror. Raises StoreRefused."""
        done = Done.of(self._change(lambda admin: admin.alter_client_quotas(changes)).values())
        altered = {entity: changes[entity] for entity in done.items}
        with _logged():
            self.note_quotas(done.at, altered)
            super().alter_quotas(altered)
        done.raise_refusal()

    def _change(self, change: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Carry out one change at a time."""

        async def run() -> T:
            async with asyncio.timeout(CHANGE_TIMEOUT), await self._brokers.client() as admin:
                return await change(admin)

        try:
            with self._lock:
                return asyncio.run(run())
        except KafkaError as error:
            if isinstance(error.__cause__, LoginError):
                raise _unanswered(error) from None
            raise _refused(error, _REFUSED) from None
        except AdminError as error:
            raise _unanswered(error) from None
        except TimeoutError:
            raise StoreRefused(ErrorCode.REQUEST_TIMED_OUT, f"{_NOT_KNOWN}.") from None


def _deleted(results: Sequence[FilterResult]) -> Done[tuple[Acl, ...]]:
    """Return the ACLs that each filter has deleted."""
    refusals = [
        error
        for result in results
        for error in (result.error, *(match.error for match in result.matches))
        if error is not None
    ]
    # ACLs that this version does not know were never mirrored
    deleted = [
        tuple(
            match.acl
            for match in result.matches
            if match.error is None and acl_refusal(match.acl) is None
        )
        for result in results
    ]
    return Done(deleted, refusals[0] if refusals else None)


@contextmanager
def _logged() -> Iterator[None]:
    """Log an error of the mirror instead of raising it: the brokers made the change, and the
    follower will mirror it."""
    try:
        yield
    except StoreError as error:
        log.warning("a change that the brokers made is not in the mirror yet: %s", error)
