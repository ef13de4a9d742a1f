"""Exchanges of several requests in the differential test of ACLs.

Each has a user and resources of its own, and ACLs that it may change while it runs.
"""

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from tests.support.kafka.acl_differential.comparison import Normal
from tests.support.kafka.acl_differential.profiles import Names, creation
from tests.support.kafka.acl_differential.side import Side
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.wire_client import Outcome, record_batch
from tests.support.messages import Values

# Where the conversations of the ACL test take place: a connection, and what was seen on it


class Stage:
    """One script at work: its connection and what it has seen."""

    def __init__(self, side: Side, script: str) -> None:
        self.side = side
        self.names = Names(side.name, script)
        self.acls = SCRIPTS[script].acls
        self.client = side.client(self.names.user)
        self.lines: list[str] = []
        self._normal = Normal(self.names, side.topics)

    def ask(self, label: str, api_key: int, version: int, fields: Values) -> Any:
        """Sends a request and writes the answer down."""
        answer = self.client.ask(api_key, version, fields)
        self.see(f"{label} v{version}", self.text(api_key, answer))
        return answer

    def text(self, api_key: int, answer: Any) -> str:
        """An answer, or what came instead."""
        if isinstance(answer, Outcome):
            return answer.value
        return self._normal.text(api_key, answer)

    def see(self, label: str, seen: object) -> None:
        """Writes something down."""
        self.lines.append(f"{label}: {seen}")

    def topics(self, *shorts: str, **more: Any) -> list[dict[str, Any]]:
        """Items by name and by id."""
        return [
            {"name": name, "topic": name, "topic_id": self.side.topic_id(name), **more}
            for name in map(self.names, shorts)
        ]

    def grant(self, *acls: str) -> None:
        """Creates ACLs for the user."""
        self.side.create_acls(self._entries(acls))

    def take(self, *acls: str) -> None:
        """Deletes them."""
        self.side.delete_acls(self._entries(acls))

    def wait_until(self, topic: str, *, is_allowed: bool) -> None:
        """Until the user sees the topic or does not."""
        self.side.wait_until_allowed(self.names.user, self.names(topic), is_allowed=is_allowed)

    def end_offset(self, topic: str) -> int:
        """The broker's own word."""
        partitions = [{"partition_index": 0, "timestamp": -1}]
        fields = {"replica_id": -1, "topics": self.topics(topic, partitions=partitions)}
        return int(self.side.as_broker(2, 5, fields).topics[0].partitions[0].offset)

    def _entries(self, acls: Sequence[str]) -> list[Values]:
        return [creation(acl, self.names.user, self.names) for acl in acls]


