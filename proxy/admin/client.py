"""`AdminClient`: administration over Kafka's own protocol, of the proxy or of Kafka."""

import asyncio
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kio.schema.errors import ErrorCode

from proxy.acl.model import Acl, AclFilter
from proxy.admin import acl_messages, quota_messages
from proxy.admin.connection import AdminConnection
from proxy.admin.errors import (
    BrokerUnavailable,
    KafkaError,
    UnsupportedVersion,
    kafka_error,
)
from proxy.admin.login import authenticate
from proxy.admin.quota_changes import (
    ALTER_VERSIONS,
    AlterClientQuotasResult,
    QuotaChanges,
    alter_request,
    altered,
)
from proxy.admin.quota_messages import (
    ClientQuotaFilter,
    ClientQuotas,
    DescribeClientQuotasResult,
)
from proxy.admin.results import (
    CreateAclsResult,
    DeleteAclsResult,
    DescribeAclsResult,
    DescribedAcls,
    FilterResult,
)
from proxy.admin.security import Login
from proxy.errors import ConfigError
from proxy.quota.model import QuotaEntity
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
)
from proxy.wire.batch_describe import ACLS_BATCHED, MAX_FILTERS, QUOTAS_BATCHED

REQUEST_TIMEOUT_S: Final = 30.0
"""Default limit of one exchange with a broker in seconds: Kafka's `request.timeout.ms`."""
MAX_ITEMS_AT_ONCE: Final = 1_000
"""Number of ACLs or filters per request, or of requests between two checks of the session. Kafka
refuses more than 10,000 ACLs."""
REAUTHENTICATE_AT: Final = 0.85
"""Share of a session's lifetime after which it is renewed, as in Kafka's Java client."""
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:\s]+)):(?P<port>\d{1,5})"
)

T = TypeVar("T")


