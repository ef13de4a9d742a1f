"""Delegation tokens for the clients' logins: which one is used, where, and how many there are."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.brokers import delegation_tokens
from proxy.brokers.access import Access, PasswordIdentity
from proxy.brokers.client_identity import ClientLogins, ClientRefused
from proxy.brokers.delegation_tokens import (
    FAILURE_SECONDS,
    LIFETIME_MS,
    MAX_PER_SECOND,
    MAX_WAIT,
    PROPAGATION_SECONDS,
    Broker,
    Token,
    Tokens,
)
from proxy.brokers.own_requests import log_in
from proxy.brokers.service_connection import ServiceConnection
from proxy.config.values import Secret
from proxy.wire.error_codes import ErrorCode
from sasl.login import ClientExchange, LoginError
from tests.support import messages
from tests.support.client_identity import client, listener_with
from tests.support.fake_broker import Peer
from tests.support.messages import written

CREATE, DESCRIBE = 38, 41
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


def test_replicas_agree_on_the_token_that_expires_last() -> None:
    cluster = Cluster(0.0, LIFETIME_MS / 1000)
    replicas = [cluster.replica(), cluster.replica()]
    for replica in replicas:  # both at once: no broker knows the other's
        replica.created("alice", cluster.create(), cluster.now, cluster.now)
        cluster.now += 1
    cluster.learn(BROKERS[0])
    used = [obtain(cluster, replica, BROKERS[0]).id for replica in replicas]
    assert used == [[*cluster.tokens][-1]] * 2


def test_a_new_token_is_made_at_half_life() -> None:
    cluster = Cluster(0.0, LIFETIME_MS / 1000)
    replica = cluster.replica()
    first = obtain(cluster, replica, BROKERS[0])
    cluster.now += LIFETIME_MS / 2000 - 2
    assert obtain(cluster, replica, BROKERS[0]) is first
    cluster.now += 3
    assert replica.last_resort("alice", BROKERS[0], cluster.now) is first
    assert obtain(cluster, replica, BROKERS[0]).id != first.id
    assert len(cluster.tokens) == 2


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


def test_creations_are_spread_and_what_would_wait_too_long_is_refused() -> None:
    tokens = Tokens(WALL, 0.0, workers=5)
    within_bounds = int(MAX_WAIT * MAX_PER_SECOND / 5) + 1
    slots = [tokens.reserve(f"user {number}", 0.0) for number in range(within_bounds)]
    with pytest.raises(LoginError, match="per second"):
        tokens.reserve("alice", 0.0)
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


class Issuing(Peer):
    """A broker that creates tokens for everybody but eve, and knows them after some questions."""

    def __init__(self) -> None:
        super().__init__(passwords={"proxy": "secret"})
        self.versions |= {CREATE: (1, 3), DESCRIBE: (1, 3)}
        self.handlers = {CREATE: self._create, DESCRIBE: self._describe}
        self.lifetime_ms = LIFETIME_MS
        self.issued: list[dict[str, Any]] = []
        self.learns = True
        self.created: list[Any] = []

    def _create(self, version: int, body: bytes) -> bytes:
        asked = messages.read_request(CREATE, version, body)
        self.created.append(asked)
        issued = datetime.fromtimestamp(1_900_000_000 + len(self.issued), UTC)
        ends = issued + timedelta(milliseconds=LIFETIME_MS)
        one = {
            "principal_type": "User",
            "principal_name": asked.owner_principal_name,
            "token_requester_principal_type": "User",
            "token_requester_principal_name": "proxy",
            "token_id": f"id,={len(self.issued)}",
            "hmac": bytes([len(self.issued)] * 64),
        }
        error = ErrorCode.NONE
        if asked.owner_principal_name == "eve":
            error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        else:
            self.issued.append(one)
        names = "issue_timestamp", "expiry_timestamp", "max_timestamp"
        times = dict(zip(names, (issued, ends, ends), strict=True))
        body = written(messages.response(CREATE, version, error_code=error, **one | times))
        one |= {name: int(when.timestamp() * 1000) for name, when in times.items()}
        return body

    def _describe(self, version: int, body: bytes) -> bytes:
        (owner,) = messages.read_request(DESCRIBE, version, body).owners
        assert self.passwords is not None
        asked = self.seen(DESCRIBE)
        known = [one for one in self.issued if one["principal_name"] == owner.principal_name]
        known = known if self.learns and asked > 3 else []
        for one in known:
            password = base64.b64encode(one["hmac"]).decode()
            self.passwords[one["token_id"].replace("=", "=3D").replace(",", "=2C")] = password
        return written(messages.response(DESCRIBE, version, tokens=known))


def against(tmp_path: Path, work: Callable[[ClientLogins, Issuing], Awaitable[None]]) -> Issuing:
    peer = Issuing()
    (tmp_path / "password").write_text("secret")
    identity = PasswordIdentity("SCRAM-SHA-256", "proxy", Secret(tmp_path / "password", None))
    access = Access(timeout_s=30, username="proxy", identity=identity)
    given = {"mechanism": "SCRAM-SHA-256", "allow_prefixes": ["User:"], "super_users": []}

    async def run() -> None:
        async with peer:
            listener = listener_with(tmp_path, "delegation-token", given)
            await work(ClientLogins(listener, access), peer)

    asyncio.run(run())
    return peer


async def logged_in(peer: Issuing, exchange: ClientExchange) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    try:
        connection = ServiceConnection(reader, writer)
        done = await log_in(exchange, 2, connection._request_body)
        return done.session_lifetime_ms
    finally:
        writer.close()


def test_a_broker_is_asked_until_it_knows_the_token_and_only_then_logged_in_to(
    tmp_path: Path,
) -> None:
    async def work(logins: ClientLogins, peer: Issuing) -> None:
        at = "127.0.0.1", peer.port
        many = [logins.exchange(client("User:a,b="), at) for _ in range(20)]
        exchanges = await asyncio.gather(*many)
        assert peer.seen(DESCRIBE) == 4
        for exchange in exchanges:
            assert b",tokenauth=true" in exchange.first()
            assert exchange.first().startswith(b"n,,n=id=2C=3D0,r=")
        assert await logged_in(peer, exchanges[0]) == LIFETIME_MS

    (creation,) = against(tmp_path, work).created
    assert (creation.owner_principal_type, creation.owner_principal_name) == ("User", "a,b=")
    (renewer,) = creation.renewers
    assert (renewer.principal_type, renewer.principal_name) == ("User", "proxy")


def test_a_principal_that_is_denied_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def work(logins: ClientLogins, peer: Issuing) -> None:
        for _ in range(3):
            with pytest.raises(ClientRefused) as refused:
                await logins.exchange(client("User:eve"), ("127.0.0.1", peer.port))
            reason = "User:proxy needs the operation CreateTokens on the user User:eve"
            assert reason in refused.value.reason

    assert len(against(tmp_path, work).created) == 1


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a\nb"])
def test_a_name_that_cannot_be_sent_or_shown_is_refused(tmp_path: Path, name: str) -> None:
    async def work(logins: ClientLogins, peer: Issuing) -> None:
        with pytest.raises(ClientRefused):
            await logins.exchange(client(f"User:{name}"), ("127.0.0.1", peer.port))
        assert not peer.connections

    against(tmp_path, work)


def test_a_broker_that_never_learns_the_token_gets_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "PROPAGATION_SECONDS", 0.3)

    async def work(logins: ClientLogins, peer: Issuing) -> None:
        peer.learns = False
        with pytest.raises(ClientRefused, match=r"no answer within 0\.3 s"):
            await logins.exchange(client("User:alice"), ("127.0.0.1", peer.port))

    assert len(against(tmp_path, work).created) == 1


def test_logins_that_wait_at_a_broker_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_WAITING", 2)

    async def work(logins: ClientLogins, peer: Issuing) -> None:
        at = "127.0.0.1", peer.port
        many = [logins.exchange(client(f"User:u{number}"), at) for number in range(5)]
        results = await asyncio.gather(*many, return_exceptions=True)
        refused = [one.reason for one in results if isinstance(one, ClientRefused)]
        assert len(refused) == 3
        assert all("too many logins wait" in reason for reason in refused)
        await logins.exchange(client("User:u4"), at)

    against(tmp_path, work)


def test_a_session_lifetime_of_0_means_that_the_token_has_expired(tmp_path: Path) -> None:
    async def work(logins: ClientLogins, peer: Issuing) -> None:
        exchange = await logins.exchange(client("User:alice"), ("127.0.0.1", peer.port))
        peer.lifetime_ms = 0
        with pytest.raises(LoginError, match="expired"):
            await logged_in(peer, exchange)

    against(tmp_path, work)
