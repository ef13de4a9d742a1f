"""Accuracy of quotas: bytes that pass in thirty seconds of clients that ask for ten times as many.

    python -m benchmarks.quota_accuracy --svg docs/quota-accuracy.svg
    python -m benchmarks.quota_accuracy --workers 1 --connections 1 --fetch

Five quota groups (`tests.support.quota_callbacks.groups`) have ten connections each, over two
workers. Each group has a quota of its own, and its connections together ask for ten times as much,
with one request in flight each. The broker counts the bytes: of Produce requests, or of its Fetch
responses.
One line per group has the quota, the bytes per second, and the deviation; the exit status is 1 if
one deviates by more than 3 %.
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.programs import Address, free_address, running
from proxy.admin.client import authenticate
from proxy.admin.connection import AdminConnection
from proxy.admin.properties import Scram
from proxy.net.dialler import Dialler
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store import open_store
from proxy.wire.apis import API_VERSIONS, FETCH, PRODUCE
from proxy.wire.codec import encode
from proxy.wire.messages import (
    ApiVersionsResponse,
    DescribeConfigsResponse,
    FetchRequest,
    FetchResponse,
    Message,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from sasl.credentials import ScramCredential, ScramMechanism
from sasl.salts import new_salt

QUOTAS = (50_000, 100_000, 150_000, 200_000, 250_000)
"""Quota of each group in bytes per second."""
ASKED = 10
"""Multiple of its quota that a group asks for."""
MESSAGE = 2_000
"""Size in bytes of a request or response that counts."""
MAX_OFF = 0.03
"""Largest deviation from a quota, as a share of it."""
_PASSWORD = "of-the-bench"
_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Broker:
    """Broker that answers Produce and Fetch at once, and records their sizes."""

    passed: list[tuple[float, str, int]] = field(default_factory=list)
    """The time in monotonic seconds, group and size in bytes of each."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                group = frame[10 : 10 + length].decode()
                body = self._answer(key, version)
                writer.write(struct.pack(">ii", len(body) + 4, correlation_id) + body)
                if key in (PRODUCE, FETCH):
                    counted = size if key == PRODUCE else len(body) + 4
                    self.passed.append((time.monotonic(), group, counted))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, key: int, version: int) -> bytes:
        match key:
            case 0:  # no topics, no throttling
                return b"\0\x01\0\0\0\0\0"
            case 1:  # no error, no session, no topics; the proxy ignores the rest
                return b"\0" + b"\0\0\0\0\0\0\0\0\0\0\x01\0".ljust(MESSAGE - 5, b"\0")
            case 3:  # the proxy requests partition leaders for the callback: no topics
                return b"\0" + encode(MetadataResponse(), version)
            case 18:
                return _api_versions(version)
            case 32:  # the proxy asks for the broker's id: not configured
                return b"\0" + encode(DescribeConfigsResponse(), version)
            case _:
                raise AssertionError(f"API {key} is not asked for")


def _api_versions(version: int) -> bytes:
    offered = {PRODUCE: (9, 9), FETCH: (12, 12), API_VERSIONS: (0, 4)}
    apis = tuple(
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in offered.items()
    )
    return encode(ApiVersionsResponse(api_keys=apis), version)


def _request(fetch: bool) -> tuple[Message, int, type[Message]]:
    """Return the request that is sent all the time, its version and its response; its records are
    not valid."""
    if fetch:
        return FetchRequest(max_wait_ms=1000, min_bytes=1), 12, FetchResponse
    partition = ProduceRequest.PartitionProduceData(index=0, records=b"r" * (MESSAGE - 60))
    topic = ProduceRequest.TopicProduceData(name="bench", partition_data=(partition,))
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=(topic,))
    return request, 9, ProduceResponse


def group_name(number: int) -> str:
    """Return a group's name, which is also the client id of its connections."""
    return f"group-{number}"


def prepare(directory: Path, broker: Address, workers: int, fetch: bool) -> tuple[Path, Address]:
    """Write the proxy's configuration and its store."""
    address = free_address()
    key = QuotaKey.CONSUMER_BYTE_RATE if fetch else QuotaKey.PRODUCER_BYTE_RATE
    store = open_store(f"sqlite:{directory / 'state.db'}")
    store.alter_quotas(
        {
            QuotaEntity(user=group_name(number)): {key: float(quota)}
            for number, quota in enumerate(QUOTAS)
        }
    )
    mechanism = ScramMechanism.SCRAM_SHA_256
    store.alter_credentials(
        upsert={
            (f"group-{number}-{half}", mechanism): ScramCredential.from_password(
                mechanism, _PASSWORD, salt=new_salt(), iterations=4_096
            )
            for number in range(len(QUOTAS))
            for half in range(2)
        }
    )
    store.close()
    config = directory / "proxy.yaml"
    config.write_text(
        json.dumps(
            {
                "upstream": {"bootstrap.servers": str(broker)},
                "listeners": [
                    {
                        "name": "clients",
                        "address": str(address),
                        "routing": "sidecar",
                        "sasl.enabled.mechanisms": [mechanism.value],
                    }
                ],
                "quotas": {
                    "mode": "enforce",
                    "client.quota.callback.class": (
                        "tests.support.quota_callbacks.groups:QuotaGroups"
                    ),
                    "client.quota.callback.configs": {
                        "groups": {
                            group_name(number): [f"{group_name(number)}-*"]
                            for number in range(len(QUOTAS))
                        }
                    },
                },
                "workers": workers,
                "shutdown.drain.ms": 100,
            }
        )
    )
    return config, address


