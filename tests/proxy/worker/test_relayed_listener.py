"""Listeners whose brokers authenticate the clients, over real sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from proxy.acl.model import Operation
from proxy.brokers.access import Access
from proxy.connection.connection import Connection
from proxy.connection.interfaces import ConnectionRights
from proxy.connection.life import PauseReason
from proxy.net.dialler import Dialler
from proxy.net.sockets import listen as listen_on
from proxy.wire.api_versions import UpstreamVersions
from proxy.wire.apis import (
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CREDENTIAL_APIS,
    METADATA,
    SCRAM_APIS,
)
from proxy.worker import endpoint, slots
from proxy.worker.slots import SILENCE_SECONDS
from sasl.identity import Identity
from sasl.messages import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    authenticate_response,
    client_initial_response,
    handshake_response,
)
from tests.support import messages
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.authorization import Judge, Rights, cluster
from tests.support.frames import authenticate, handshake, metadata, read_authenticated, request
from tests.support.keepalive import options_of_connections_to
from tests.support.messages import written
from tests.support.playbook import HOUR_MS, SCRAM
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import RunningListener, listen, read_frame, ssl_listener
from tests.support.sasl import AUDIENCE, ISSUER, Issuer
from tests.support.tls import AUTHORITY, OURS, Spoken, client_context, server_context

RELAYS: dict[str, Any] = {"sasl.termination": "broker", "connections.max.reauth.ms": HOUR_MS}


@asynccontextmanager
async def play(
    directory: Path,
    *,
    broker: Authenticator | None = None,
    access: Access | None = None,
    sock: socket.socket | None = None,
    rights: ConnectionRights | None = None,
    **more: Any,
) -> AsyncIterator[tuple[RunningListener, Authenticator]]:
    """Run a listener whose broker authenticates its clients."""
    behind = broker or Authenticator()
    given = RELAYS | {key.replace("_", "."): value for key, value in more.items()}
    served = listen(directory, given, behind=behind, access=access, sock=sock, rights=rights)
    async with served as running:
        yield running, behind


async def connected(running: RunningListener, **how: Any) -> Client:
    return Client(*await running.connect(**how))


def has_connections(broker: Authenticator, number: int) -> bool:
    return broker.connections == number


def slots_taken(running: RunningListener) -> tuple[int, int]:
    logins, renewals = running.listener.login_slots(running.upstream)
    return logins.taken, renewals.taken


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS on both sides"])
async def test_a_client_logs_in_to_the_broker_and_again_aside(
    directory: Path, secured: bool
) -> None:
    """The kernel probes that connection, and the one that takes its place."""
    tls = server_context(OURS) if secured else None
    trusting = Spoken(client_context(AUTHORITY)) if secured else None
    access = Access(timeout_s=PATIENCE_SECONDS, tls=trusting, dialler=Dialler(50_000))
    given = ssl_listener(security_protocol="SASL_SSL") if secured else {}
    async with play(directory, broker=Authenticator(tls=tls), access=access, **given) as (
        running,
        broker,
    ):
        running.upstream.host = "localhost"
        client = await connected(running, tls=client_context(AUTHORITY) if secured else None)
        for connections in (1, 2):
            assert await client.log_in() == HOUR_MS
            await client.metadata()
            assert (broker.connections, slots_taken(running)) == (connections, (0, 0))
            assert set(options_of_connections_to(broker.port)) == {(1, 50, 10, 3, 80_000)}
        assert running.log == ["authenticated User:alice", "authenticated User:alice again (1)"]
        client.writer.close()
        await until(lambda: not running.listener.clients)


async def test_a_wrong_password_is_the_brokers_to_refuse(tmp_path: Path) -> None:
    async with play(tmp_path) as (running, _):
        client = await connected(running)
        assert await client.log_in("wrong") == -58
        assert await client.is_closed()
        again = await connected(running)
        await again.log_in()
        assert await again.log_in("wrong") == -58
        assert await again.is_closed()
        await until(lambda: slots_taken(running) == (0, 0))


async def test_silent_clients_of_two_addresses_keep_nobody_out(tmp_path: Path) -> None:
    """A part of the next message is silence, too; once displaced, they come again."""

    async def attack(running: RunningListener, host: str) -> None:
        while True:
            silent = await connected(running, local_addr=(host, 0))
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await silent.ask(handshake(1, SCRAM))
                for byte in authenticate(2, b"token" * 1_000):
                    silent.writer.write(bytes([byte]))
                    await asyncio.sleep(0.05)
                    if silent.reader.at_eof():
                        break

    async with play(tmp_path, sasl_broker_max_logins=20) as (running, _):
        hosts = ["127.0.0.2", "127.0.0.3"]
        attacks = [asyncio.create_task(attack(running, host)) for host in hosts for _ in range(14)]
        logins = running.listener.login_slots(running.upstream)[0]
        await until(lambda: len(logins._owners) == len(attacks))
        clients = [await connected(running) for _ in range(15)]
        assert await asyncio.gather(*(one.log_in() for one in clients)) == [HOUR_MS] * 15
        assert "failed displaced" in running.log
        for one in attacks:
            one.cancel()


async def test_silent_clients_cost_the_broker_no_connection(tmp_path: Path) -> None:
    async with play(tmp_path) as (running, broker):
        silent = [await connected(running) for _ in range(10)]
        await until(lambda: len(running.listener.clients) == 10)
        assert broker.connections == 0
        for one in silent:
            one.writer.close()


async def test_a_client_is_not_silent_because_the_proxy_was_busy(tmp_path: Path) -> None:
    async with play(tmp_path, sasl_broker_max_logins=1) as (running, _):
        alice, other = await connected(running), await connected(running)
        await alice.ask(handshake(1, SCRAM))
        other.writer.write(handshake(1, SCRAM))
        alice.writer.write(authenticate(2, b"n,,n=alice,r=nonce"))
        time.sleep(SILENCE_SECONDS)  # noqa: ASYNC251 - the loop is busy
        assert read_authenticated(await read_frame(alice.reader), 1)[0] == 0
        alice.writer.close()
        assert await read_frame(other.reader)


async def test_silent_reauthentications_of_two_users_keep_nobody_out(tmp_path: Path) -> None:
    async with play(tmp_path, sasl_broker_max_side_connections=4) as (running, broker):
        users = [(f"user-{number % 2}", await connected(running)) for number in range(4)]
        alice = await connected(running)
        await alice.log_in()
        for user, one in users:
            assert broker.passwords is not None
            broker.passwords[user] = "secret"
            await one.log_in(user=user)
        for _, one in users:
            await one.ask(handshake(90, SCRAM))
        assert slots_taken(running) == (0, 4)
        assert await alice.log_in() == HOUR_MS
        await alice.metadata()
        assert await users[0][1].is_closed()
        assert "failed displaced" in running.log


async def test_a_broker_that_hangs_aside_holds_nobody_else_up_for_long(tmp_path: Path) -> None:
    async def two_wait(running: RunningListener) -> None:
        _, renewals = running.listener.login_slots(running.upstream)
        await until(lambda: len(renewals._owners) == 2)
        assert renewals.taken == 1

    async with play(
        tmp_path, sasl_broker_max_side_connections=1, sasl_authentication_timeout_ms=3_000
    ) as (running, broker):
        one, two = await connected(running), await connected(running)
        await one.log_in()
        await two.log_in()
        broker.silent.add(SASL_HANDSHAKE)
        one.writer.write(handshake(90, SCRAM))
        await until(lambda: broker.connections == 3)
        broker.silent.clear()
        waiting = asyncio.create_task(two.log_in())
        await two_wait(running)
        assert await one.is_closed()
        assert await waiting == HOUR_MS
        await two.metadata()
        assert "failed timeout" in running.log


@pytest.mark.parametrize("moves", [False, True])
async def test_a_broker_that_is_gone_or_elsewhere_ends_the_session(
    tmp_path: Path, moves: bool
) -> None:
    async with play(tmp_path, connections_max_reauth_ms=500) as (running, broker):
        client = await connected(running)
        await client.log_in()
        if moves:
            running.upstream.port += 1  # another node has its address since
        else:
            assert broker._server is not None
            broker._server.close()
        client.writer.write(handshake(90, SCRAM))
        assert await client.is_closed()
        assert running.log[1:] == ["failed broker_unavailable", "closed authentication_failed"]


async def test_another_node_behind_the_same_address_ends_the_session(tmp_path: Path) -> None:
    """As behind a load balancer, or an address that was given away (KIP-1242)."""
    broker = Authenticator(cluster_id="c1", node_id=7, brokers={3: ("a", 1), 7: ("b", 1)})
    broker.versions = {**broker.versions, METADATA: (0, 13), API_VERSIONS: (0, 5)}

    async with play(tmp_path, broker=broker) as (running, _):
        running.upstream.versions = UpstreamVersions(apis=broker.versions)
        client = await connected(running)
        assert await client.log_in() == HOUR_MS
        assert await client.log_in() == HOUR_MS
        await client.metadata()
        broker.node_id = 3
        await asyncio.sleep(1.05)  # KIP-368's second between two of them
        assert await client.log_in() == HOUR_MS
        assert await client.is_closed()
        assert running.log == [
            "authenticated User:alice",
            "authenticated User:alice again (1)",
            "failed broker_unavailable",
            "closed authentication_failed",
        ]
        assert slots_taken(running) == (0, 0)


async def test_an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address(tmp_path: Path) -> None:
    broker = opaque_broker()
    async with play(tmp_path, broker=broker, sock=listen_on("::", 0)) as (running, _):
        client = await connected(running)
        await client.ask(handshake(1, "X-OWN"))
        await client.ask(authenticate(2, b"token"))
        await client.metadata()
        assert running.log == ["authenticated Opaque:X-OWN@127.0.0.1"]
        assert running.connection.peer_host == "127.0.0.1"


def opaque_broker() -> Authenticator:
    """A broker that lets everybody in, by a mechanism that the proxy does not know."""
    broker = Authenticator(passwords=None)
    broker.handlers = {
        SASL_HANDSHAKE: lambda _v, _b: handshake_response(0, ("X-OWN",)),
        SASL_AUTHENTICATE: lambda version, _: authenticate_response(version, auth_bytes=b"welcome"),
    }
    return broker


async def test_an_opaque_session_moves_to_the_connection_of_its_last_login(tmp_path: Path) -> None:
    broker = opaque_broker()

    async def log_in(client: Client) -> None:
        await client.ask(handshake(client.next_id(), "X-OWN"))
        await client.ask(authenticate(client.next_id(), b"token"))
        await client.metadata()

    async with play(tmp_path, broker=broker) as (running, _):
        client = await connected(running)
        await log_in(client)
        [first] = broker._writers
        for number in range(2, 4):
            await asyncio.sleep(1.05 if number > 2 else 0)  # KIP-368's second between two of them
            await log_in(client)
            await until(partial(has_connections, broker, number))
        await until(first.is_closing)
        for _ in range(3):
            await client.metadata()
        assert slots_taken(running) == (0, 0)
        assert running.log[0] == "authenticated Opaque:X-OWN@127.0.0.1"
        assert len(running.log) == 3


async def test_a_session_that_waits_to_move_holds_no_slot(tmp_path: Path) -> None:
    """Its client can make that last: by a Fetch that waits for records."""
    async with play(tmp_path, broker=opaque_broker()) as (running, broker):
        client = await connected(running)
        await client.ask(handshake(1, "X-OWN"))
        await client.ask(authenticate(2, b"token"))
        running.upstream.versions = None  # it may omit its node id
        broker.silent.add(METADATA)
        frames = (metadata(3), handshake(4, "X-OWN"), authenticate(5, b"token"), metadata(6))
        client.writer.write(b"".join(frames))
        await until(lambda: len(running.log) == 2)
        assert running.log[1] == "authenticated Opaque:X-OWN@127.0.0.1 again (1)"
        assert slots_taken(running) == (0, 0)
        assert broker.seen(METADATA) == 1, "the second one waits for the move"


async def test_groups_of_a_token_that_the_proxy_verifies_too(tmp_path: Path) -> None:
    """By keys of its own, of which newer ones are fetched for a token that waits."""
    issuer, keys = Issuer(), tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')

    async def log_in(client: Client, bearer: str) -> int:
        await client.ask(handshake(client.next_id(), "OAUTHBEARER"))
        message = client_initial_response(bearer)
        answer = await client.ask(authenticate(client.next_id(), message))
        return read_authenticated(answer, 1)[0]

    async with play(
        tmp_path,
        sasl_oauthbearer_jwks_endpoint_url="file:jwks.json",
        sasl_oauthbearer_expected_audience=AUDIENCE,
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_groups_claim_name="groups",
    ) as (running, broker):
        issuer.write_jwks(keys)
        good, bad = issuer.mint(groups=["analysts"]), issuer.mint_with_wrong_key()
        broker.tokens |= {good, bad}
        client = await connected(running)
        assert await log_in(client, good) == 0
        await client.metadata()
        assert running.connection.authentication.identity == Identity(
            "User:alice", ["Group:analysts"]
        )
        other = await connected(running)
        assert await log_in(other, bad) == 58
        assert await other.is_closed()


async def test_requests_about_users_pass_with_their_rights_and_no_byte_of_them_is_kept(
    tmp_path: Path,
) -> None:
    """The broker may have no authorizer: a client that could alter users here could become any."""
    judge = Judge(cluster(Operation.DESCRIBE))
    answer = written(messages.response(ALTER_USER_SCRAM_CREDENTIALS, 0))
    broker = Authenticator()
    broker.versions = {**broker.versions, **dict.fromkeys(CREDENTIAL_APIS, (0, 3))}
    broker.handlers = {ALTER_USER_SCRAM_CREDENTIALS: lambda _v, _b: answer}
    salted = {"name": "admin", "mechanism": 1, "iterations": 4096, "salt": b"s"}
    body = messages.request_body(
        ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[salted | {"salted_password": b"mine"}]
    )

    async def alter(client: Client) -> Any:
        frame = request(ALTER_USER_SCRAM_CREDENTIALS, 0, client.next_id(), body)
        response = await client.ask(frame)
        return messages.read_response(ALTER_USER_SCRAM_CREDENTIALS, 0, response)[1].results

    async with play(tmp_path, broker=broker, rights=judge) as (running, _):
        running.upstream.versions = UpstreamVersions(apis=broker.versions)
        client = await connected(running)
        await client.log_in()
        (served,) = running.listener.clients
        assert served.connection is not None
        offered = served.connection.target.api_versions
        assert offered is not None
        assert offered.offers.keys() & CREDENTIAL_APIS == SCRAM_APIS
        (refused,) = await alter(client)
        assert (refused.user, refused.error_code) == (
            "admin",
            ErrorCode.cluster_authorization_failed,
        )
        assert not broker.seen(ALTER_USER_SCRAM_CREDENTIALS)
        judge.rights = Rights(cluster(Operation.ALTER))
        served.call(Connection.rights_changed)
        for number in range(1, 3):
            assert not await alter(client)
            assert broker.seen(ALTER_USER_SCRAM_CREDENTIALS) == number
            assert len(served.connection.pipe.fingerprints) == 0


# Clients of a broker that is down: one probe, and pacing when it is back


TERMINATIONS: dict[str, dict[str, Any]] = {
    "broker": RELAYS,
    "proxy": {
        "sasl.termination": "proxy",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "connections.max.reauth.ms": HOUR_MS,
    },
}
Play = AbstractAsyncContextManager[tuple[RunningListener, Authenticator]]


@pytest.fixture(params=TERMINATIONS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Play]:
    """Run a listener of either termination."""
    relays = request.param == "broker"

    def run(*, timeout_s: float = PATIENCE_SECONDS) -> Play:
        broker = Authenticator() if relays else Authenticator(passwords=None)
        access = Access(timeout_s=timeout_s)
        return play(tmp_path, broker=broker, access=access, **TERMINATIONS[request.param])

    return run


async def stop(broker: Authenticator) -> None:
    assert broker._server is not None
    broker._server.close()
    await broker._server.wait_closed()


async def start(broker: Authenticator) -> None:
    await broker.__aenter__()


async def use(client: Client) -> None:
    """Log in, and have a request answered."""
    await client.log_in()
    await client.metadata()


def held(running: RunningListener) -> int:
    """The number of clients that wait for the broker."""
    outages = running.listener.services.outages.values()
    return sum(len(waiting) for one in outages for waiting in one._waiting.values())


async def hold(running: RunningListener, count: int) -> list["asyncio.Task[None]"]:
    """Clients that are held, the first of which found the broker down."""
    users = []
    for number in range(count):
        users.append(asyncio.create_task(use(await connected(running))))
        await until(lambda wanted=number + 1: held(running) == wanted)  # type: ignore[misc]
    return users


async def test_clients_wait_for_the_broker_and_one_probe_dials(run: Callable[..., Play]) -> None:
    async with run() as (running, broker):
        await stop(broker)
        users = await hold(running, 20)
        assert slots_taken(running) == (0, 0)
        await start(broker)
        await asyncio.gather(*users)
        assert broker.connections == 20 + 1
        await until(lambda: not running.listener.services.outages)


async def test_one_that_disconnects_frees_its_place(run: Callable[..., Play]) -> None:
    async with run() as (running, broker):
        await stop(broker)
        (user,) = await hold(running, 1)
        client = next(iter(running.listener.clients))
        user.cancel()
        running.writers[-1].close()
        await until(lambda: client not in running.listener.clients)
        assert held(running) == 0
        await start(broker)


async def test_beyond_the_limit_they_are_closed_at_once(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_HELD_PER_ADDRESS", 1)
    async with run() as (running, broker):
        await stop(broker)
        (user,) = await hold(running, 1)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await use(await connected(running))
        assert running.log[-1] == "closed broker_unreachable"
        await start(broker)
        await user


async def test_one_that_has_to_wait_for_anything_else_lets_others_go_on(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RESUMED_AT_ONCE", 1)
    async with run() as (running, broker):
        await stop(broker)
        users = await hold(running, 1)
        (first,) = running.listener.clients
        users += [asyncio.create_task(use(await connected(running)))]
        await until(lambda: held(running) == 2)
        # As for a quota; a relayed login has no other reason, and continues
        first.call(lambda connection, _: connection.hold(PauseReason.THROTTLED))
        await start(broker)
        await users[1]
        first.call(lambda connection, now: connection.release(PauseReason.THROTTLED, now))
        await users[0]
        await until(lambda: not running.listener.services.outages)


@contextmanager
def silent(broker: Authenticator) -> Iterator[None]:
    """A host that answers no SYN in place of a broker that was stopped."""
    with socket.socket() as listening, socket.socket() as queued:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((broker.host, broker.port))
        listening.listen(0)
        queued.connect(listening.getsockname())  # the kernel answers no further SYN
        yield


async def test_a_silent_host_is_down_too(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "SUSPECT_SECONDS", 0.05)
    async with run() as (running, broker):
        await stop(broker)
        with silent(broker):
            users = await hold(running, 3)
            assert slots_taken(running) == (0, 0)
        await start(broker)
        await asyncio.gather(*users)
        assert broker.connections == 3 + 1


async def test_a_broker_that_accepts_others_is_slow_and_not_down(
    run: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when all of its clients log in at once, and each handshake takes its time."""
    monkeypatch.setattr(endpoint, "SUSPECT_SECONDS", 0.05)
    async with run() as (running, broker):
        await use(await connected(running))
        await stop(broker)
        with silent(broker):
            running.upstream.connected_at = inf  # others are connected all the time
            user = asyncio.create_task(use(await connected(running)))
            await asyncio.sleep(0.1)  # twice that
        await start(broker)
        await user
        assert broker.connections == 2, "no probe"
