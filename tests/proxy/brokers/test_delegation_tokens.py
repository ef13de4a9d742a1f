"""Delegation tokens for the clients' logins: which one is used, where, and how many there are."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.brokers import delegation_tokens
from proxy.brokers.access import Access, PasswordIdentity
from proxy.brokers.client_identity import ClientLogins, ClientRefused
from proxy.brokers.delegation_tokens import (
    FAILURE_SECONDS,
    LIFETIME_MS,
    MAX_PER_SECOND,
    PROPAGATION_SECONDS,
    Broker,
    Lookup,
    Token,
    TokenDenied,
    Tokens,
)
from proxy.brokers.own_requests import log_in
from proxy.brokers.service_connection import ServiceConnection
from proxy.config.listener import Listener
from proxy.config.values import Secret
from proxy.errors import BrokerFault
from sasl.login import ClientExchange, LoginError
from tests.support.client_identity import DESCRIBE, Issuing, client, listener_with
from tests.support.processes import PATIENCE_SECONDS, until

HOUR = 3_600.0
BROKERS: list[Broker] = [("one", 9092), ("two", 9092)]
WALL = 1_800_000_000.0


class Cluster:
    """Brokers with a clock of their own, which learn of tokens one after the other."""

    def __init__(self, skew: float, lifetime: float) -> None:
        self.now = 100.0
        self.skew, self.lifetime = skew, lifetime
        self.tokens: dict[str, Token] = {}
        self.created = 0
        self.removed: set[str] = set()
        """Tokens that somebody expired."""
        self.known: dict[Broker, set[str]] = {broker: set() for broker in BROKERS}

    @property
    def clock_ms(self) -> int:
        return int((WALL + self.now + self.skew) * 1000)

    def replica(self) -> Tokens:
        return Tokens(WALL + self.now, self.now)

    def create(self) -> Token:
        issued = self.clock_ms
        self.created += 1
        made = Token(f"t{self.created}", b"", issued, issued + int(self.lifetime * 1000))
        self.tokens[made.id] = made
        return replace(made)

    def shown(self, broker: Broker) -> list[Token]:
        """Expired tokens included, which brokers sweep once in an hour."""
        kept = (self.tokens[id_] for id_ in sorted(self.known[broker]))
        return [Token(one.id, b"", one.issued_ms, one.expires_ms) for one in kept]

    def learn(self, broker: Broker) -> None:
        self.known[broker] |= self.tokens.keys()

    def goes_on(self, step: str, value: Any) -> None:
        match step:
            case "wait":
                self.now += value
            case "learn":
                self.learn(BROKERS[value])
            case "shorten":  # brokers still show what expires now
                self.removed |= self.tokens.keys()
                for token in self.tokens.values():
                    token.expires_ms = min(token.expires_ms, self.clock_ms)
            case "expire":
                self.removed |= self.tokens.keys()
                self.tokens.clear()
                for known in self.known.values():
                    known.clear()

    def accepts(self, token: Token, broker: Broker) -> bool:
        return token.id in self.known[broker] and self.clock_ms < self.tokens[token.id].expires_ms


def obtain(cluster: Cluster, replica: Tokens, broker: Broker) -> Token:
    """Do what TokenLogins does, and repeat a login that got no token in time."""
    token = attempt(cluster, replica, broker)
    if token is None:
        cluster.now += PROPAGATION_SECONDS + 1
        token = attempt(cluster, replica, broker)
    assert token is not None
    return token


def attempt(cluster: Cluster, replica: Tokens, broker: Broker) -> Token | None:
    if (token := replica.usable("alice", broker, cluster.now)) is not None:
        return token
    replica.shown("alice", broker, cluster.shown(broker), cluster.now)
    if replica.fresh("alice", cluster.now) is None:
        replica.reserve("alice", cluster.now)
        asked_at, token = cluster.now, cluster.create()
        cluster.now += random.random()  # noqa: S311 - no secret
        replica.created("alice", token, asked_at, cluster.now)
    cluster.learn(broker)
    replica.shown("alice", broker, cluster.shown(broker), cluster.now)
    return replica.usable("alice", broker, cluster.now)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 3 * HOUR)),
        st.tuples(st.just("login"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
        st.tuples(st.just("learn"), st.integers(0, 1)),
        st.tuples(st.just("expire"), st.just(0)),
        st.tuples(st.just("shorten"), st.just(0)),
    ),
    max_size=30,
)


@example(0.0, [("login", 0), ("expire", 0), ("login", 0)])
@example(0.0, [("login", 0), ("expire", 0), ("login", 2)])
@example(0.0, [("login", 0), ("shorten", 0), ("login", 0)])
@given(skew=st.floats(-HOUR, HOUR), steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_a_login_uses_a_token_that_its_broker_accepts(
    skew: float, steps: list[tuple[str, Any]]
) -> None:
    """Of two replicas, with clocks off by an hour; only a token that somebody expired may fail, and
    then the next login succeeds."""
    cluster = Cluster(skew, LIFETIME_MS / 1000)
    replicas = [cluster.replica(), cluster.replica()]
    for step, value in steps:
        if step == "restart":
            replicas[value] = cluster.replica()
        elif step != "login":
            cluster.goes_on(step, value)
        else:
            replica, broker = replicas[value % 2], BROKERS[value // 2]
            token = obtain(cluster, replica, broker)
            if token.id in cluster.removed and not cluster.accepts(token, broker):
                replica.doubt("alice", broker)
                again = attempt(cluster, replica, broker)  # without a wait
                assert again is not None
                token = again
            assert cluster.accepts(token, broker)


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_tokens_shorter_than_the_clocks_error_cost_one_login(skew: float) -> None:
    """A replica whose clock is behind finds an expired token alive; it does so once."""
    cluster = Cluster(skew, 600.0)
    first, second = cluster.replica(), cluster.replica()
    for broker in BROKERS:
        assert cluster.accepts(obtain(cluster, first, broker), broker)
    cluster.now += 601
    failures = 0
    for broker in BROKERS * 2:
        token = obtain(cluster, second, broker)
        if not cluster.accepts(token, broker):
            failures += 1
            second.doubt("alice", broker)
    assert failures <= 1


def test_a_new_token_is_made_at_half_life() -> None:
    cluster = Cluster(0.0, LIFETIME_MS / 1000)
    replica = cluster.replica()
    first = obtain(cluster, replica, BROKERS[0])
    cluster.now += LIFETIME_MS / 2000 - 2
    assert obtain(cluster, replica, BROKERS[0]) is first
    cluster.now += 3
    assert replica.last_resort("alice", BROKERS[0], cluster.now) is first
    assert replica.created_by_kind == {"first": 1}
    assert obtain(cluster, replica, BROKERS[0]).id != first.id
    assert len(cluster.tokens) == 2
    assert replica.created_by_kind == {"first": 1, "renewal": 1}


def test_a_restarted_proxy_that_can_create_no_token_uses_what_it_finds_to_its_end() -> None:
    cluster = Cluster(0.0, LIFETIME_MS / 1000)
    found = obtain(cluster, cluster.replica(), BROKERS[0])
    cluster.now += LIFETIME_MS / 2000 + 60
    restarted = cluster.replica()
    restarted.shown("alice", BROKERS[0], cluster.shown(BROKERS[0]), cluster.now)
    assert restarted.fresh("alice", cluster.now) is None
    token = restarted.last_resort("alice", BROKERS[0], cluster.now)
    assert token is not None
    assert token.id == found.id
    cluster.now += LIFETIME_MS / 2000 - 61
    assert restarted.last_resort("alice", BROKERS[0], cluster.now) is None


def test_creations_are_spread() -> None:
    tokens = Tokens(WALL, 0.0, workers=5)
    slots = [tokens.reserve(f"user {number}", 0.0) for number in range(50)]
    assert all(later - earlier == 5 / MAX_PER_SECOND for earlier, later in pairwise(slots))


def test_the_number_of_principals_is_bounded_until_tokens_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_TOKENS", 3)
    cluster = Cluster(0.0, LIFETIME_MS / 1000)
    tokens = cluster.replica()
    for number in range(3):
        tokens.created(f"user {number}", cluster.create(), cluster.now, cluster.now)
    with pytest.raises(LoginError, match="3 principals"):
        tokens.reserve("alice", cluster.now)
    tokens.reserve("user 0", cluster.now)
    cluster.now += LIFETIME_MS / 1000
    tokens.reserve("alice", cluster.now)


def test_a_failure_answers_later_logins_for_some_seconds() -> None:
    tokens = Tokens(WALL, 0.0)
    tokens.failed("alice", "denied", 0.0)
    with pytest.raises(LoginError, match="denied"):
        tokens.check("alice", FAILURE_SECONDS - 0.1)
    tokens.check("bob", 0.0)
    tokens.check("alice", FAILURE_SECONDS)


# Against a broker


def given_by(tmp_path: Path) -> tuple[Listener, Access]:
    """The settings and the proxy's login of a worker."""
    (tmp_path / "password").write_text("secret")
    identity = PasswordIdentity("SCRAM-SHA-256", "proxy", Secret(tmp_path / "password", None))
    given = {"mechanism": "SCRAM-SHA-256", "allow_prefixes": ["User:"], "super_users": []}
    listener = listener_with(tmp_path, "delegation-token", given)
    return listener, Access(timeout_s=30, username="proxy", identity=identity)


