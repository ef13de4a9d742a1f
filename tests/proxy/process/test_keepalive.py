"""TCP keepalive of a running proxy, as the kernel shows it."""

import asyncio
from pathlib import Path

from tests.support.fake_broker import FakeBroker
from tests.support.keepalive import seconds_to_probe
from tests.support.processes import until
from tests.support.proxy_process import Proxy


async def test_idle_times_are_those_of_the_settings(tmp_path: Path) -> None:
    """With two workers, which get accepted connections from the acceptor."""
    async with FakeBroker() as broker:
        proxy = Proxy(tmp_path, 2, broker)
        proxy.settings["upstream"]["socket.keepalive.idle.ms"] = 5_000_000
        proxy.settings["listeners"][0]["socket.keepalive.idle.ms"] = 6_000_000
        proxy.write()
        await asyncio.to_thread(proxy.start)
        try:
            client = await proxy.log_in("alice")
            await proxy.ask_metadata(client)
            await until(
                lambda: (
                    [5_900 < one <= 6_000 for one in seconds_to_probe(local_port=proxy.port)]
                    == [True]
                    == [4_900 < one <= 5_000 for one in seconds_to_probe(port=broker.port)]
                )
            )
            client.writer.close()
        finally:
            await asyncio.to_thread(proxy.stop)