class AdminClient:
    """Client of one of the bootstrap servers; use it as `async with`, in one event loop.

    One call at a time is served; several tasks may share a client. A connection that broke
    is replaced at the next request, by that to another server if need be. A session that ends is
    renewed on its connection (KIP-368). Every wait ends: each exchange with a broker has
    `request_timeout_s`. A request that got no answer is not sent again: whether it was done is for
    the caller to find out. Raises AdminError.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        login: Login | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_id: str = "reauth-proxy-admin",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Connect to nothing yet. `ssl_context`: speak TLS. Raises ConfigError."""
        self._servers = parse_servers(bootstrap_servers)
        self._login = login
        self._ssl_context = ssl_context
        self._client_id = client_id
        self._timeout_s = request_timeout_s
        self._lock = asyncio.Lock()
        self._link: _Link | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. The client may be used again."""
        async with self._lock:
            await self._drop()

    # --- ACLs (KIP-140)

    async def describe_acls(
        self, filters: AclFilter | Iterable[AclFilter] | None = None
    ) -> DescribeAclsResult:
        """Describe what each filter finds; without a filter, all ACLs.

        One request where the broker has KIP-888, else one per filter, some of them on their way at
        the same time. A filter's error does not spoil the others.
        """
        if filters is None:
            filters = AclFilter()
        wanted = [filters] if isinstance(filters, AclFilter) else list(dict.fromkeys(filters))
        # Kafka closes the connection for what it could not have sent itself
        found = {one: error for one in wanted if (error := acl_messages.unknown(one)) is not None}
        rest = [one for one in wanted if one not in found]
        while rest:
            async with self._lock:
                link = await self._ready()
                version = link.version(DESCRIBE_ACLS, acl_messages.DESCRIBE_VERSIONS)
                most = MAX_FILTERS if version >= ACLS_BATCHED else MAX_ITEMS_AT_ONCE
                some, rest = rest[:most], rest[most:]
                found |= await link.describe_acls(version, some)
        return DescribeAclsResult({one: found[one] for one in wanted})

    async def create_acls(self, acls: Iterable[Acl]) -> CreateAclsResult:
        """Create ACLs, a thousand per request. One that exists is no error."""
        errors: dict[Acl, KafkaError | None] = {}
        for some in _batches(dict.fromkeys(acls)):
            async with self._lock:
                link = await self._ready()
                version = link.version(CREATE_ACLS, acl_messages.VERSIONS)
                response = await link.ask(acl_messages.create_request(version, some))
                results = await link.one_for_each(some, response.results)
            for acl, result in results:
                errors[acl] = kafka_error(result.error_code, result.error_message)
        return CreateAclsResult(errors)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> DeleteAclsResult:
        """Delete what matches any of the filters, a thousand of them per request."""
        found: dict[AclFilter, FilterResult] = {}
        for some in _batches(dict.fromkeys(filters)):
            async with self._lock:
                link = await self._ready()
                version = link.version(DELETE_ACLS, acl_messages.VERSIONS)
                response = await link.ask(acl_messages.delete_request(version, some))
                results = await link.one_for_each(some, response.filter_results)
            for wanted, result in results:
                found[wanted] = acl_messages.filter_result(version, result)
        return DeleteAclsResult(found)

    # --- client quotas (KIP-546)

    async def describe_client_quotas(
        self, filters: ClientQuotaFilter | Iterable[ClientQuotaFilter] | None = None
    ) -> DescribeClientQuotasResult:
        """Describe the quotas that each filter finds; without a filter, all.

        One request where the broker has KIP-888 (two, if some filters are strict and others are
        not), else one per filter, some of them on their way at the same time. A filter's error does
        not spoil the others.
        """
        if filters is None:
            filters = ClientQuotaFilter()
        wanted = [filters] if isinstance(filters, ClientQuotaFilter) else dict.fromkeys(filters)
        found: dict[ClientQuotaFilter, ClientQuotas] = {}
        for strict in (False, True):
            rest = [one for one in wanted if one.strict is strict]
            while rest:
                async with self._lock:
                    link = await self._ready()
                    ours = quota_messages.DESCRIBE_VERSIONS
                    version = link.version(DESCRIBE_CLIENT_QUOTAS, ours)
                    most = MAX_FILTERS if version >= QUOTAS_BATCHED else MAX_ITEMS_AT_ONCE
                    some, rest = rest[:most], rest[most:]
                    found |= await link.describe_client_quotas(version, some, strict=strict)
        return DescribeClientQuotasResult({one: found[one] for one in wanted})

    async def alter_client_quotas(
        self, changes: QuotaChanges, *, validate_only: bool = False
    ) -> AlterClientQuotasResult:
        """Set quotas and, with None, remove them, a thousand entities per request."""
        results: dict[QuotaEntity, KafkaError | None] = {}
        for some in _batches(changes):
            async with self._lock:
                link = await self._ready()
                version = link.version(ALTER_CLIENT_QUOTAS, ALTER_VERSIONS)
                response = await link.ask(
                    alter_request(version, some, changes, validate_only=validate_only)
                )
            results |= altered(some, response)
        return AlterClientQuotasResult(results)

    # --- connections

    async def _ready(self) -> "_Link":
        """Return a connection whose session goes on for a while."""
        link = self._link
        if link is None or not link.connection.is_open:
            return await self._reconnect()
        now = asyncio.get_running_loop().time()
        if link.renew_at is None or now < link.renew_at:
            return link
        try:
            await self._authenticate(link)
        except KafkaError as error:
            if error.code != ErrorCode.illegal_sasl_state:
                await self._drop()
                raise
            # a session of seconds: less than one has passed since the last authentication
            return await self._reconnect()
        except BaseException:
            await self._drop()
            raise
        return link

    async def _reconnect(self) -> "_Link":
        await self._drop()
        problems = []
        for host, port in self._servers:
            try:
                link = await self._connect(host, port)
            except BrokerUnavailable as error:
                problems.append(str(error))
            else:
                self._begin_with((host, port))
                return link
        raise BrokerUnavailable("; ".join(problems))

    def _begin_with(self, server: tuple[str, int]) -> None:
        """The next time; those that were silent would be waited for again."""
        self._servers = (server, *(one for one in self._servers if one != server))

    async def _connect(self, host: str, port: int) -> "_Link":
        connection = await AdminConnection.open(
            host,
            port,
            tls=self._ssl_context,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
        )
        try:
            link = _Link(connection, await connection.api_versions())
            await self._authenticate(link)
        except BaseException:
            await connection.close()
            raise
        self._link = link
        return link

    async def _authenticate(self, link: "_Link") -> None:
        if self._login is None:
            link.connection.go_on_without_login()
            return
        began = asyncio.get_running_loop().time()
        session = await authenticate(link.connection, self._login, link.offered)
        lasts_s = session.session_lifetime_ms / 1000
        link.renew_at = began + lasts_s * REAUTHENTICATE_AT if lasts_s else None

    async def _drop(self) -> None:
        if self._link is not None:
            await self._link.connection.close()
            self._link = None


@dataclass(slots=True)
class _Link:
    """Open connection, and what is known of the server at its other end."""

    connection: AdminConnection
    offered: dict[int, tuple[int, int]]
    """The lowest and highest version that the server offers, by API key."""
    renew_at: float | None = None
    """Time of the event loop, in seconds, when the session must be renewed; None: never."""

    def version(self, api_key: int, ours: tuple[int, int]) -> int:
        """Return the highest version of an API that both sides know."""
        low, high = self.offered.get(api_key, (0, -1))
        version = min(high, ours[1])
        if version < max(low, ours[0]):
            raise UnsupportedVersion(f"{self.connection.address} does not offer API {api_key}")
        return version

    async def ask(self, request: Any) -> Any:
        """Send a request and return the response."""
        return await self.connection.request(request)

    async def describe_acls(
        self, version: int, filters: Sequence[AclFilter]
    ) -> dict[AclFilter, DescribedAcls]:
        """Ask in this version what each filter finds; filters are there once."""
        if version >= ACLS_BATCHED:
            response = await self.ask(acl_messages.batch_request(filters))
            results = await self.one_for_each(filters, response.filter_results)
            return {wanted: acl_messages.described(version, one) for wanted, one in results}
        found: dict[AclFilter, DescribedAcls] = {}
        queries: dict[AclFilter, Any] = {}
        for wanted in filters:
            try:
                queries[wanted] = acl_messages.describe_request(version, wanted)
            except UnsupportedVersion as error:
                found[wanted] = DescribedAcls(error=error)
        responses = await self.connection.request_each(list(queries.values()))
        for wanted, one in zip(queries, responses, strict=True):
            found[wanted] = acl_messages.described(version, one)
        return found

    async def describe_client_quotas(
        self, version: int, filters: Sequence[ClientQuotaFilter], *, strict: bool
    ) -> dict[ClientQuotaFilter, ClientQuotas]:
        """Ask in this version what each filter finds; filters are there once."""
        if version >= QUOTAS_BATCHED:
            response = await self.ask(quota_messages.batch_request(filters, strict=strict))
            results = await self.one_for_each(filters, response.filter_results)
        else:
            requests = [quota_messages.describe_request(version, one) for one in filters]
            results = list(zip(filters, await self.connection.request_each(requests), strict=True))
        return {wanted: quota_messages.described(one) for wanted, one in results}

    async def one_for_each(self, items: Sequence[T], results: Sequence[Any]) -> list[tuple[T, Any]]:
        """Pair items with their results."""
        if len(items) != len(results):
            await self.connection.close()
            raise BrokerUnavailable(
                f"{self.connection.address}: {len(results)} results for {len(items)} items"
            )
        return list(zip(items, results, strict=True))


def parse_servers(text: str | Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Read `host:port,host:port`, or a list of such. Raises ConfigError."""
    parts = text.split(",") if isinstance(text, str) else text
    servers = []
    for part in parts:
        match = _ADDRESS.fullmatch(part.strip())
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise ConfigError("bootstrap.servers", f"{part.strip()!r} is not HOST:PORT")
        servers.append((match["v6"] or match["host"], int(match["port"])))
    if not servers:
        raise ConfigError("bootstrap.servers", "names no server")
    return tuple(servers)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = list(items)
    for start in range(0, len(rest), MAX_ITEMS_AT_ONCE):
        yield rest[start : start + MAX_ITEMS_AT_ONCE]