@asynccontextmanager
async def against(tmp_path: Path) -> AsyncIterator[tuple[ClientLogins, Issuing]]:
    async with Issuing() as peer:
        yield ClientLogins(*given_by(tmp_path)), peer


async def logged_in(peer: Issuing, exchange: ClientExchange) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    try:
        connection = ServiceConnection(reader, writer)
        done = await log_in(exchange, 2, connection._request_body)
        return done.session_lifetime_ms
    finally:
        writer.close()


async def test_a_broker_is_asked_until_it_knows_the_token_and_only_then_logged_in_to(
    tmp_path: Path,
) -> None:
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        many = [logins.exchange(client("User:a,b="), at) for _ in range(20)]
        exchanges = await asyncio.gather(*many)
        assert peer.seen(DESCRIBE) == 4
        for exchange in exchanges:
            assert b",tokenauth=true" in exchange.first()
            assert exchange.first().startswith(b"n,,n=id=2C=3D0,r=")
        assert await logged_in(peer, exchanges[0]) == LIFETIME_MS
    (creation,) = peer.created
    assert (creation.owner_principal_type, creation.owner_principal_name) == ("User", "a,b=")
    (renewer,) = creation.renewers
    assert (renewer.principal_type, renewer.principal_name) == ("User", "proxy")


