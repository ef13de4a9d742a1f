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
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

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
"""Maximum number of a listener's logins that wait for a token at one broker, in all workers
together."""
MAX_ASKING: Final = 32
"""Maximum number of connections at a time on which a listener's worker asks a broker for tokens."""
MAX_WAIT: Final = 60.0
"""Longest time in seconds that a login waits for a token."""
PROPAGATION_SECONDS: Final = 30.0
"""Longest time in seconds until a broker knows a token that was created."""
POLL_SECONDS: Final = 0.1
"""Seconds between two questions whether a broker knows a token."""
FAILURE_SECONDS: Final = 5.0
"""Seconds for which a failure to create a token is the answer to later logins."""
LAST_SECONDS: Final = 30.0
"""Remaining life in seconds below which a token is not used even if no other can be created."""
VERSION: Final = 3
"""Version of the requests: the first with an owner (KIP-373)."""

_USER: Final = USER_TYPE.removesuffix(":")
_CAUSES: Final[Mapping[int, str]] = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key at all brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "the proxy must log in to brokers with SASL, and not with a delegation token"
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: (
        "User:{own} needs the operation CreateTokens on the user User:{name}"
    ),
}


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

    def _left(self, token: Token, now: float) -> float:
        """Return the remaining life in seconds."""
        return (token.expires_ms - self._offset_ms) / 1000 - now

    def _is_fresh(self, token: Token, now: float) -> bool:
        """Return whether more than half of its life remains."""
        return self._left(token, now) > (token.expires_ms - token.issued_ms) / 2000

    def fresh(self, name: str, now: float) -> Token | None:
        """Return the token to use at brokers that know it; None if one must be created."""
        token = self._tokens.get(name)
        return token if token is not None and self._is_fresh(token, now) else None

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
        """Take note of all tokens of an owner that a broker shows. Raises LoginError."""
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

    def check(self, name: str, now: float) -> None:
        """Raise LoginError if no token could be created lately."""
        until, reason = self._failures.get(name, (now, ""))
        if until > now:
            raise LoginError(reason)

    def reserve(self, name: str, now: float) -> float:
        """Return the seconds after which a token may be created for an owner. Raises LoginError."""
        self.check(name, now)
        self._make_room(name, now)
        begins = max(self._next_at, now)
        if begins - now > MAX_WAIT:
            raise LoginError(f"more than {MAX_PER_SECOND} delegation tokens per second are needed")
        self._next_at = begins + self._interval
        return begins - now

    def created(self, name: str, token: Token, asked_at: float, now: float) -> None:
        """Use a token that was created; it was requested at `asked_at`. Raises LoginError."""
        self._offset_ms = token.issued_ms - asked_at * 1000
        self._is_exact = True
        self._failures.pop(name, None)
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

    def _put(self, name: str, token: Token, now: float) -> None:
        self._make_room(name, now)
        token.since = now
        self._tokens[name] = token

    def _make_room(self, name: str, now: float) -> None:
        if name in self._tokens or len(self._tokens) < self._max_tokens:
            return
        self._tokens = {k: one for k, one in self._tokens.items() if self._left(one, now) > 0}
        if len(self._tokens) >= self._max_tokens:
            raise LoginError(f"{MAX_TOKENS} principals have delegation tokens already")


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
        self._waiting: Counter[Broker] = Counter()
        self._locks: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()
        self._gates: WeakValueDictionary[Broker, asyncio.Semaphore] = WeakValueDictionary()

    async def exchange(self, name: str, broker: Broker) -> ClientExchange:
        """Begin a login for `User:name`. Raises LoginError."""
        if not name.isprintable():  # which includes what is not text
            raise LoginError("its name has characters that cannot be printed")
        token = self._tokens.usable(name, broker, monotonic())
        if token is None:
            token = await self._wait(name, broker)
        password = base64.b64encode(token.hmac).decode()
        return ScramClient(self._mechanism, token.id, password, token.salted, is_token=True)

    def failed(self, name: str, broker: Broker) -> None:
        """Take note that a broker refused a login: the token may have been expired by somebody."""
        self._tokens.doubt(name, broker)

    async def _wait(self, name: str, broker: Broker) -> Token:
        if self._waiting[broker] >= self._max_waiting:
            where = host_port(*broker)
            raise LoginError(f"too many logins wait for delegation tokens at broker {where}")
        self._waiting[broker] += 1
        lock = self._locks.setdefault((name, broker), asyncio.Lock())
        try:
            async with asyncio.timeout(MAX_WAIT), lock:
                if self._tokens.usable(name, broker, monotonic()) is None:
                    await self._obtain(name, broker)
        except TimeoutError:
            fault = f"there was no delegation token within {MAX_WAIT:g} s"
        except (BrokerFault, LoginError) as error:
            fault = error.reason
        else:
            fault = f"broker {host_port(*broker)} does not know its delegation token"
        finally:
            self._waiting[broker] -= 1
            if not self._waiting[broker]:
                del self._waiting[broker]
        now = monotonic()
        token = self._tokens.usable(name, broker, now)
        token = token or self._tokens.last_resort(name, broker, now)
        if token is None:
            raise LoginError(fault)
        return token

    async def _obtain(self, name: str, broker: Broker) -> None:
        """Find or create a token, and wait until the broker knows it.

        Raises BrokerFault and LoginError.
        """
        self._tokens.check(name, monotonic())
        look = partial(self._look, name, broker)
        await self._ask(broker, look)
        if self._tokens.usable(name, broker, monotonic()) is not None:
            return
        async with self._locks.setdefault(name, asyncio.Lock()):
            if self._tokens.fresh(name, monotonic()) is None:
                await asyncio.sleep(self._tokens.reserve(name, monotonic()))
                try:
                    await self._ask(broker, partial(self._create, name))
                except BrokerFault as fault:
                    self._tokens.failed(name, fault.reason, monotonic())
                    raise
        await self._ask(broker, look)

    async def _ask(
        self, broker: Broker, question: Callable[[ServiceConnection], Awaitable[None]]
    ) -> None:
        async with self._gates.setdefault(broker, asyncio.Semaphore(MAX_ASKING)):
            await ask(*broker, self._access, question)

    async def _look(self, name: str, broker: Broker, connection: ServiceConnection) -> None:
        """Ask a broker for the owner's tokens, until it shows the one in use if there is one."""
        while True:
            shown = await described(connection, name, self._own)
            now = monotonic()
            self._tokens.shown(name, broker, shown, now)
            if self._tokens.fresh(name, now) is None or self._tokens.usable(name, broker, now):
                return
            await asyncio.sleep(POLL_SECONDS)

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


async def described(connection: ServiceConnection, name: str, own: str) -> list[Token]:
    """Return the tokens of `User:name` that the proxy, `User:own`, created. Raises BrokerFault."""
    owner = messages.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    request = messages.DescribeDelegationTokenRequest(
        owners=(owner(principal_type=_USER, principal_name=name),)
    )
    answer = await connection.asked(VERSION, request, messages.DescribeDelegationTokenResponse)
    _check("DescribeDelegationToken", answer.error_code, name, own)
    return [
        Token(one.token_id, one.hmac, one.issue_timestamp, one.expiry_timestamp)
        for one in answer.tokens
        if (one.principal_type, one.principal_name) == (_USER, name)
        and one.token_requester_principal_name == own
    ]


def _check(api: str, error_code: int, name: str, own: str) -> None:
    if error_code == ErrorCode.NONE:
        return
    shown = next((one.name for one in ErrorCode if one == error_code), f"error {error_code}")
    if (cause := _CAUSES.get(error_code)) is not None:
        shown += f": {cause.format(own=own, name=name)}"
    raise BrokerFault(f"{api}: {shown}")
