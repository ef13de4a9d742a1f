"""A broker that answers ApiVersions and Metadata over real TCP, encoded by kio; also a program."""

import asyncio
import ssl
import struct
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from tests.support.messages import response_bytes

# A broker that answers ApiVersions and Metadata over real TCP, encoded by kio

NO_TIME = i32Timedelta.parse(timedelta(0))


@dataclass(eq=False)
class FakeBroker:
    """Its fields may be changed while it runs."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {3: (0, 13), 18: (0, 4), 1: (4, 17)}
    )
    answer: bytes | None = None
    """Bytes to send instead of an answer, after which the connection is closed."""
    silent: bool = False
    requests: list[tuple[int, int]] = field(default_factory=list)
    """API key and version of each request seen."""
    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _connections: set["asyncio.Task[None] | None"] = field(default_factory=set)

    async def __aenter__(self) -> "FakeBroker":
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*(task for task in self._connections if task))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key, version, correlation_id = struct.unpack_from(">hhi", request)
                self.requests.append((key, version))
                if self.silent:
                    continue
                if self.answer is not None:
                    writer.write(self.answer)
                    break
                body = self._respond(key, version, correlation_id)
                writer.write(struct.pack(">i", len(body)) + body)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def _respond(self, key: int, version: int, correlation_id: int) -> bytes:
        if key == 3:
            return self._metadata(version, correlation_id)
        if version > self.versions[18][1]:
            return self._api_versions(0, correlation_id, ErrorCode.unsupported_version)
        return self._api_versions(version, correlation_id, ErrorCode.none)

    def _api_versions(self, version: int, correlation_id: int, error: ErrorCode) -> bytes:
        schema: Any = load_response_schema(18, version)
        one: Any = schema.__annotations__["api_keys"].__args__[0]
        keys = tuple(
            one(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
            if error is ErrorCode.none or key == 18
        )
        more = {"throttle_time": NO_TIME} if version >= 1 else {}
        return response_bytes(schema(error_code=error, api_keys=keys, **more), correlation_id)

    def _metadata(self, version: int, correlation_id: int) -> bytes:
        schema: Any = load_response_schema(3, version)
        one: Any = schema.__annotations__["brokers"].__args__[0]
        rack = {"rack": "r1"} if version >= 1 else {}
        brokers = tuple(
            one(node_id=id_, host=host, port=port, **rack)
            for id_, (host, port) in self.brokers.items()
        )
        more: dict[str, Any] = {"throttle_time": NO_TIME} if version >= 3 else {}
        more |= {"cluster_id": "c1"} if version >= 2 else {}
        more |= {"controller_id": 1} if version >= 1 else {}
        more |= {"error_code": ErrorCode.none} if version >= 13 else {}
        return response_bytes(schema(brokers=brokers, topics=(), **more), correlation_id)


# `python -m tests.support.fake_broker ID=HOST:PORT …`: fake brokers until stdin ends


async def main(arguments: list[str]) -> None:
    """Each tells of itself alone, by its id."""
    async with AsyncExitStack() as stack:
        for argument in arguments:
            broker_id, _, address = argument.partition("=")
            host, _, port = address.rpartition(":")
            broker = FakeBroker(brokers={int(broker_id): (host, int(port))})
            broker.host, broker.port = host, int(port)
            await stack.enter_async_context(broker)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