async def test_a_principal_that_is_denied_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with against(tmp_path) as (logins, peer):
        for _ in range(3):
            with pytest.raises(ClientRefused) as refused:
                await logins.exchange(client("User:eve"), ("127.0.0.1", peer.port))
            reason = "User:proxy needs the operation CreateTokens on the user User:eve"
            assert reason in refused.value.reason
    assert len(peer.created) == 1


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a\nb"])
async def test_a_name_that_cannot_be_sent_or_shown_is_refused(tmp_path: Path, name: str) -> None:
    async with against(tmp_path) as (logins, peer):
        with pytest.raises(ClientRefused):
            await logins.exchange(client(f"User:{name}"), ("127.0.0.1", peer.port))
        assert not peer.connections


async def test_a_broker_that_never_learns_the_token_gets_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with against(tmp_path) as (logins, peer):
        monkeypatch.setattr(delegation_tokens, "PROPAGATION_SECONDS", 0.3)
        peer.learns = False
        with pytest.raises(ClientRefused, match="does not know its delegation token"):
            await logins.exchange(client("User:alice"), ("127.0.0.1", peer.port))
    assert len(peer.created) == 1


async def test_principals_that_wait_at_a_broker_are_bounded_and_each_takes_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_WAITING", 2)
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        names = ["alice"] * 50 + ["bob", "carol", "dave", "carol"]
        many = [logins.exchange(client(f"User:{name}"), at) for name in names]
        results = await asyncio.gather(*many, return_exceptions=True)
        refused = [one.reason for one in results if isinstance(one, ClientRefused)]
        assert refused == [one.reason for one in results[51:] if isinstance(one, ClientRefused)]
        assert len(refused) == 3
        assert all("too many principals wait" in reason for reason in refused)
        snapshot = Snapshot()
        logins.collect(snapshot, "clients")
        assert snapshot.values[registry.IDENTITY_REFUSED.name] == {("clients", "limit"): 3}
        await logins.exchange(client("User:dave"), at)


