"""Delegation tokens for the clients' logins to brokers (`delegation-token`; KIP-48, KIP-373).

Rules:

- A token is owned by the client's principal and requested by the proxy, which is also its renewer.
  A restarted proxy and other replicas find it at the brokers; no token is stored on disk.
- Of several tokens, the one that expires last is used; replaced ones are left to expire.
- A token is used at a broker only after that broker has shown it: the broker would count a login
  with an unknown token as an attack.
- Ages are measured by the brokers' clock, which each token that is created shows.
"""

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from metrics import registry
from metrics.snapshot import Histogram, Snapshot
from proxy import config
from proxy.brokers.access import Access
from proxy.brokers.service_connection import ServiceConnection, ask
from proxy.errors import BrokerFault, host_port
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramMechanism
from sasl.identity import USER_TYPE
from sasl.login import ClientExchange, LoginError, SaltedPasswords, ScramClient

Broker = tuple[str, int]
"""Host and port."""
LIFETIME_MS: Final = 14_400_000
"""Longest lifetime of a token in milliseconds, 4 h; the brokers' own limit may be lower."""
MAX_PER_SECOND: Final = 20
"""Maximum number of tokens that a listener creates per second, in all workers together: each costs
every broker the iterations of two SCRAM mechanisms."""
MAX_TOKENS: Final = 10_000
"""Maximum number of principals of a listener with a token, in all workers together."""
MAX_WAITING: Final = 4_000
"""Maximum number of a listener's principals that wait for a token at one broker, in all workers
together."""
MAX_UNKNOWN: Final = 40
"""Maximum number of a listener's tokens that were created for logins to one broker and that it does
not know yet, in all workers together: a slow broker sets the pace."""
MAX_OWNERS: Final = 500
"""Maximum number of owners in a request for their tokens."""
CONNECTION_SECONDS: Final = 10.0
"""Seconds after which a connection for lookups of tokens is replaced, if it is still needed."""
MAX_WAIT: Final = 60.0
"""Longest time in seconds that a login waits for a token."""
PROPAGATION_SECONDS: Final = 30.0
"""Longest time in seconds until a broker knows a token that was created."""
POLL_SECONDS: Final = 0.1
"""Seconds between two requests for the tokens that a broker knows."""
SETTLE_SECONDS: Final = 2 * PROPAGATION_SECONDS
"""Seconds after its creation until a token that another worker or proxy created at the same time
is known, too: the other one did not know this token, and its own took as long."""
FAILURE_SECONDS: Final = 5.0
"""Seconds for which a failure to create a token is the answer to later logins."""
LAST_SECONDS: Final = 30.0
"""Remaining life in seconds below which a token is not used even if no other can be created."""
VERSION: Final = 3
"""Version of the requests: the first with an owner (KIP-373)."""
EXPIRE_VERSION: Final = 2
"""Version of ExpireDelegationToken."""

_USER: Final = USER_TYPE.removesuffix(":")
_GONE: Final = ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED
_CAUSES: Final[Mapping[int, str]] = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key at all brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "the proxy must log in to brokers with SASL, and not with a delegation token"
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: (
        "User:{own} needs the operation CreateTokens on the user User:{name}"
    ),
}


class TokenDenied(BrokerFault):
    """The proxy may not create tokens for a principal."""


class LimitError(LoginError):
    """Too many principals need a token."""


@dataclass(slots=True, eq=False)
class Token:
    """Delegation token. Its times are in Unix milliseconds of the brokers."""

    id: str
    hmac: bytes = field(repr=False)
    issued_ms: int
    expires_ms: int
    since: float = 0.0
    """Time of its first use here, in monotonic seconds."""
    known_at: set[Broker] = field(default_factory=set)
    """The brokers that have shown it."""
    doubted_at: set[Broker] = field(default_factory=set)
    """The brokers that have shown it, and refused a login since."""
    salted: SaltedPasswords = field(default_factory=SaltedPasswords, repr=False)


