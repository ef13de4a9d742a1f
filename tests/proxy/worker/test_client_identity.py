"""A listener whose clients log in to brokers as themselves."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import Access
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.client_identity import ClientRefused
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.interfaces import ConnectionRules
from proxy.ops.sessions import facts_of
from proxy.store import open_store
from proxy.wire.apis import ACL_APIS, CREDENTIAL_APIS, QUOTA_APIS
from proxy.worker import store_service, worker
from proxy.worker.connection_limits import Shared
from proxy.worker.inputs import WorkerInputs
from proxy.worker.listener import Listener
from sasl.credentials import ScramCredential
from sasl.login import PlainClient
from tests.support.authenticating_broker import Client
from tests.support.client_identity import BROKER, Issuing, client, listener_with
from tests.support.metrics import read
from tests.support.observer import observer_of
from tests.support.playbook import VERSIONS
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import Services, listener_of
from tests.support.relayed_logins import Login, relaying
from tests.support.sasl import NOW, SHA_256
from tests.support.settings import SCRAM, configured


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


def test_events_and_sessions_name_the_principal_that_brokers_see(tmp_path: Path) -> None:
    given = {
        "directory": str(tmp_path),
        "mechanism": "PLAIN",
        "principal_mapping_rules": "RULE:^(.*)$/$1-there/",
        "allow": ["User:alice-there"],
    }

    async def rules() -> ConnectionRules:
        return opened(tmp_path, "mapped", given).rules

    presents = asyncio.run(rules()).presents
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


def test_brokers_answer_about_acls_and_quotas_but_not_about_users(tmp_path: Path) -> None:
    """The proxy would change them under its own name; the users are its own."""

    async def viewed() -> BrokerView:
        broker = DiscoveredBroker(None, "broker", 9092, versions=VERSIONS)
        return mapped(tmp_path).view(broker)

    view = asyncio.run(viewed())
    assert view.not_answered == ACL_APIS | QUOTA_APIS
    assert {route.api_key for route in view.routes.values()} >= ACL_APIS | QUOTA_APIS
    assert not CREDENTIAL_APIS & {route.api_key for route in view.routes.values()}


def test_a_revoked_user_loses_sessions_and_delegation_tokens_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of another replica as well; those of other users stay."""
    monkeypatch.setattr(worker, "TICK", 0.02)
    monkeypatch.setattr(store_service, "REFRESH_EVERY", 0.02)
    (tmp_path / "password").write_text("secret")

    async def run(listening: socket.socket, peer: Issuing) -> None:
        port = listening.getsockname()[1]
        listener = {
            **SCRAM,
            "address": f"127.0.0.1:{port}",
            "revoke.sessions": "at-once",
            "upstream.identity": "delegation-token",
            "upstream.identity.mechanism": "SCRAM-SHA-256",
            "upstream.identity.allow.prefixes": ["User:"],
            "upstream.identity.super.users": [],
        }
        login = {
            "bootstrap.servers": f"127.0.0.1:{peer.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "proxy",
            "sasl.password": f"file:{tmp_path / 'password'}",
        }
        settings = configured(tmp_path, listener, login)
        store = open_store(settings.store.url)
        users = {
            (name, SHA_256): ScramCredential.from_password(SHA_256, "secret", b"salt", 4_096)
            for name in ("alice", "bob")
        }
        store.alter_credentials(upsert=users)
        given = WorkerInputs(0, Shared.of_processes(1, [100]), listening={"clients": listening})
        with given.control, given.scrape, closing(store):
            one = worker.Worker(settings, given)
            await one._open()
            sessions = {}
            for name in ("alice", "bob"):
                await one._listeners[0].exchange(client(f"User:{name}"), ("127.0.0.1", peer.port))
                session = Client(*await asyncio.open_connection("127.0.0.1", port))
                assert await session.log_in(user=name) >= 0
                sessions[name] = session
            peer.issued.append(peer.issued[0] | {"token_id": "other", "hmac": b"other"})
            store.alter_credentials(delete=[("alice", SHA_256)], upsert={})
            assert await sessions["alice"].is_closed()
            await until(lambda: [token["principal_name"] for token in peer.issued] == ["bob"])
            assert len(one._listeners[0].clients) == 1
            sessions["bob"].writer.close()
            sessions["alice"].writer.close()
            one._endpoints.close()
            for task in list(one._tasks):
                task.cancel()
            await until(lambda: not one._tasks)
            one._store.close()

    async def against() -> None:
        async with Issuing() as peer, asyncio.timeout(PATIENCE_SECONDS):
            with socket.create_server(("127.0.0.1", 0)) as listening:
                await run(listening, peer)

    asyncio.run(against())