async def test_a_broker_that_goes_away_fails_all_that_wait_for_it(tmp_path: Path) -> None:
    """An owner may wait twice: for the answer that is due, and for the next one."""
    async with against(tmp_path) as (_, peer):
        _, access = given_by(tmp_path)
        turns = asyncio.Semaphore()
        look = Lookup(("127.0.0.1", peer.port), access, "proxy", Tokens(WALL, 0.0), turns)
        peer.silent = {DESCRIBE}
        waiting = [asyncio.ensure_future(look.request("alice"))]
        await until(lambda: peer.seen(DESCRIBE) == 1)
        waiting += [asyncio.ensure_future(look.request(name)) for name in ("alice", "bob")]
        await asyncio.sleep(0)
        peer.drop_connections()
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in results] == [BrokerFault] * 3


async def test_no_more_tokens_are_created_until_the_broker_knows_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_UNKNOWN", 2)
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        peer.learns = False
        many = [logins.exchange(client(f"User:u{number}"), at) for number in range(5)]
        waiting = asyncio.gather(*many)
        await until(lambda: len(peer.created) == 2)
        looks = peer.seen(DESCRIBE)
        await until(lambda: peer.seen(DESCRIBE) > looks + 3)
        assert len(peer.created) == 2
        peer.learns = True
        await waiting
    assert len(peer.created) == 5


