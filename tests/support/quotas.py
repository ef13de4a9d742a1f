"""Connections under quotas, and a quota store in memory."""

import uuid
from collections.abc import Callable
from itertools import islice
from sys import maxsize
from typing import Any

import pytest

from proxy.config import Quotas
from proxy.connection.connection import Connection
from proxy.handlers import quotas as quota_api
from proxy.quota.model import Changes, QuotaEntity, QuotaKey, QuotaSnapshot, altered
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
    is_flexible,
    response_header_version,
)
from proxy.wire.error_codes import ErrorCode
from proxy.worker.quota_service import QuotaService
from tests.support import messages
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.messages import large, request_body, small
from tests.support.playbook import Playbook, everything, logged_in, whole_frame
from tests.support.sasl import WALL

# An in-memory store: the plain implementation of `QuotaStore`


class MemoryStore:
    """An in-memory store of quotas."""

    def __init__(self) -> None:
        self._version = 0
        self.quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}

    def quota_version(self) -> int:
        return self._version

    def quota_snapshot(self) -> QuotaSnapshot:
        return QuotaSnapshot(version=self._version, quotas=self.quotas)

    def alter_quotas(self, changes: Changes) -> None:
        self.quotas = altered(self.quotas, changes)
        self._version += 1


# A connection under quotas, its requests and responses

ALICE = QuotaEntity(user="alice")
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
RATE = 1_000.0
"""Bytes per second; 10,000 bytes plus the current sample's share can pass at once."""
PLAIN = frozenset[int]()


class Quoted:
    """A logged-in connection of alice under quotas, and their store."""

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
        self.play = Playbook(quotas=self.service, offer=offer, rights=rights, **more)
        # start of a sample, so that the window is ten seconds long
        self.play.now = float(int(self.play.now))
        logged_in(self.play, exp=WALL + 100_000)

    def tick(self) -> None:
        self.service.read()
        if self.service.take_over():
            self.play.call(Connection.apply_quotas)

    @property
    def reported(self) -> Any:
        """The last response, decoded."""
        frame = self.play.received[-1]
        key, version = self.play.asked[int.from_bytes(frame[:4])]
        return decode(response_type(key, version), frame[5:])

    @property
    def throttle_time_ms(self) -> int:
        reported: float = self.reported.throttle_time.total_seconds()
        return round(reported * 1_000)


def answer(key: int, version: int, correlation_id: int, *, filled: bool = False) -> bytes:
    make = large if filled else small
    return response(correlation_id, b"\0" + encode(make(response_type(key, version))))


def fetched(correlation_id: int, size: int) -> bytes:
    return response(correlation_id, b"\0" + b"\0\0\0\0" + b"f" * size)


# controller_mutation_rate: a connection, and a broker that creates topics

MUTATION_RATE = QuotaKey.CONTROLLER_MUTATION_RATE
NONE, EXISTS, EXCEEDED = (
    ErrorCode.NONE,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
)
T1 = uuid.UUID(int=1)


class Broker:
    """A broker that creates and deletes topics according to the frames it receives."""

    def __init__(self, play: Playbook) -> None:
        self._play = play
        self._seen = 0
        self.topics: dict[str, tuple[uuid.UUID | None, int]] = {}
        self.fails: dict[str, ErrorCode] = {}
        self.default = 1
        """`num.partitions`."""
        self.asked: list[tuple[int, Any]] = []
        """API key and body of each request."""

    def answer(self, most: int = maxsize) -> None:
        """Answer all requests, including follow-up requests, but no more than `most`."""
        frames = iter(lambda: whole_frame(self._play.to_broker, self._seen), None)
        for frame in islice(frames, most):
            self._seen += 4 + len(frame)
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            at = 10 + int.from_bytes(frame[8:10]) + is_flexible(key, version)
            body = decode(request_type(key, version), frame, at)
            self.asked.append((key, body))
            header = b"\0" * response_header_version(key, version)
            answer = encode(self._answer(key, version, body))
            self._play.broker(response(int.from_bytes(frame[4:8]), header + answer))

    def _answer(self, key: int, version: int, body: Any) -> Any:
        if key == METADATA:
            return self._metadata(version, body)
        results = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses"}.get(key, "results")
        items = body.topic_names if hasattr(body, "topic_names") else body.topics
        return messages.response(
            key, version, **{results: [self._result(key, one) for one in items]}
        )

    def _metadata(self, version: int, body: Any) -> Any:
        by_id = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        found = []
        for one in body.topics:
            name = one.name if one.name is not None else by_id.get(one.topic_id)
            topic_id, count = self.topics.get(str(name), (None, 0))
            error = NONE if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions = [
                {"partition_index": index, "leader_id": 1, "replica_nodes": (1,), "isr_nodes": (1,)}
                for index in range(count)
            ]
            found.append(
                {"error_code": error, "name": name, "topic_id": topic_id, "partitions": partitions}
            )
        return messages.response(METADATA, version, controller_id=1, topics=found)

    def _result(self, key: int, item: Any) -> dict[str, Any]:
        name = item if isinstance(item, str) else item.name
        result: dict[str, Any] = {
            "name": name,
            "topic_id": getattr(item, "topic_id", None),
            "error_code": self.fails.get(name or "", NONE),
            "error_message": None,
            "configs": [],
        }
        if key == CREATE_TOPICS and result["error_code"] == NONE:
            result["num_partitions"] = (
                item.num_partitions if item.num_partitions > 0 else self.default
            )
        return result


