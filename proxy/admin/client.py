"""`AdminClient`, the client for administration over Kafka's own protocol."""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from proxy.acl.model import Acl, AclFilter
from proxy.admin import acl_messages, quota_messages
from proxy.admin.acl_messages import (
    CreateAclsResult,
    DeleteAclsResult,
    DescribeAclsResult,
    DescribedAcls,
)
from proxy.admin.connection import AdminConnection
from proxy.admin.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    KafkaError,
    UnsupportedVersion,
    kafka_error,
)
from proxy.admin.properties import Login, OAuthBearer, Plain, Scram
from proxy.admin.quota_messages import (
    ALTER_VERSIONS,
    AlterClientQuotasResult,
    ClientQuotaFilter,
    ClientQuotas,
    DescribeClientQuotasResult,
    QuotaChanges,
    alter_request,
    altered,
)
from proxy.brokers.own_requests import log_in
from proxy.errors import ConfigError
from proxy.net.dialler import Dialler
from proxy.quota.model import QuotaEntity
from proxy.wire import messages
from proxy.wire.apis import (
    ACLS_BATCHED,
    ALTER_CLIENT_QUOTAS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    MAX_FILTERS,
    QUOTAS_BATCHED,
    SASL_AUTHENTICATE,
)
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import Message
from sasl.login import (
    ClientExchange,
    LoggedIn,
    LoginError,
    OAuthBearerClient,
    PlainClient,
    ScramClient,
)

REQUEST_TIMEOUT_S: Final = 30.0
"""Default limit of one exchange with a broker in seconds: Kafka's `request.timeout.ms`."""
MAX_ITEMS_AT_ONCE: Final = 1_000
"""Maximum number of ACLs or filters per request, and of requests between two checks of the session.
Kafka refuses more than 10,000 ACLs."""
REAUTHENTICATE_AT: Final = 0.85
"""Share of a session's lifetime after which it is renewed, as in Kafka's Java client."""
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:\s]+)):(?P<port>\d{1,5})"
)

M = TypeVar("M", bound=Message)
T = TypeVar("T")
R = TypeVar("R")