async def test_many_principals_share_requests_for_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is denied does not disturb the others."""
    monkeypatch.setattr(delegation_tokens, "MAX_PER_SECOND", 1_000)
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        names = [f"user {number}" for number in range(100)]
        many = [logins.exchange(client(f"User:{name}"), at) for name in ("eve", *names)]
        denied, *others = await asyncio.gather(*many, return_exceptions=True)
        assert isinstance(denied, ClientRefused)
        assert [one for one in others if isinstance(one, BaseException)] == []
        snapshot = Snapshot()
        logins.collect(snapshot, "clients")
        values = snapshot.values
        assert values[registry.IDENTITY_REFUSED.name] == {("clients", "no_login"): 1}
        assert values[registry.DELEGATION_TOKENS_CREATED.name] == {("clients", "first"): 100}
        assert values[registry.DELEGATION_TOKEN_WAITING.name] == {("clients",): 0}
        (waits,) = snapshot.histograms[registry.DELEGATION_TOKEN_PROPAGATION.name].values()
        assert sum(waits.counts) == 100
        assert peer.connections < 120  # one creates a token, and a few look for all
        assert peer.seen(DESCRIBE) < 50
    assert len(peer.created) == 101


async def test_of_two_workers_that_create_for_one_principal_both_use_the_token_that_expires_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "SETTLE_SECONDS", 1.5)
    async with against(tmp_path) as (logins, peer):
        at, alice = ("127.0.0.1", peer.port), client("User:alice")
        await logins.exchange(alice, at)
        ends = peer.issued[0]["expiry_timestamp"] + 1
        of_another_worker = {"token_id": "later", "hmac": b"1", "expiry_timestamp": ends}
        peer.issued.append(peer.issued[0] | of_another_worker)
        async with asyncio.timeout(60):
            while b"n=later," not in (await logins.exchange(alice, at)).first():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert len(peer.created) == 1


async def test_a_principal_that_waits_its_turn_uses_what_another_worker_creates_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_UNKNOWN", 1)
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        peer.learns = False
        bob = asyncio.ensure_future(logins.exchange(client("User:bob"), at))
        await until(lambda: len(peer.created) == 1)
        looks = peer.seen(DESCRIBE)
        alice = asyncio.ensure_future(logins.exchange(client("User:alice"), at))
        await until(lambda: peer.seen(DESCRIBE) > looks + 3)
        of_another_worker = {"token_id": "other", "principal_name": "alice"}
        peer.issued.append(peer.issued[0] | of_another_worker)
        peer.learns = True
        await bob
        assert (await alice).first().startswith(b"n,,n=other,")
    assert len(peer.created) == 1


async def test_a_session_lifetime_of_0_means_that_the_token_has_expired(tmp_path: Path) -> None:
    async with against(tmp_path) as (logins, peer):
        exchange = await logins.exchange(client("User:alice"), ("127.0.0.1", peer.port))
        peer.lifetime_ms = 0
        with pytest.raises(LoginError, match="expired"):
            await logged_in(peer, exchange)


async def test_a_revocation_expires_the_tokens_that_the_proxy_created_for_a_client(
    tmp_path: Path,
) -> None:
    """The owner's own tokens stay, as do those of others; the next login gets a new token."""
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        for name in ("alice", "bob", "alice2"):
            await logins.exchange(client(f"User:{name}"), at)
        own = peer.issued[0] | {"token_requester_principal_name": "alice", "hmac": b"own"}
        other_replicas = peer.issued[0] | {"token_id": "other", "hmac": b"other"}
        peer.issued += [own, other_replicas]
        assert await logins.expire_tokens("User:alice", at) == 2
        left = [(one["principal_name"], one["hmac"]) for one in peer.issued]
        assert left == [("bob", b"\1" * 64), ("alice2", b"\2" * 64), ("alice", b"own")]
        assert await logins.expire_tokens("User:alice", at) == 0
        with pytest.raises(BrokerFault, match="no broker"):
            await logins.expire_tokens("User:alice", None)
        await logins.exchange(client("User:alice"), at)
    assert [one.owner_principal_name for one in peer.created][3:] == ["alice"]


async def test_a_trial_creates_uses_and_expires_a_token_of_its_own(tmp_path: Path) -> None:
    async with against(tmp_path) as (logins, peer):
        at, alice = ("127.0.0.1", peer.port), client("User:alice")
        peer.lifetime_ms = LIFETIME_MS
        await logins.exchange(alice, at)
        await logins.try_out(alice, at)
        assert [one["token_id"] for one in peer.issued] == ["id,=0"]
        peer.lifetime_ms = 0
        with pytest.raises(BrokerFault, match="login failed"):
            await logins.try_out(alice, at)
        assert len(peer.issued) == 1
        with pytest.raises(TokenDenied, match="needs the operation CreateTokens"):
            await logins.try_out(client("User:eve"), at)
    assert len(peer.created) == 4


async def test_workers_that_expire_the_same_tokens_do_not_fail(tmp_path: Path) -> None:
    async with against(tmp_path) as (logins, peer):
        at = "127.0.0.1", peer.port
        await logins.exchange(client("User:alice"), at)
        peer.issued.append(peer.issued[0])  # shown, though it is gone when the request arrives
        assert await logins.expire_tokens("User:alice", at) == 2
