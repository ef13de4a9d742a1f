"""`python -m tests.proxy.routing.broker_program ID=HOST:PORT …`: fake brokers until stdin ends."""

import asyncio
import sys
from contextlib import AsyncExitStack

from tests.proxy.routing.fake_broker import FakeBroker


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