class Tokens:
    """The tokens in use by the name of their owner; pure. `now` is in monotonic seconds."""

    def __init__(self, wall: float, now: float, *, workers: int = 1) -> None:
        """`wall` is Unix time in seconds: it counts until the brokers' clock is known."""
        self._offset_ms = (wall - now) * 1000
        """The brokers' Unix milliseconds at `now` 0."""
        self._is_exact = False
        """True once a created token has told the brokers' clock."""
        self._trusts_found = True
        """False if a login has failed before that: the tokens that were found may have expired."""
        self._interval = workers / MAX_PER_SECOND
        self._max_tokens = max(1, MAX_TOKENS // workers)
        self._next_at = now
        self._tokens: dict[str, Token] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        self.created_by_kind = Counter[str]()
        """Number of tokens created, by label `kind` of the metric."""

    def _left(self, token: Token, now: float) -> float:
        """Return the remaining life in seconds."""
        return (token.expires_ms - self._offset_ms) / 1000 - now

    def fresh(self, name: str, now: float) -> Token | None:
        """Return the token to use at brokers that know it; None if one must be created, because
        less than half of the life of the token remains."""
        token = self._tokens.get(name)
        if token is None or self._left(token, now) <= (token.expires_ms - token.issued_ms) / 2000:
            return None
        return token

    def usable(self, name: str, broker: Broker, now: float) -> Token | None:
        """Return the fresh token if the broker knows it; None if it does not."""
        token = self.fresh(name, now)
        return token if token is not None and broker in token.known_at else None

    def last_resort(self, name: str, broker: Broker, now: float) -> Token | None:
        """Return a token that is known to the broker and not expired, fresh or not; None without
        one."""
        token = self._tokens.get(name)
        if token is None or broker not in token.known_at or self._left(token, now) < LAST_SECONDS:
            return None
        return token

    def shown(self, name: str, broker: Broker, tokens: Iterable[Token], now: float) -> None:
        """Take note of all tokens of an owner that a broker shows."""
        shown = {token.id: token for token in tokens}
        for token in shown.values():  # the brokers' clock cannot be before that
            self._offset_ms = max(self._offset_ms, token.issued_ms - now * 1000)
        current = self._tokens.get(name)
        if current is not None and current.id in shown:
            current.expires_ms = shown[current.id].expires_ms  # its owner may renew or expire it
            current.known_at.add(broker)
            current.doubted_at.discard(broker)
        elif current is not None and self._is_gone(current, broker, now):
            del self._tokens[name]
            current = None
        if not (self._is_exact or self._trusts_found):
            return
        best = max(shown.values(), key=lambda one: (one.expires_ms, one.id), default=None)
        if best is None:
            return
        if current is None or (best.expires_ms, best.id) > (current.expires_ms, current.id):
            self._put(name, best, now)
            best.known_at.add(broker)

    def _is_gone(self, token: Token, broker: Broker, now: float) -> bool:
        """Return whether a token that a broker does not show was expired by somebody."""
        return broker in token.doubted_at or now - token.since > PROPAGATION_SECONDS

    def is_awaited(self, name: str, broker: Broker, now: float) -> bool:
        """Return whether there is a token that the broker does not know yet."""
        token = self.fresh(name, now)
        return token is not None and broker not in token.known_at

    def check(self, name: str, now: float) -> None:
        """Raise LoginError if there are too many tokens, or none could be created lately."""
        until, reason = self._failures.get(name, (now, ""))
        if until > now:
            raise LoginError(reason)
        if name in self._tokens or len(self._tokens) < self._max_tokens:
            return
        self._tokens = {k: one for k, one in self._tokens.items() if self._left(one, now) > 0}
        if len(self._tokens) >= self._max_tokens:
            raise LimitError(f"{MAX_TOKENS} principals have delegation tokens already")

    def reserve(self, name: str, now: float) -> float:
        """Return the seconds after which a token may be created for an owner. Raises LoginError."""
        self.check(name, now)
        begins = max(self._next_at, now)
        self._next_at = begins + self._interval
        return begins - now

    def created(self, name: str, token: Token, asked_at: float, now: float) -> None:
        """Use a token that was created; it was requested at `asked_at`."""
        self._offset_ms = token.issued_ms - asked_at * 1000
        self._is_exact = True
        self._failures.pop(name, None)
        self.created_by_kind["renewal" if name in self._tokens else "first"] += 1
        self._put(name, token, now)

    def failed(self, name: str, reason: str, now: float) -> None:
        """Take note that no token could be created."""
        if len(self._failures) >= self._max_tokens:
            self._failures.clear()
        self._failures[name] = now + FAILURE_SECONDS, reason

    def doubt(self, name: str, broker: Broker) -> None:
        """Take note that a login failed: the broker must show the token again before the next."""
        token = self._tokens.get(name)
        if token is None or broker not in token.known_at:
            return
        token.known_at.discard(broker)
        token.doubted_at.add(broker)
        if not self._is_exact:  # the token may have expired by the brokers' clock
            self._trusts_found = False
            del self._tokens[name]

    def forget(self, name: str) -> None:
        """Stop using the token of an owner."""
        self._tokens.pop(name, None)

    def _put(self, name: str, token: Token, now: float) -> None:
        token.since = now
        self._tokens[name] = token


@dataclass(slots=True, eq=False)
class Lookup:
    """Requests for the tokens of several owners, over one connection that closes after the last."""

    broker: Broker
    access: Access
    own: str
    tokens: Tokens
    turns: asyncio.Semaphore
    """Turns to create a token that this broker does not know yet."""
    waiting: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    async def request(self, name: str) -> None:
        """Ask for the tokens of an owner with the next request. Raises BrokerFault."""
        loop = asyncio.get_running_loop()
        answered = self.waiting.setdefault(name, loop.create_future())
        if self.task is None:
            self.task = loop.create_task(self._connect())
        if problem := await asyncio.shield(answered):
            raise BrokerFault(problem)

    async def _connect(self) -> None:
        taken: dict[str, asyncio.Future[str]] = {}
        try:
            while self.waiting:
                await ask(*self.broker, self.access, partial(self._converse, taken))
        except BrokerFault as fault:
            for answered in (*taken.values(), *self.waiting.values()):
                answered.set_result(fault.reason)
            self.waiting.clear()
        finally:
            self.task = None

    async def _converse(
        self, taken: dict[str, asyncio.Future[str]], connection: ServiceConnection
    ) -> None:
        ends = monotonic() + CONNECTION_SECONDS
        while self.waiting and monotonic() < ends:
            for name in [*islice(self.waiting, MAX_OWNERS)]:
                taken[name] = self.waiting.pop(name)
            shown = await described(connection, [*taken], self.own)
            while taken:
                name, answered = taken.popitem()
                self.tokens.shown(name, self.broker, shown[name], monotonic())
                answered.set_result("")
            await asyncio.sleep(POLL_SECONDS)


class TokenLogins:
    """Logins with a delegation token of each client."""

    def __init__(self, settings: config.Listener, access: Access, workers: int) -> None:
        mechanism = settings.upstream_identity_mechanism
        assert mechanism is not None
        assert access.username is not None
        self._mechanism = ScramMechanism(mechanism)
        self._own = access.username
        self._access = replace(access, timeout_s=PROPAGATION_SECONDS)
        self._tokens = Tokens(time.time(), monotonic(), workers=workers)
        self._max_waiting = max(1, MAX_WAITING // workers)
        self._waits: dict[Broker, dict[str, asyncio.Task[LoginError]]] = {}
        """The principals that wait, and the error if they wait in vain."""
        self._lookups: dict[Broker, Lookup] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._max_unknown = max(1, MAX_UNKNOWN // workers)
        self._settling: set[object] = set()
        self._propagation = Histogram.empty(registry.DELEGATION_TOKEN_PROPAGATION)

    async def exchange(self, name: str, broker: Broker) -> ClientExchange:
        """Begin a login for `User:name`. Raises LoginError."""
        if not name.isprintable():  # which includes what is not text
            raise LoginError("its name has characters that cannot be printed")
        token = self._tokens.usable(name, broker, monotonic())
        if token is None:
            token = await self._wait(name, broker)
        return self._exchange(token)

    def _exchange(self, token: Token) -> ScramClient:
        password = base64.b64encode(token.hmac).decode()
        return ScramClient(self._mechanism, token.id, password, token.salted, is_token=True)

    async def try_out(
        self, name: str, broker: Broker, log_in: Callable[[ClientExchange], Awaitable[None]]
    ) -> None:
        """Create a token for `User:name`, log in with it when the broker knows it, and expire it.

        Raises BrokerFault.
        """

        async def question(connection: ServiceConnection) -> None:
            token = await created(connection, name, self._own)
            try:
                shown: list[Token] = []
                while token.id not in [one.id for one in shown]:
                    await asyncio.sleep(POLL_SECONDS)
                    shown = await self._shown(connection, name)
                await log_in(self._exchange(token))
            finally:
                await expire(connection, [token], name, self._own)

        await ask(*broker, self._access, question)

    async def _shown(self, connection: ServiceConnection, name: str) -> list[Token]:
        return (await described(connection, [name], self._own))[name]

    def failed(self, name: str, broker: Broker) -> None:
        """Take note that a broker refused a login: the token may have been expired by somebody."""
        self._tokens.doubt(name, broker)

    async def expire(self, name: str, broker: Broker) -> int:
        """Expire the tokens of `User:name` that the proxy has created, and return their number.

        Open sessions stay: close them before. Raises BrokerFault.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):  # not while one is created
            number = await ask(*broker, self._access, partial(self._expire, name))
            self._tokens.forget(name)
            return number

    async def _expire(self, name: str, connection: ServiceConnection) -> int:
        tokens = await self._shown(connection, name)
        await expire(connection, tokens, name, self._own)
        return len(tokens)

    def collect(self, snapshot: Snapshot, listener: str) -> None:
        """Add the values of the tokens."""
        waiting = sum(map(len, self._waits.values()))
        snapshot.gauge(registry.DELEGATION_TOKEN_WAITING, waiting, listener)
        for kind, number in self._tokens.created_by_kind.items():
            snapshot.count(registry.DELEGATION_TOKENS_CREATED, number, listener, kind)
        snapshot.take(registry.DELEGATION_TOKEN_PROPAGATION, self._propagation, listener)

    async def _wait(self, name: str, broker: Broker) -> Token:
        """Wait for a token: all logins of a principal to a broker take one place together."""
        waits = self._waits.setdefault(broker, {})
        if name not in waits:
            if len(waits) >= self._max_waiting:
                where = host_port(*broker)
                raise LimitError(
                    f"too many principals wait for delegation tokens at broker {where}"
                )
            waits[name] = asyncio.get_running_loop().create_task(self._attempt(name, broker))
        error = await asyncio.shield(waits[name])
        now = monotonic()
        token = self._tokens.usable(name, broker, now)
        token = token or self._tokens.last_resort(name, broker, now)
        if token is None:
            raise error
        return token

    async def _attempt(self, name: str, broker: Broker) -> LoginError:
        """Try to obtain a token, and return the error that counts without one."""
        try:
            async with asyncio.timeout(MAX_WAIT):
                await self._obtain(name, broker)
        except TimeoutError:
            return LimitError(f"there was no delegation token within {MAX_WAIT:g} s")
        except LoginError as error:
            return error
        except BrokerFault as fault:
            return LoginError(fault.reason)
        finally:
            del self._waits[broker][name]
        return LoginError(f"broker {host_port(*broker)} does not know its delegation token")

    async def _obtain(self, name: str, broker: Broker) -> None:
        """Find or create a token, and wait until the broker knows it.

        Raises BrokerFault and LoginError.
        """
        look = self._lookups.get(broker)
        if look is None:
            turns = asyncio.Semaphore(self._max_unknown)
            look = Lookup(broker, self._access, self._own, self._tokens, turns)
            self._lookups[broker] = look
        self._tokens.check(name, monotonic())
        await look.request(name)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if self._tokens.fresh(name, monotonic()) is None:
                await self._create_in_turn(name, look)
        await self._until_known(name, look)

    async def _create_in_turn(self, name: str, look: Lookup) -> None:
        """Create a token unless another worker does meanwhile; wait until the broker knows it."""
        began = monotonic()
        async with look.turns:
            await asyncio.sleep(self._tokens.reserve(name, monotonic()))
            if monotonic() - began > POLL_SECONDS:
                await look.request(name)
                if self._tokens.fresh(name, monotonic()) is not None:
                    return
            try:
                await ask(*look.broker, self._access, partial(self._create, name))
            except BrokerFault as fault:
                self._tokens.failed(name, fault.reason, monotonic())
                raise
            self._settling.add(asyncio.get_running_loop().create_task(self._settle(name, look)))
            created_at = monotonic()
            if await self._until_known(name, look):
                metric = registry.DELEGATION_TOKEN_PROPAGATION
                self._propagation.observe(metric, monotonic() - created_at)

    async def _until_known(self, name: str, look: Lookup) -> bool:
        """Wait until the broker knows the token; return whether it does in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PROPAGATION_SECONDS):
                while self._tokens.is_awaited(name, look.broker, monotonic()):
                    await look.request(name)
        return self._tokens.usable(name, look.broker, monotonic()) is not None

    async def _settle(self, name: str, look: Lookup) -> None:
        """Use the token of another worker that created one at the same time, if it lasts longer."""
        await asyncio.sleep(SETTLE_SECONDS)
        with suppress(BrokerFault):
            await look.request(name)
        self._settling.discard(asyncio.current_task())

    async def _create(self, name: str, connection: ServiceConnection) -> None:
        asked_at = monotonic()
        token = await created(connection, name, self._own)
        self._tokens.created(name, token, asked_at, monotonic())


async def created(connection: ServiceConnection, name: str, own: str) -> Token:
    """Create a token that `User:name` owns and `User:own`, the proxy, may expire.

    Raises BrokerFault.
    """
    renewer = messages.CreateDelegationTokenRequest.CreatableRenewers
    request = messages.CreateDelegationTokenRequest(
        owner_principal_type=_USER,
        owner_principal_name=name,
        renewers=(renewer(principal_type=_USER, principal_name=own),),
        max_lifetime_ms=LIFETIME_MS,
    )
    answer = await connection.asked(VERSION, request, messages.CreateDelegationTokenResponse)
    _check("CreateDelegationToken", answer.error_code, name, own)
    if (answer.principal_type, answer.principal_name) != (_USER, name):
        raise BrokerFault("CreateDelegationToken: the token has another owner")
    return Token(
        answer.token_id, answer.hmac, answer.issue_timestamp_ms, answer.expiry_timestamp_ms
    )


async def described(
    connection: ServiceConnection, names: Iterable[str], own: str
) -> dict[str, list[Token]]:
    """Return the tokens of each `User:name` that the proxy, `User:own`, created.

    Raises BrokerFault.
    """
    owner = messages.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    owners = tuple(owner(principal_type=_USER, principal_name=name) for name in names)
    request = messages.DescribeDelegationTokenRequest(owners=owners)
    answer = await connection.asked(VERSION, request, messages.DescribeDelegationTokenResponse)
    _check("DescribeDelegationToken", answer.error_code, "", own)
    found: dict[str, list[Token]] = {name: [] for name in names}
    for one in answer.tokens:
        is_ours = one.principal_type == _USER and one.token_requester_principal_name == own
        if is_ours and one.principal_name in found:
            token = Token(one.token_id, one.hmac, one.issue_timestamp, one.expiry_timestamp)
            found[one.principal_name].append(token)
    return found


async def expire(
    connection: ServiceConnection, tokens: Iterable[Token], name: str, own: str
) -> None:
    """Expire tokens of `User:name` that the proxy, `User:own`, created. Raises BrokerFault."""
    for token in tokens:
        request = messages.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        response = messages.ExpireDelegationTokenResponse
        answer = await connection.asked(EXPIRE_VERSION, request, response)
        if answer.error_code not in _GONE:  # another worker may expire it, too
            _check("ExpireDelegationToken", answer.error_code, name, own)


def _check(api: str, error_code: int, name: str, own: str) -> None:
    if error_code == ErrorCode.NONE:
        return
    shown = next((one.name for one in ErrorCode if one == error_code), f"error {error_code}")
    if (cause := _CAUSES.get(error_code)) is not None:
        shown += f": {cause.format(own=own, name=name)}"
    is_denied = error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    raise (TokenDenied if is_denied else BrokerFault)(f"{api}: {shown}")
