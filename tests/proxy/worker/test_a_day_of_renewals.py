"""24 simulated hours: credentials that rotate each minute, and tokens of 15 minutes."""

import asyncio
import random
import re
import selectors
import struct
import time
from collections import Counter
from typing import Final

from proxy.brokers.access import TokenIdentity
from proxy.brokers.token_source import RenewedTokens
from proxy.connection.commands import GetIdentity
from proxy.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.worker.slots import Pace
from sasl.states import Enforcement
from tests.support.frames import fetch, response
from tests.support.playbook import Playbook, logged_in
from tests.support.sasl import NOW
from tests.support.upstream import identify, lets_in, offers

DAY: Final = 86_400.0
TOKEN_SECONDS: Final = 900.0
CLIENTS: Final = 20
RATE: Final = 10


class Jumping(selectors.SelectSelector):
    """A selector that waits by setting the clock forward."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class Cloud(RenewedTokens):
    """Tokens signed with the credentials of the minute; in each hour it fails for four minutes."""

    async def _load(self) -> tuple[object, float | None]:
        now = asyncio.get_running_loop().time()
        if now % 3600 >= 3360:
            raise OSError("the metadata service does not answer")
        return f"gate.{now // 60:.0f}.{now + TOKEN_SECONDS:.3f}", time.time() + TOKEN_SECONDS


class Brokers:
    """Brokers whose sessions end with the token, and that close on a request after the end."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.principals = set[str]()
        self.keys = set[str]()
        self.logins = Counter[int]()
        """New connections that logged in, by second."""
        self.renewals = Counter[int]()

    def answer(self, client: int, frame: bytes, now: float) -> bytes:
        api_key, _, number = struct.unpack_from(">hhi", frame)
        if api_key == SASL_HANDSHAKE:
            return offers("OAUTHBEARER")
        if api_key != SASL_AUTHENTICATE:
            assert now <= self.ends[client], "the session has ended"
            return response(number)
        found = re.search(rb"auth=Bearer (\w+)\.(\d+)\.([\d.]+)\x01", frame)
        assert found is not None
        principal, key, ends = (one.decode() for one in found.groups())
        left = float(ends) - now
        assert left > 0, "the token has expired"
        second = int(round(now, 6))  # ten times 0.1 is less than 1
        (self.renewals if client in self.ends else self.logins)[second] += 1
        self.ends[client] = now + left
        self.principals.add(principal)
        self.keys.add(key)
        return lets_in(int(left * 1000))


class Client:
    """A client that sends a request now and then, over the proxy's connection."""

    def __init__(self, number: int, identity: TokenIdentity, brokers: Brokers) -> None:
        self._number, self._identity, self._brokers = number, identity, brokers
        self.play = logged_in(
            Playbook(logs_in=True, enforcement=Enforcement.OBSERVE, enforces_token_expiry=False)
        )
        self._seen = self._carried = 0

    async def run(self) -> None:
        loop, pauses = asyncio.get_running_loop(), random.Random(self._number)  # noqa: S311
        sent = 2
        while loop.time() < DAY:
            sent += 1
            self.play.now = NOW + loop.time()
            self.play.client(fetch(sent))
            await self._settle(loop.time())
            assert not self.play.connection.closed, "|".join(self.play.log[-8:])
            assert self.play.owed == []
            await asyncio.sleep(pauses.uniform(30, 500))

    async def _settle(self, now: float) -> None:
        """Pass requests and responses until none is left."""
        play = self.play
        while True:
            commands, self._carried = play.commands[self._carried :], len(play.commands)
            if any(isinstance(one, GetIdentity) for one in commands):
                identify(play, await self._identity.exchange())
                continue
            frames = bytes(play.to_broker[self._seen :])
            if not frames:
                return
            (size,) = struct.unpack_from(">i", frames)
            self._seen += 4 + size
            play.broker(self._brokers.answer(self._number, frames[4 : 4 + size], now))


def test_no_connection_is_lost() -> None:
    async def day() -> tuple[Brokers, Cloud]:
        tokens, brokers = Cloud("cloud"), Brokers()
        renewing = asyncio.create_task(tokens.run())
        pace = Pace(RATE, 1, asyncio.get_running_loop().call_later)
        clients = list[asyncio.Task[None]]()
        for number in range(CLIENTS):
            client = Client(number, TokenIdentity(tokens), brokers)

            def connect(client: Client = client) -> None:
                clients.append(asyncio.create_task(client.run()))

            pace.acquire(number, "all", connect)
        await asyncio.sleep(CLIENTS / RATE)
        await asyncio.gather(*clients)
        renewing.cancel()
        return brokers, tokens

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        brokers, tokens = runner.run(day())
    assert brokers.principals == {"gate"}
    assert len(brokers.keys) >= DAY / TOKEN_SECONDS
    assert brokers.logins.total() == CLIENTS, "a connection was replaced"
    assert max(brokers.logins.values()) <= RATE
    assert brokers.renewals.total() >= CLIENTS * DAY / TOKEN_SECONDS
    assert max(brokers.renewals.values()) <= RATE
    assert tokens.refresh_failures >= 24
