"""Brokers with scripted answers, and mirrors of their ACLs and quotas."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.acl.model import Acl
from proxy.brokers.access import open_access
from proxy.config import Config
from proxy.handlers import quotas as quota_api
from proxy.quota.model import QuotaEntity, QuotaKey, Quotas
from proxy.store import Store
from proxy.store.brokers import follower as follower_module
from proxy.store.brokers.follower import Follower
from proxy.store.interface import Mirror
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import MemoryAclStore
from tests.support.fake_broker import ESCAPES, Body, Peer
from tests.support.messages import response, written
from tests.support.processes import PATIENCE_SECONDS
from tests.support.settings import SCRAM, configured

DESCRIBE_ACLS, DESCRIBE_QUOTAS = 29, 48
CREATE, DELETE, ALTER_QUOTAS = 30, 31, 49
NAME, PASSWORD = "gate", "gate-secret,=1"
ALICE, BOB = QuotaEntity(user="alice"), QuotaEntity(user="bob")
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
LIE = f"{ESCAPES}{PASSWORD}"
"""A broker's error text with terminal escapes."""


def broker(*acls: Acl, handlers: dict[int, Body] | None = None, **more: Any) -> Peer:
    """A correct broker; `handlers` override some APIs."""
    peer = Peer(acl_store=MemoryAclStore(*acls), **more)
    peer.versions[ALTER_QUOTAS] = (0, 1)

    def alter(version: int, body: bytes) -> bytes:
        return quota_api.answer(ALTER_QUOTAS, version, body, peer.quotas, authorized=peer.rights)

    peer.handlers = {ALTER_QUOTAS: alter, **(handlers or {})}
    return peer


def settings_of(address: str, directory: Path, login: bool = False, **more: Any) -> Config:
    """Settings of a proxy whose ACLs and quotas are stored at the broker of this address."""
    upstream: dict[str, Any] = {"bootstrap.servers": address}
    if login:
        (directory / "password").write_text(PASSWORD)
        upstream |= {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": NAME,
            "sasl.password": f"file:{directory / 'password'}",
        }
    timeout = {"socket.connection.setup.timeout.ms": more.pop("timeout_ms", 60_000)}
    sections = {
        "store": {"url": "broker:state.db", "refresh.ms": more.pop("refresh_ms", 5_000)},
        "authorizer": {"mode": more.pop("authorizer", "enforce")},
        "quotas": {"mode": more.pop("quotas", "enforce")},
    }
    assert not more
    return configured(directory, SCRAM, upstream | timeout, **sections)


def shown(mirror: Store) -> tuple[list[Acl], Quotas]:
    return list(mirror.acl_snapshot().acls), mirror.quota_snapshot().quotas


def known(mirror: SqliteMirror) -> Mirror:
    state = mirror.mirror()
    assert state is not None
    return state


def following(mirror: SqliteMirror, address: str, **more: Any) -> Follower:
    settings = settings_of(address, mirror._path.parent, **more)
    return Follower(mirror, settings, open_access(settings.upstream, None))


@asynccontextmanager
async def followed(peer: Peer, mirror: SqliteMirror, **more: Any) -> AsyncIterator[Follower]:
    async with asyncio.timeout(2 * PATIENCE_SECONDS), peer:
        follower = following(mirror, peer.address, **more)
        try:
            yield follower
        finally:
            await follower._admin.close()


@dataclass
class Pauses:
    """Skips pauses, and ends the follower after a number of them."""

    most: int
    taken: list[float] = field(default_factory=list)
    meanwhile: Callable[[int], None] = lambda _: None
    """Called with the number of pauses taken."""

    async def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.meanwhile(len(self.taken))
        if len(self.taken) == self.most:
            raise asyncio.CancelledError

    async def run(self, follower: Follower) -> list[float]:
        with pytest.MonkeyPatch.context() as patch, suppress(asyncio.CancelledError):
            patch.setattr(follower_module, "asyncio", SimpleNamespace(sleep=self.sleep))
            await follower.run()
        return self.taken


Entry = tuple[list[tuple[str, str | None]], dict[str, float]]


def quotas_answer(*entries: Entry, error: ErrorCode = ErrorCode.NONE) -> Body:
    reported = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
            "values": [{"key": key, "value": number} for key, number in values.items()],
        }
        for parts, values in entries
    ]
    return lambda version, _: written(
        response(DESCRIBE_QUOTAS, version, error_code=error, error_message=LIE, entries=reported)
    )


def hangs_up(_version: int, _body: bytes) -> bytes | None:
    return None
