"""A listener whose clients log in to brokers as themselves."""

from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import Access
from proxy.brokers.client_identity import ClientRefused
from proxy.brokers.discovery import DiscoveredBroker
from proxy.ops.sessions import facts_of
from proxy.wire.apis import ACL_APIS, CREDENTIAL_APIS, QUOTA_APIS
from proxy.worker.listener import Listener
from sasl.login import PlainClient
from tests.support.client_identity import BROKER, client, listener_with
from tests.support.metrics import read
from tests.support.observer import observer_of
from tests.support.playbook import VERSIONS
from tests.support.relay import Services, listener_of
from tests.support.relayed_logins import Login, relaying
from tests.support.sasl import NOW


class ProxyIdentity:
    """The proxy's own login."""

    async def exchange(self, _host: str = "", /) -> PlainClient:
        return PlainClient("proxy", "secret")

    async def run(self) -> None:
        pass

    def collect(self, snapshot: object) -> None:
        del snapshot


def opened(directory: Path, way: str, given: dict[str, Any]) -> Listener:
    access = Access(timeout_s=1.0, identity=ProxyIdentity(), username="proxy")
    return listener_of(listener_with(directory, way, given), Services(access=access))


def mapped(directory: Path) -> Listener:
    return opened(
        directory,
        "mapped",
        {"directory": str(directory), "mechanism": "PLAIN", "allow": ["User:alice"]},
    )


@pytest.mark.parametrize("principal", ["User:alice", "User:bob", "User:proxy", None])
async def test_the_proxys_login_is_no_substitute(tmp_path: Path, principal: str | None) -> None:
    """Alice has no credentials, the others are not allowed, the last is not authenticated."""
    listener = mapped(tmp_path)
    assert listener.rules.logs_in
    with pytest.raises(ClientRefused):
        await listener.exchange(None if principal is None else client(principal), BROKER)


async def test_by_default_it_is_the_proxy_that_logs_in(tmp_path: Path) -> None:
    listener = opened(tmp_path, "proxy", {})
    assert b"proxy" in (await listener.exchange(client("User:alice"), BROKER)).first()


async def test_events_and_sessions_name_the_principal_that_brokers_see(tmp_path: Path) -> None:
    given = {
        "directory": str(tmp_path),
        "mechanism": "PLAIN",
        "principal_mapping_rules": "RULE:^(.*)$/$1-there/",
        "allow": ["User:alice-there"],
    }
    presents = opened(tmp_path, "mapped", given).rules.presents
    play = relaying()
    object.__setattr__(play.rules, "presents", presents)
    Login(play, play.broker).run()
    recorded: list[str] = []
    observer = observer_of(emit=recorded.append)
    observer.opened(play.connection, NOW)
    observer.authenticated(play.connection, play.session)
    (event,) = map(read, recorded)
    assert event.upstream_principal == "User:alice-there"
    assert facts_of(play.connection, 0, NOW).upstream_principal == "User:alice-there"
    assert presents(client("User:bob")) is None


async def test_brokers_answer_about_acls_and_quotas_but_not_about_users(tmp_path: Path) -> None:
    """The proxy would change them under its own name; the users are its own."""
    view = mapped(tmp_path).view(DiscoveredBroker(None, "broker", 9092, versions=VERSIONS))
    assert view.not_answered == ACL_APIS | QUOTA_APIS
    assert {route.api_key for route in view.routes.values()} >= ACL_APIS | QUOTA_APIS
    assert not CREDENTIAL_APIS & {route.api_key for route in view.routes.values()}
