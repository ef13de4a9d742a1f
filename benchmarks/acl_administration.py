"""Cost of administering many ACLs, and its effect on relayed requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.load import Generator
from benchmarks.targets import USER, Credentials, Target
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.admin import AdminClient, Scram

ACLS = 100_000
"""Number of ACLs in the store."""
CREATED, PER_REQUEST = 10_000, 100
"""Number of ACLs that are created, and in each request."""
_CONNECTIONS = 4
"""Number of connections that are relayed meanwhile."""
_START_SECONDS = 1.0
"""Seconds after which the relay runs evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Administered:
    """Results of one piece of administration beside the relay."""

    seconds: float
    """The duration of the administration."""
    p99_us: float
    """The 99th percentile of the latency of requests that were relayed meanwhile."""
    max_us: float
    """The largest of their latencies."""


def administration(
    generator: Generator, target: Target, credentials: Credentials
) -> dict[str, Administered]:
    """Create 10,000 ACLs beside 100,000, and describe them all, while requests are relayed."""
    works: dict[str, Callable[[AdminClient], Awaitable[None]]] = {
        "nothing": _nothing,
        f"create {CREATED:,} by {PER_REQUEST}": _create,
        f"describe {ACLS:,}": _describe,
    }
    return {
        name: _beside_the_relay(generator, target, credentials, work)
        for name, work in works.items()
    }


def _beside_the_relay(
    generator: Generator,
    target: Target,
    credentials: Credentials,
    work: Callable[[AdminClient], Awaitable[None]],
) -> Administered:
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(asyncio.run, _timed(target, credentials, work))
        measured = generator.measure(
            target,
            "relay",
            connections=_CONNECTIONS,
            seconds=_START_SECONDS + 5.0,
            mechanism=target.mechanism,
            options=("--in-flight", "1", "--payload", "100"),
        )
        seconds = running.result()
    return Administered(
        seconds=seconds,
        p99_us=measured.report["p99_us"],
        max_us=measured.report["max_us"],
    )


async def _timed(
    target: Target, credentials: Credentials, work: Callable[[AdminClient], Awaitable[None]]
) -> float:
    login = Scram(username=USER, password=credentials.password_file.read_text().strip())
    async with AdminClient(str(target.address), login=login) as client:
        await client.describe_acls(AclFilter(name="nothing of this name"))
        await asyncio.sleep(_START_SECONDS)
        started = time.monotonic()
        await work(client)
        return time.monotonic() - started


async def _nothing(_client: AdminClient) -> None:
    """Do nothing, for comparison."""


async def _create(client: AdminClient) -> None:
    for first in range(0, CREATED, PER_REQUEST):
        created = await client.create_acls(
            [_acl(number) for number in range(first, first + PER_REQUEST)]
        )
        created.all()


async def _describe(client: AdminClient) -> None:
    described = await client.describe_acls(AclFilter())
    assert len(described.values()) >= ACLS


def _acl(number: int) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name=f"created-{number}",
        principal=f"User:{number}",
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )
