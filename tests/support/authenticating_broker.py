"""A fake broker that authenticates clients with SCRAM, and a client for it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from proxy.wire.apis import API_VERSIONS, METADATA
from sasl.credentials import ScramMechanism
from sasl.login import ScramClient
from tests.support.fake_broker import Peer, _Conversation
from tests.support.frames import authenticate, handshake, metadata, read_authenticated
from tests.support.playbook import SCRAM
from tests.support.relay import read_frame


@dataclass(eq=False)
class Authenticator(Peer):
    """A broker with users that answers Metadata after a login."""

    passwords: dict[str, str] | None = field(default_factory=lambda: {"alice": "secret"})

    def _accepted(self) -> Any:
        conversation = _Conversation(self)

        def answer(key: int, version: int, body: bytes) -> bytes | None:
            if key == API_VERSIONS and conversation._authenticated:
                return self.respond(key, version, body)  # Kafka only checks the ids then
            if key != METADATA:
                return conversation.answer(key, version, body)
            assert conversation._authenticated, "a request of nobody"
            return self._metadata(version)

        return answer


class Client:
    """A client of the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._number = 0

    def next_id(self) -> int:
        self._number += 1
        return self._number

    async def ask(self, frame: bytes) -> bytes:
        self.writer.write(frame)
        return await read_frame(self.reader)

    async def log_in(self, password: str = "secret", user: str = "alice") -> int:  # noqa: S107 - made up
        """Log in or re-authenticate with SCRAM; return the lifetime, or minus the error code."""
        await self.ask(handshake(self.next_id(), SCRAM))
        scram = ScramClient(
            mechanism=ScramMechanism.SCRAM_SHA_256, username=user, password=password
        )
        first = await self.ask(authenticate(self.next_id(), scram.first()))
        _, _, challenge, _ = read_authenticated(first, 1)
        final = await self.ask(authenticate(self.next_id(), scram.final(challenge)))
        error, _, proof, lifetime_ms = read_authenticated(final, 1)
        if error:
            return -error
        scram.verify(proof)
        assert lifetime_ms is not None
        return lifetime_ms

    async def metadata(self) -> None:
        number = self.next_id()
        answer = await self.ask(metadata(number))
        assert int.from_bytes(answer[:4]) == number

    async def is_closed(self) -> bool:
        with suppress(ConnectionError):
            return not await self.reader.read(1)
        return True