class Limited:
    """A logged-in connection of alice with a rate of 1 partition per second."""

    def __init__(self, *, mode: str = "enforce", rights: Any = None, rate: float = 1.0) -> None:
        self.store = MemoryStore()
        self.store.alter_quotas({ALICE: {MUTATION_RATE: rate}})
        table = UsageTable(1, WindowConfig(), rows=64)
        self.service = QuotaService(Quotas.model_validate({"mode": mode}), self.store, table, 0)
        offer = everything(rewritten=frozenset(), metered=True)
        self.play = Playbook(quotas=self.service, offer=offer, rights=rights)
        self.play.now = float(int(self.play.now))
        logged_in(self.play)
        self.broker = Broker(self.play)
        self._ids = iter(range(10, 1_000))

    def ask(self, key: int, version: int, body: Any) -> Any:
        """Send a request; return the decoded response."""
        self.send(key, version, body)
        self.broker.answer()
        return self.reported(key, version)

    def send(self, key: int, version: int, body: Any) -> None:
        self.play.client(request(key, version, next(self._ids), encode(body)))

    def reported(self, key: int, version: int) -> Any:
        frame = self.play.received[-1]
        return decode(response_type(key, version), frame, 4 + response_header_version(key, version))

    def create(self, *topics: tuple[str, int], version: int = 7, validate: bool = False) -> Any:
        return self.ask(CREATE_TOPICS, version, created(version, *topics, validate=validate))

    @property
    def forwarded(self) -> list[int]:
        """API keys of requests to the broker except Metadata."""
        return [key for key, _ in self.broker.asked if key != METADATA]

    @property
    def tokens(self) -> float:
        bucket = self.service._quotas.bucket("User:alice", "app")
        assert bucket is not None
        return bucket.tokens(self.play.now)

    @property
    def count(self) -> Any:
        (count,) = self.service._quotas.counts.values()
        return count


def created(version: int, *topics: tuple[str, int], validate: bool = False) -> Any:
    entries = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1}
        for name, partitions in topics
    ]
    return messages.request(
        CREATE_TOPICS, version, topics=entries, timeout=0, validate_only=validate
    )


def deleted(version: int, *keys: str | uuid.UUID) -> Any:
    entries = [{"topic_id" if isinstance(key, uuid.UUID) else "name": key} for key in keys]
    return messages.request(DELETE_TOPICS, version, topic_names=keys, topics=entries, timeout=0)


def errors(answer: Any) -> dict[Any, ErrorCode]:
    results = getattr(answer, "responses", getattr(answer, "results", None))
    listed = answer.topics if results is None else results
    return {one.name or one.topic_id: one.error_code for one in listed}


def throttle_time_ms(answer: Any) -> int:
    seconds: float = answer.throttle_time.total_seconds()
    return round(seconds * 1_000)


Parts = list[tuple[str, str | None]]


Op = tuple[str, float | None]


VERSIONS = pytest.mark.parametrize("version", [0, 1])


def alter_request(
    entries: list[tuple[Parts, list[Op]]], *, validate_only: bool = False, version: int = 1
) -> bytes:
    return request_body(
        ALTER_CLIENT_QUOTAS,
        version,
        validate_only=validate_only,
        entries=[
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
                "ops": [
                    {"key": key, "value": value or 0.0, "remove": value is None}
                    for key, value in ops
                ],
            }
            for parts, ops in entries
        ],
    )


def alter(
    store: MemoryStore, *entries: tuple[Parts, list[Op]], authorized: bool = True, **more: Any
) -> list[tuple[str, str | None]]:
    version = more.get("version", 1)
    body = quota_api.answer(
        ALTER_CLIENT_QUOTAS,
        version,
        alter_request(list(entries), **more),
        store,
        authorized=authorized,
    )
    response = decode(response_type(ALTER_CLIENT_QUOTAS, version), body)
    return [(one.error_code.name, one.error_message) for one in response.entries]


def describe(
    store: MemoryStore,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
    authorized: bool = True,
) -> Any:
    wanted = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]
    body = request_body(DESCRIBE_CLIENT_QUOTAS, version, components=wanted, strict=strict)
    reported = quota_api.answer(DESCRIBE_CLIENT_QUOTAS, version, body, store, authorized=authorized)
    response = decode(response_type(DESCRIBE_CLIENT_QUOTAS, version), reported)
    if response.error_code.value:
        assert response.entries is None
        return response.error_code.value, response.error_message
    assert response.error_message == ""
    return [
        "+".join(f"{part.entity_type}:{part.entity_name}" for part in entry.entity)
        for entry in response.entries
    ]


DONE = ("none", None)
