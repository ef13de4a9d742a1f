"""One connection under quotas, what it asks and is answered, and rights for one topic."""

from collections.abc import Callable
from typing import Any

from proxy.acl.topic_ids import KnownTopics
from proxy.config import Quotas
from proxy.connection.authorization import RequestAuthorization
from proxy.connection.connection import Connection
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable
from proxy.quota.window import WindowConfig
from proxy.wire.codec import decode, encode, response_type
from proxy.worker.quota_service import QuotaService
from tests.proxy.acl.guards.given import Rights
from tests.proxy.frames_given import response
from tests.proxy.playbook import Play, everything, logged_in
from tests.proxy.quota.given import MemoryStore
from tests.proxy.wire.instances import large, small

ALICE = QuotaEntity(user="alice")
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
RATE = 1_000.0
"""Bytes per second: 10,000 and what the sample under way has gathered can pass at once."""
PLAIN = frozenset[int]()


class Quoted:
    """A logged-in connection of alice, the store of quotas, and the worker's second of time."""

    def __init__(
        self,
        limits: dict[QuotaKey, float],
        *,
        mode: str = "enforce",
        rewritten: frozenset[int] = PLAIN,
        rights: Any = None,
        clock: Callable[[], int] = lambda: 0,
        **more: Any,
    ) -> None:
        self.store = MemoryStore()
        self.store.alter_quotas({ALICE: limits})
        self.service = QuotaService(
            Quotas.model_validate({"mode": mode}),
            self.store,
            UsageTable(1, WindowConfig(), rows=64),
            0,
            clock=clock,
        )
        offer = everything(rewritten=rewritten, metered=True)
        self.play = Play(quotas=self.service, offer=offer, rights=rights, **more)
        # the first moment of a sample, so that the window is ten seconds long
        self.play.now = float(int(self.play.now))
        logged_in(self.play)

    def tick(self) -> None:
        self.service.read()
        if self.service.take_over():
            self.play.tell(self.service.changed)

    @property
    def told(self) -> Any:
        """The last response, decoded by what it answers."""
        frame = self.play.received[-1]
        key, version = self.play.asked[int.from_bytes(frame[:4])]
        return decode(response_type(key, version), frame[5:])

    @property
    def throttle_time_ms(self) -> int:
        told: float = self.told.throttle_time.total_seconds()
        return round(told * 1_000)


def answer(key: int, version: int, correlation_id: int, *, filled: bool = False) -> bytes:
    make = large if filled else small
    return response(correlation_id, b"\0" + encode(make(response_type(key, version))))


FETCH_BODIES = {"short": 100, "long": 300_000}


def fetched(correlation_id: int, size: int) -> bytes:
    return response(correlation_id, b"\0" + b"\0\0\0\0" + b"f" * size)


class Judged:
    """Rights for one topic, as the authorizer gives them."""

    def __init__(self, *allowed: Any) -> None:
        self.rights = Rights(frozenset().union(*allowed))
        self.topics: KnownTopics = {}

    def admit(self, connection: Connection, _principal: str) -> RequestAuthorization:
        return RequestAuthorization(self.rights, self.topics, forget=connection.pipe.forget)

    def is_super_user(self, _principal: str) -> bool:
        return False