Act = Callable[[Stage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One conversation and the ACLs it begins with."""

    act: Act
    acls: Sequence[str]


SCRIPTS: dict[str, Script] = {}


def script(name: str, *acls: str) -> Callable[[Act], Act]:
    """Registers a script; it may be registered under several names with other ACLs."""

    def register(act: Act) -> Act:
        SCRIPTS[name] = Script(act=act, acls=acls)
        return act

    return register


_FETCH_SESSION_ID_NOT_FOUND = 70
_MAX_BYTES = 1 << 20
_TRANSACTIONAL = 0x10


def script_acls(beginning: str = "") -> Mapping[str, Sequence[str]]:
    """For `Side.prepare`: scripts have resources like profiles."""
    return {name: each.acls for name, each in SCRIPTS.items() if name.startswith(beginning)}


def run_scripts(side: Side, beginning: str = "", *, at_once: int = 4) -> dict[str, str]:
    """By script, of those whose names begin so: its lines."""

    def run(name: str) -> tuple[str, str]:
        stage = Stage(side, name)
        SCRIPTS[name].act(stage)
        return f"script {name}", "\n".join(stage.lines)

    with ThreadPoolExecutor(at_once) as pool:
        return dict(pool.map(run, script_acls(beginning)))


# --- Produce without an answer


def _produced(stage: Stage, acks: int, *shorts: str, **more: Any) -> Values:
    partitions = [{"index": 0, "records": more.pop("records", record_batch(b"value"))}]
    topics = stage.topics(*shorts, partition_data=partitions)
    return {"acks": acks, "timeout": 10_000, "topic_data": topics, **more}


@script("acks0-one", "+topic:one:WRITE")
@script("acks0-none")
@script("acks0-both", "+topic:one:WRITE", "+topic:two:WRITE")
def _acks_of_nobody(stage: Stage) -> None:
    """Allowed records are written, then the connection is closed."""
    written = {topic: stage.end_offset(topic) for topic in ("one", "two")}
    for version, shorts in itertools.product((3, 8, 9, 12, 13), (("one", "two"), ("two",))):
        stage.client.send(0, version, _produced(stage, 0, *shorts))
        # Whether the connection is open shows in the answer to a request behind.
        fields = {"client_software_name": "a", "client_software_version": "1"}
        answer = stage.client.ask(18, 3, fields)
        closed = answer is Outcome.CLOSED
        stage.see(f"acks=0 to {shorts} v{version}", "closed" if closed else "open")
        for topic in shorts:
            written[topic] += f"+topic:{topic}:WRITE" in stage.acls
        _until_written(stage, written)
        stage.see("written", [stage.end_offset(topic) for topic in written])


def _until_written(stage: Stage, offsets: Mapping[str, int]) -> None:
    # Records without an answer may arrive later. Forbidden ones show at the next look at the
    # latest, since no offset goes back.
    wait_until(
        lambda: all(stage.end_offset(topic) >= end for topic, end in offsets.items()),
        what=f"not written what the ACLs allow: {offsets}",
    )


# --- incremental fetch sessions


class _Session:
    """Fetches like a client, and starts a new session when the old one is gone."""

    def __init__(self, stage: Stage, version: int) -> None:
        self._stage = stage
        self._version = version
        self._session_id = 0
        self._epoch = 0
        self._offsets = {
            name: stage.side.as_broker(2, 5, _end_of(stage, name)).topics[0].partitions[0].offset
            for name in ("one", "two")
        }

    def fetch(self, label: str) -> None:
        """Writes down what each topic had to say."""
        answer = self._ask()
        if not isinstance(answer, Outcome) and answer.error_code == _FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = self._epoch = 0
            answer = self._ask()
        if isinstance(answer, Outcome):
            self._stage.see(label, answer.value)
            return
        self._session_id, self._epoch = answer.session_id, self._epoch + 1
        seen = sorted(self._seen(topic) for topic in answer.responses)
        self._stage.see(f"{label} v{self._version}", f"{int(answer.error_code)} {seen}")

    def _seen(self, topic: Any) -> str:
        name = getattr(topic, "topic", None) or self._stage.side.topics.get(topic.topic_id, "?")
        partition = topic.partitions[0]
        records = "records" if partition.records else "nothing"
        return f"{self._stage.names.short(name)} {int(partition.error_code)} {records}"

    def _ask(self) -> Any:
        stage = self._stage
        topics = [
            stage.topics(
                name,
                partitions=[
                    {"partition": 0, "fetch_offset": offset, "partition_max_bytes": _MAX_BYTES}
                ],
            )[0]
            for name, offset in self._offsets.items()
        ]
        fields = {
            "replica_id": -1,
            "max_bytes": _MAX_BYTES,
            "session_id": self._session_id,
            "session_epoch": self._epoch,
            "topics": topics if self._epoch == 0 else [],
        }
        return stage.client.ask(1, self._version, fields)


def _end_of(stage: Stage, topic: str) -> Values:
    partitions = [{"partition_index": 0, "timestamp": -1}]
    return {"replica_id": -1, "topics": stage.topics(topic, partitions=partitions)}


@script("fetch-session", "+topic:one:READ", "+topic:two:READ")
def _fetch_session(stage: Stage) -> None:
    """A topic whose ACL is taken away is denied in the session; given back, it is there again."""
    for version in (7, 11, 12, 13, 15, 18):
        session = _Session(stage, version)
        session.fetch("both allowed, nothing new")
        stage.side.as_broker(0, 12, _produced(stage, -1, "one", "two"))
        stage.take("+topic:two:READ")
        stage.wait_until("two", is_allowed=False)
        session.fetch("one of two taken away")
        session.fetch("again")
        stage.take("+topic:one:READ")
        stage.wait_until("one", is_allowed=False)
        session.fetch("both taken away")
        stage.grant("+topic:one:READ", "+topic:two:READ")
        stage.wait_until("two", is_allowed=True)
        session.fetch("both given back")


@script("fetch-session-later", "+topic:one:READ")
def _fetch_session_later(stage: Stage) -> None:
    """A session that begins with a topic that is denied sees it as soon as it is allowed."""
    for version in (7, 12, 13, 18):
        session = _Session(stage, version)
        stage.side.as_broker(0, 12, _produced(stage, -1, "one", "two"))
        session.fetch("one of two allowed")
        stage.grant("+topic:two:READ")
        stage.wait_until("two", is_allowed=True)
        session.fetch("both allowed")
        stage.take("+topic:two:READ")
        stage.wait_until("two", is_allowed=False)
        session.fetch("one of two again")


# --- transactions


def _batch(producer_id: int, epoch: int, sequence: int, attributes: int) -> bytes:
    record = Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(datetime.now(UTC)),
        offset=i64(0),
        key=None,
        value=b"value",
        headers=(),
    )
    batch = NewRecordBatch(
        producer_id=i64(producer_id),
        producer_epoch=i16(epoch),
        base_sequence=i32(sequence),
        records=(record,),
        attributes=i16(attributes),
    )
    buffer = io.BytesIO()
    write_new_batch(buffer, batch)
    return buffer.getvalue()


@script("txn-all", "+txn:one:ALL", "+topic:*:ALL", "+group:one:ALL")
@script("txn-one-topic", "+txn:one:ALL", "+topic:one:WRITE", "+group:one:READ")
@script("txn-no-id", "+topic:one:WRITE", "+topic:two:WRITE", "+group:one:READ")
@script("txn-described", "+txn:one:DESCRIBE", "+topic:one:WRITE", "+group:one:READ")
@script("txn-no-topic", "+txn:one:WRITE", "+group:one:READ")
@script("txn-no-group", "+txn:one:WRITE", "+topic:one:WRITE", "+group:one:DESCRIBE")
@script("txn-group-only", "+txn:one:WRITE", "+group:one:READ", "+topic:two:READ")
def _transaction(stage: Stage) -> None:
    """A whole transaction, whatever is refused on the way; the broker makes the producer id."""
    for version in (3, 7, 9, 11, 12, 13):
        name = stage.names("one")
        initial = {"transactional_id": name, "transaction_timeout": 60_000}
        producer = stage.side.as_broker(22, 4, initial)
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        transaction = {**identity, "transactional_id": name}
        stage.ask("init", 22, min(version // 2, 6), initial)
        stage.ask(
            "add partitions",
            24,
            min(version, 3),
            {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer.producer_id,
                "v3_and_below_producer_epoch": producer.producer_epoch,
                "v3_and_below_topics": stage.topics("one", "two", partitions=[0]),
            },
        )
        batch = _batch(producer.producer_id, producer.producer_epoch, 0, _TRANSACTIONAL)
        for shorts in (("one",), ("one", "two")):
            fields = _produced(stage, -1, *shorts, records=batch, transactional_id=name)
            stage.ask(f"produce to {shorts}", 0, version, fields)
        stage.ask(
            "produce, transactional, without an id",
            0,
            version,
            _produced(stage, -1, "one", records=batch),
        )
        stage.ask(
            "produce, not transactional, with an id",
            0,
            version,
            _produced(stage, -1, "one", "two", transactional_id=name),
        )
        stage.ask("add offsets", 25, 3, {**transaction, "group_id": stage.names("one")})
        partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
        stage.ask(
            "commit offsets",
            28,
            3,
            {
                **transaction,
                "group_id": stage.names("one"),
                "topics": stage.topics("one", "two", partitions=partitions),
            },
        )
        stage.ask("end", 26, min(version, 3), {**transaction, "committed": False})


@script("idempotent-one", "+topic:one:WRITE")
@script("idempotent-cluster", "+cluster::IDEMPOTENT_WRITE")
@script("idempotent-both", "+cluster::IDEMPOTENT_WRITE", "+topic:one:WRITE")
@script("idempotent-denied", "+topic:one:WRITE", "-cluster::IDEMPOTENT_WRITE")
@script("idempotent-read", "+topic:*:READ")
def _idempotent(stage: Stage) -> None:
    """An idempotent producer without transactions needs Write on its topic alone."""
    initial = {"transactional_id": None, "transaction_timeout": 60_000}
    for sequence, version in enumerate((3, 9, 13)):
        stage.ask("init", 22, version // 3, initial)
        producer = stage.side.as_broker(22, 4, initial)
        batch = _batch(producer.producer_id, producer.producer_epoch, 0, 0)
        stage.ask("produce", 0, version, _produced(stage, -1, "one", "two", records=batch))
        stage.see("round", sequence)


# --- topics that come to be


@script("auto-none")
@script("auto-described", "+topic:auto^:DESCRIBE")
@script("auto-create", "+topic:auto^:CREATE")
@script("auto-create-and-describe", "+topic:auto^:CREATE", "+topic:auto^:DESCRIBE")
@script("auto-cluster", "+cluster::CREATE")
@script("auto-cluster-and-describe", "+cluster::CREATE", "+topic:auto^:DESCRIBE")
@script("auto-denied", "+topic:*:ALL", "+cluster::CREATE", "-topic:auto^:CREATE")
@script("auto-cluster-denied", "+topic:*:ALL", "-cluster::CREATE")
def _auto_creation(stage: Stage) -> None:
    """Metadata makes a topic that is missing if both the request and the ACLs allow it."""
    versions = (0, 1, 3, 4, 8, 9, 12, 13)
    for version in versions:
        topics = [{"name": stage.names(f"auto{version}"), "topic_id": None}]
        fields = {"topics": topics, "allow_auto_topic_creation": True}
        stage.ask("metadata", 3, version, fields)
        invalid = [{"name": stage.names("auto invalid"), "topic_id": None}]
        stage.ask("of no valid name", 3, version, {**fields, "topics": invalid})
    stage.side.until_topics_are_known()
    wanted = [{"name": stage.names(f"auto{version}")} for version in versions]
    answer = stage.side.as_broker(3, 9, {"topics": wanted, "allow_auto_topic_creation": False})
    made = sorted(stage.names.short(each.name) for each in answer.topics if each.error_code == 0)
    stage.see("made", made)


@script("create-none")
@script("create-one", "+topic:one^:CREATE")
@script("create-and-describe", "+topic:one^:CREATE", "+topic:one^:DESCRIBE_CONFIGS")
@script("create-cluster", "+cluster::CREATE")
@script("create-cluster-one-denied", "+cluster::CREATE", "-topic:one^:CREATE")
@script("create-cluster-denied", "+topic:one^:CREATE", "-cluster::CREATE")
@script("create-all", "+topic:*:ALL", "+cluster::ALL")
def _creation(stage: Stage) -> None:
    """Topics made in earnest: configurations are shown to those who may see them."""
    for version in range(2, 8):
        topics = [
            {"name": stage.names(f"{short}.n{version}"), "num_partitions": 1, **more}
            for short, more in (
                ("one", {"replication_factor": 1}),
                ("two", {"replication_factor": 1}),
                ("one.bad", {"replication_factor": 9}),
            )
        ]
        fields = {"topics": topics, "timeout": 10_000, "validate_only": False}
        answer = stage.client.ask(19, version, fields)
        stage.see(f"create v{version}", sorted(_creation_results(stage, answer)))


def _creation_results(stage: Stage, answer: Any) -> Iterator[str]:
    for topic in answer.topics:
        configs = getattr(topic, "configs", None)
        shown = "no configs" if configs is None else f"{len(configs)} configs"
        partitions = getattr(topic, "num_partitions", None)
        hidden = int(getattr(topic, "topic_config_error_code", 0))
        yield (
            f"{stage.names.short(topic.name)} {int(topic.error_code)} {topic.error_message!r} "
            f"{shown} {partitions} {hidden}"
        )


# --- one connection, changing rights


@script("changing")
def _changing(stage: Stage) -> None:
    """Each right given and taken shows on the connection that is open."""
    for acl in ("+topic:two:DESCRIBE", "+topic:two:READ", "+topic:two:WRITE", "+topic:two:DELETE"):
        stage.grant(acl)
        stage.wait_until("two", is_allowed=True)
        _look(stage, f"with {acl}")
        stage.take(acl)
        stage.wait_until("two", is_allowed=False)
        _look(stage, f"without {acl}")


def _look(stage: Stage, label: str) -> None:
    stage.ask(f"{label}: metadata", 3, 12, {"topics": [{"name": stage.names("two")}]})
    stage.ask(f"{label}: produce", 0, 9, _produced(stage, -1, "two"))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": _MAX_BYTES}
    fields = {
        "session_epoch": -1,
        "max_bytes": _MAX_BYTES,
        "topics": stage.topics("two", partitions=[partition]),
    }
    answer = stage.client.ask(1, 12, fields)
    stage.see(f"{label}: fetch", int(answer.responses[0].partitions[0].error_code))