class AdminClient:
    """Client of one of the bootstrap servers; use it as `async with`, in one event loop.

    Several tasks may share a client, which carries out one call at a time. A broken connection is
    replaced at the next request, if need be by one to another server. A session is renewed on its
    connection before it ends (KIP-368). Each exchange with a broker is limited to
    `request_timeout_s`. A request without a response is not sent again: whether it was carried out
    is for the caller to find out. Raises AdminError.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        login: Login | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_id: str = "reauth-proxy-admin",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        dialler: Dialler | None = None,
    ) -> None:
        """Create a client that is not connected yet. Raises ConfigError.

        `bootstrap_servers` are `HOST:PORT`, several separated by commas, or a list. Without `login`
        the client does not authenticate by SASL; without `ssl_context` it connects without TLS;
        without `dialler` it shares lookups of names with nothing else.
        """
        self._servers = parse_servers(bootstrap_servers)
        self._login = login
        self._ssl_context = ssl_context
        self._client_id = client_id
        self._timeout_s = request_timeout_s
        self._dialler = dialler or Dialler()
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
        """Describe the ACLs that each filter finds; without a filter, all ACLs.

        A broker with KIP-888 gets one request, any other one per filter, several at a time. Each
        filter has its own result or error.
        """
        if filters is None:
            filters = AclFilter()
        wanted = [filters] if isinstance(filters, AclFilter) else list(dict.fromkeys(filters))
        # Kafka closes the connection when a filter has an UNKNOWN part
        found = {
            one: error for one in wanted if (error := acl_messages.invalid_filter(one)) is not None
        }
        rest = [one for one in wanted if one not in found]
        while rest:
            async with self._lock:
                link = await self._ready()
                version = link.version(DESCRIBE_ACLS, acl_messages.DESCRIBE_VERSIONS)
                count = MAX_FILTERS if version >= ACLS_BATCHED else MAX_ITEMS_AT_ONCE
                some, rest = rest[:count], rest[count:]
                found |= await link.describe_acls(version, some)
        return DescribeAclsResult({one: found[one] for one in wanted})

    async def create_acls(self, acls: Iterable[Acl]) -> CreateAclsResult:
        """Create ACLs, a thousand per request. An ACL that exists already succeeds."""
        pairs = await self._change(
            CREATE_ACLS,
            acls,
            acl_messages.create_request,
            messages.CreateAclsResponse,
            lambda response: response.results,
        )
        errors = {acl: kafka_error(one.error_code, one.error_message) for acl, one in pairs}
        return CreateAclsResult(errors)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> DeleteAclsResult:
        """Delete the ACLs that any of the filters matches, a thousand filters per request."""
        pairs = await self._change(
            DELETE_ACLS,
            filters,
            acl_messages.delete_request,
            messages.DeleteAclsResponse,
            lambda response: response.filter_results,
        )
        return DeleteAclsResult({one: acl_messages.filter_result(found) for one, found in pairs})

    async def _change(
        self,
        api_key: int,
        items: Iterable[T],
        request_of: Callable[[int, list[T]], Message],
        response_type: type[M],
        results_of: Callable[[M], Sequence[R]],
    ) -> list[tuple[T, R]]:
        """Request changes of ACLs, a thousand items at a time; return each item and its result."""
        pairs: list[tuple[T, R]] = []
        for some in _batches(dict.fromkeys(items)):
            async with self._lock:
                link = await self._ready()
                version = link.version(api_key, acl_messages.VERSIONS)
                request = request_of(version, some)
                response = await link.connection.request(request, version, response_type)
                pairs += await link.one_for_each(some, results_of(response))
        return pairs

    # --- client quotas (KIP-546)

    async def describe_client_quotas(
        self, filters: ClientQuotaFilter | Iterable[ClientQuotaFilter] | None = None
    ) -> DescribeClientQuotasResult:
        """Describe the quotas that each filter finds; without a filter, all.

        A broker with KIP-888 gets one request (two if some filters are strict and others are not),
        any other one per filter, several at a time. Each filter has its own result or error.
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
                    supported = quota_messages.DESCRIBE_VERSIONS
                    version = link.version(DESCRIBE_CLIENT_QUOTAS, supported)
                    count = MAX_FILTERS if version >= QUOTAS_BATCHED else MAX_ITEMS_AT_ONCE
                    some, rest = rest[:count], rest[count:]
                    found |= await link.describe_client_quotas(version, some, strict=strict)
        return DescribeClientQuotasResult({one: found[one] for one in wanted})

    async def alter_client_quotas(self, changes: QuotaChanges) -> AlterClientQuotasResult:
        """Set quotas, and remove those with the value None; a thousand entities per request."""
        results: dict[QuotaEntity, KafkaError | None] = {}
        for some in _batches(changes):
            async with self._lock:
                link = await self._ready()
                version = link.version(ALTER_CLIENT_QUOTAS, ALTER_VERSIONS)
                response = await link.connection.request(
                    alter_request(some, changes), version, messages.AlterClientQuotasResponse
                )
            results |= altered(some, response)
        return AlterClientQuotasResult(results)

    # --- connections

    async def _ready(self) -> "_Link":
        """Return a connection whose session does not end soon."""
        link = self._link
        if link is None or not link.connection.is_open:
            return await self._reconnect()
        now = asyncio.get_running_loop().time()
        if link.renew_at is None or now < link.renew_at:
            return link
        try:
            await self._authenticate(link)
        except KafkaError as error:
            if error.code != ErrorCode.ILLEGAL_SASL_STATE:
                await self._drop()
                raise
            # Kafka refuses a re-authentication within a second of the last authentication
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
                # The others may time out at the next connection, too
                rest = (one for one in self._servers if one != (host, port))
                self._servers = ((host, port), *rest)
                return link
        raise BrokerUnavailable("; ".join(problems))

    async def _connect(self, host: str, port: int) -> "_Link":
        connection = await AdminConnection.open(
            host,
            port,
            tls=self._ssl_context,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
            dialler=self._dialler,
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
            link.connection.expect_login_error()
            return
        began = asyncio.get_running_loop().time()
        session = await authenticate(link.connection, self._login, link.offered)
        lifetime_s = session.session_lifetime_ms / 1000
        link.renew_at = began + lifetime_s * REAUTHENTICATE_AT if lifetime_s else None

    async def _drop(self) -> None:
        if self._link is not None:
            await self._link.connection.close()
            self._link = None


@dataclass(slots=True)
class _Link:
    """Open connection, with the versions that the server offers."""

    connection: AdminConnection
    offered: dict[int, tuple[int, int]]
    """Lowest and highest version that the server offers, by API key."""
    renew_at: float | None = None
    """Time of the event loop, in seconds, when the session must be renewed; None if it has no
    end."""

    def version(self, api_key: int, supported: tuple[int, int]) -> int:
        """Return the highest version of an API that the server offers and `supported` includes.

        Raises UnsupportedVersion.
        """
        low, high = self.offered.get(api_key, (0, -1))
        version = min(high, supported[1])
        if version < max(low, supported[0]):
            raise UnsupportedVersion(
                f"{self.connection.address} offers no supported version of API {api_key}"
            )
        return version

    async def describe_acls(
        self, version: int, filters: Sequence[AclFilter]
    ) -> dict[AclFilter, DescribedAcls]:
        """Describe the matches of each filter, in this version. No filter is given twice."""
        if version >= ACLS_BATCHED:
            response = await self.connection.request(
                acl_messages.batch_request(filters), version, messages.DescribeAclsResponse
            )
            results = await self.one_for_each(filters, response.filter_results)
            return {wanted: acl_messages.described(one) for wanted, one in results}
        found: dict[AclFilter, DescribedAcls] = {}
        queries: dict[AclFilter, messages.DescribeAclsRequest] = {}
        for wanted in filters:
            try:
                queries[wanted] = acl_messages.describe_request(version, wanted)
            except UnsupportedVersion as error:
                found[wanted] = DescribedAcls(error=error)
        responses = await self.connection.request_each(
            list(queries.values()), version, messages.DescribeAclsResponse
        )
        for wanted, one in zip(queries, responses, strict=True):
            found[wanted] = acl_messages.described(one)
        return found

    async def describe_client_quotas(
        self, version: int, filters: Sequence[ClientQuotaFilter], *, strict: bool
    ) -> dict[ClientQuotaFilter, ClientQuotas]:
        """Describe the matches of each filter, in this version. No filter is given twice."""
        if version >= QUOTAS_BATCHED:
            response = await self.connection.request(
                quota_messages.batch_request(filters, strict=strict),
                version,
                messages.DescribeClientQuotasResponse,
            )
            results = await self.one_for_each(filters, response.filter_results)
            return {wanted: quota_messages.described(one) for wanted, one in results}
        requests = [quota_messages.describe_request(one) for one in filters]
        responses = await self.connection.request_each(
            requests, version, messages.DescribeClientQuotasResponse
        )
        pairs = zip(filters, responses, strict=True)
        return {wanted: quota_messages.described(one) for wanted, one in pairs}

    async def one_for_each(self, items: Sequence[T], results: Sequence[R]) -> list[tuple[T, R]]:
        """Pair items with their results. Raises BrokerUnavailable if the numbers differ."""
        if len(items) != len(results):
            await self.connection.close()
            raise BrokerUnavailable(
                f"{self.connection.address}: the response has {len(results)} results for"
                f" {len(items)} items"
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
        raise ConfigError("bootstrap.servers", "must name a server")
    return tuple(servers)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = list(items)
    for start in range(0, len(rest), MAX_ITEMS_AT_ONCE):
        yield rest[start : start + MAX_ITEMS_AT_ONCE]


async def authenticate(
    connection: AdminConnection, login: Login, offered: Mapping[int, tuple[int, int]]
) -> LoggedIn:
    """Authenticate, or re-authenticate. Raises KafkaError if it fails."""
    _, version = offered.get(SASL_AUTHENTICATE, (0, -1))
    if version < 0:
        raise UnsupportedVersion(f"{connection.address} does not support SaslAuthenticate")
    try:
        host = connection.address.rpartition(":")[0]
        return await log_in(await exchange_of(login, host), version, connection.exchange)
    except LoginError as error:
        known = kafka_error(error.error_code, error.reason)
        raise (known or AuthenticationFailed(error.reason)) from error


async def exchange_of(login: Login, host: str = "") -> ClientExchange:
    """Begin a login at a broker's host.

    Raises LoginError, and ConfigError for an unreadable token file.
    """
    match login:
        case Plain():
            return PlainClient(login.username, login.password)
        case Scram():
            return ScramClient(login.mechanism, login.username, login.password)
        case OAuthBearer():
            return OAuthBearerClient(login.current())
        case identity:
            return await identity.exchange(host)
