"""A listener whose clients log in to brokers as themselves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import Access
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.client_identity import ClientRefused
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.interfaces import NoAuthorizer
from proxy.wire.apis import ACL_APIS, CREDENTIAL_APIS, QUOTA_APIS
from proxy.worker.listener import Listener
from sasl.login import PlainClient
from tests.support.client_identity import BROKER, client, listener_with
from tests.support.playbook import VERSIONS
from tests.support.relay import Services, room_for
from tests.support.sasl import FAKE_SECRET, alice


class ProxyIdentity:
    """The proxy's own login."""

    async def exchange(self) -> PlainClient:
        return PlainClient("proxy", "secret")

    async def run(self) -> None:
        pass

    def collect(self, snapshot: object) -> None:
        del snapshot


def opened(directory: Path, way: str, given: dict[str, Any]) -> Listener:
    access = Access(timeout_s=1.0, identity=ProxyIdentity(), username="proxy")
    return Listener(
        listener_with(directory, way, given),
        services=Services(access=access),
        credentials=alice(),
        fake_secret=FAKE_SECRET,
        rights=NoAuthorizer(),
        open_connections=room_for(100),
    )


def mapped(directory: Path) -> Listener:
    return opened(
        directory,
        "mapped",
        {"directory": str(directory), "mechanism": "PLAIN", "allow": ["User:alice"]},
    )


@pytest.mark.parametrize("principal", ["User:alice", "User:bob", "User:proxy", None])
def test_the_proxys_login_is_no_substitute(tmp_path: Path, principal: str | None) -> None:
    """Alice has no credentials, the others are not allowed, the last is not authenticated."""

    async def log_in() -> None:
        listener = mapped(tmp_path)
        assert listener.rules.logs_in
        await listener.exchange(None if principal is None else client(principal), BROKER)

    with pytest.raises(ClientRefused):
        asyncio.run(log_in())


def test_by_default_it_is_the_proxy_that_logs_in(tmp_path: Path) -> None:

    async def first() -> bytes:
        listener = opened(tmp_path, "proxy", {})
        return (await listener.exchange(client("User:alice"), BROKER)).first()

    assert b"proxy" in asyncio.run(first())


def test_brokers_answer_about_acls_and_quotas_but_not_about_users(tmp_path: Path) -> None:
    """The proxy would change them under its own name; the users are its own."""

    async def viewed() -> BrokerView:
        broker = DiscoveredBroker(None, "broker", 9092, versions=VERSIONS)
        return mapped(tmp_path).view(broker)

    view = asyncio.run(viewed())
    assert view.not_answered == ACL_APIS | QUOTA_APIS
    assert {route.api_key for route in view.routes.values()} >= ACL_APIS | QUOTA_APIS
    assert not CREDENTIAL_APIS & {route.api_key for route in view.routes.values()}