async def _log_in(address: Address, group: int, number: int) -> AdminConnection:
    connection = await AdminConnection.open(
        address.host,
        address.port,
        tls=None,
        client_id=group_name(group),
        timeout_s=_TIMEOUT_S,
        dialler=Dialler(),
    )
    login = Scram(username=f"{group_name(group)}-{number % 2}", password=_PASSWORD)
    await authenticate(connection, login, await connection.api_versions())
    return connection


async def _ask(
    connection: AdminConnection,
    asked: tuple[Message, int, type[Message]],
    rate: float,
    until: float,
) -> None:
    """Ask for `rate` bytes per second, or fewer if answers are late."""
    due = time.monotonic()
    while (now := time.monotonic()) < until:
        if now < due:
            await asyncio.sleep(due - now)
        due = max(due + MESSAGE / rate, now - 1.0)
        await connection.request(*asked)


def _each(options: argparse.Namespace) -> int:
    """Return the number of connections of each group."""
    return max(1, int(options.connections) // len(QUOTAS))


async def measure(options: argparse.Namespace, directory: Path) -> tuple[float, Broker]:
    """Run the load; return when it began, and the broker."""
    broker, at = Broker(), free_address()
    server = await asyncio.start_server(broker.serve, at.host, at.port)
    config, address = prepare(directory, at, options.workers, options.fetch)
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
    proxy = running(command, log=directory / "proxy.log", address=address)
    await asyncio.to_thread(proxy.__enter__)
    try:
        groups = range(len(QUOTAS))
        each = _each(options)
        connections = {
            group: await asyncio.gather(*(_log_in(address, group, n) for n in range(each)))
            for group in groups
        }
        began = time.monotonic()
        request = _request(options.fetch)
        asking = [
            asyncio.create_task(
                _ask(one, request, QUOTAS[group] * ASKED / each, began + options.seconds)
            )
            for group in groups
            for one in connections[group]
        ]
        await asyncio.sleep(options.seconds)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return began, broker
    finally:
        await asyncio.to_thread(proxy.__exit__, None, None, None)
        server.close()


def averages(began: float, broker: Broker, seconds: float) -> dict[str, list[float]]:
    """Return the average bytes per second from the beginning to each second, by group."""
    found = {}
    for group in map(group_name, range(len(QUOTAS))):
        mine = [(at - began, size) for at, who, size in broker.passed if who == group]
        found[group] = [
            sum(size for at, size in mine if at <= second) / second
            for second in range(1, int(seconds) + 1)
        ]
    return found


_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 60, 20


def svg(found: dict[str, list[float]], title: str) -> str:
    """Draw each group's average since the beginning, in multiples of its quota."""
    highest = 1 + max(
        value / quota
        for values, quota in zip(found.values(), QUOTAS, strict=True)
        for value in values
    )
    seconds = max(map(len, found.values()))

    def at(second: float, multiple: float) -> str:
        x = _LEFT + second / seconds * _WIDTH
        return f"{x:.1f},{_TOP + _HEIGHT - multiple / highest * _HEIGHT:.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 180} {_HEIGHT + 70}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<text x="{_LEFT}" y="14">{title}</text>',
        f'<polyline points="{at(0, 1)} {at(seconds, 1)}" stroke="#888" stroke-dasharray="4 3"/>',
    ]
    for multiple in range(int(highest) + 1):
        x, y = at(0, multiple).split(",")
        lines.append(f'<text x="{float(x) - 24}" y="{float(y) + 4}">{multiple} Q</text>')
    for second in range(0, seconds + 1, 5):
        x, y = at(second, 0).split(",")
        lines.append(f'<text x="{x}" y="{float(y) + 18}" text-anchor="middle">{second} s</text>')
    for number, (group, values) in enumerate(found.items()):
        points = " ".join(at(n, value / QUOTAS[number]) for n, value in enumerate(values, 1))
        colour = _COLOURS[number]
        lines += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{_LEFT + _WIDTH + 10}" y="{_TOP + 16 * number + 12}" fill="{colour}">'
            f"{group}: {values[-1] / QUOTAS[number]:.3f} Q</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def arg_parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=50, help="of all groups, each has one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--fetch", action="store_true", help="fetch instead of produce")
    parser.add_argument("--svg", type=Path, help="draw the averages here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and draw; return the exit status."""
    options = arg_parser().parse_args(arguments)
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    with tempfile.TemporaryDirectory() as directory:
        began, broker = asyncio.run(measure(options, Path(directory)))
    found = averages(began, broker, options.seconds)
    what = "fetched" if options.fetch else "produced"
    title = (
        f"{_each(options) * len(QUOTAS)} connections, {options.workers} workers: bytes {what},"
        " average since the beginning"
    )
    print(f"{title} (load before: {load})")
    worst = 0.0
    for (group, values), quota in zip(found.items(), QUOTAS, strict=True):
        off = values[-1] / quota - 1
        worst = max(worst, abs(off))
        print(f"{group}  quota {quota:>8,} B/s  passed {values[-1]:>10,.0f} B/s  {off:+.2%}")
    if options.svg is not None:
        options.svg.write_text(svg(found, title))
    return int(worst > MAX_OFF)


if __name__ == "__main__":
    sys.exit(main())
