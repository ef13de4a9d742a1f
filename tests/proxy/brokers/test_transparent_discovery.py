"""Brokers that clients dialled: the facts remembered about them, and the log lines."""

import asyncio
import logging

import pytest

from proxy.brokers.access import Access
from proxy.brokers.discovery import VERSIONS_MAX_AGE
from proxy.brokers.transparent import DestinationRefused, TransparentDiscovery
from proxy.config.values import Address
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS, free_ports


def test_a_broker_that_is_dialled_in_vain_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise any client could fill the disk, with a line per connection."""
    nobody = Address("127.0.0.1", *free_ports(1))

    async def run() -> None:
        access = Access(timeout_s=PATIENCE_SECONDS)
        discovery = TransparentDiscovery(access=access, on_versions=lambda _: None)
        for _ in range(5):
            with pytest.raises(DestinationRefused, match="cannot be reached"):
                await discovery.broker(nobody)
        assert not discovery.brokers

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    (line,) = caplog.messages
    assert line.startswith(f"API versions unknown: broker {nobody}")


async def test_brokers_that_clients_were_brought_to_and_that_answer_no_more() -> None:
    discovery = TransparentDiscovery(
        access=Access(timeout_s=PATIENCE_SECONDS), on_versions=lambda _: None
    )
    async with FakeBroker() as one:
        async with FakeBroker() as two:
            for broker in (one, two):
                await discovery.broker(Address(broker.host, broker.port))
        assert not await discovery.round(VERSIONS_MAX_AGE * 1e6)
        assert discovery.unreachable is None, "one of them answers"
    assert not await discovery.round(VERSIONS_MAX_AGE * 2e6)
    assert discovery.unreachable is not None
