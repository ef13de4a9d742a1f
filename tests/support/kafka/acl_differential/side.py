"""Either of the two compared servers, with its own resources, users and ACLs.

Both serve the same cluster. A side's names begin with its own, so that neither sees the other.
"""

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from proxy.wire.apis import is_flexible, response_header_version
from tests.support.kafka.acl_differential.profiles import (
    DELETERS,
    PROFILES,
    Names,
    all_creations,
    as_filter,
    creation,
)
from tests.support.kafka.cluster import DEADLINE_SECONDS, wait_until
from tests.support.kafka.java import is_since
from tests.support.kafka.scram_client import ScramClient, salted_password
from tests.support.kafka.wire_client import (
    Address,
    Outcome,
    WireClient,
    record_batch,
    request_header,
)
from tests.support.kio_messages import response_type
from tests.support.kio_messages.strict import decode
from tests.support.messages import Values, read_response, request_body
from tests.support.proxy_process import SUPER_USER

PASSWORD = "of-everybody"
SCRAM = "SCRAM-SHA-256"

#: A broker that judges with StandardAuthorizer what comes by SASL, and lets the proxy do all.
AUTHORIZER_PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{SUPER_USER};User:ANONYMOUS",
    "auto.create.topics.enable": "true",
    # Members that never come back stay to the end of the test.
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.share.max.session.timeout.ms": "3600000",
    "group.share.session.timeout.ms": "3600000",
    "group.streams.max.session.timeout.ms": "3600000",
    "group.streams.session.timeout.ms": "3600000",
    # And their group is given no tasks meanwhile, which it would be at some moment.
    "group.streams.initial.rebalance.delay.ms": "3600000",
    "group.coordinator.append.linger.ms": "0",
    "unstable.api.versions.enable": "true",
    "unstable.feature.versions.enable": "true",
    "group.coordinator.rebalance.protocols": (
        "classic,consumer,share,streams" if is_since("4.1") else "classic,consumer"
    ),
    "log.index.size.max.bytes": "65536",
}

FEATURES = ("share.version=1", "streams.version=1") if is_since("4.1") else ()

#: For tests with a `Side`, which has groups of each kind.
needs_groups = pytest.mark.skipif(
    not is_since("4.1"), reason="Kafka has share and streams groups since 4.1"
)

_SALT = b"0123456789abcdef"
_HANDSHAKE, _AUTHENTICATE = 17, 36
_DEADLINE_SECONDS = 60.0


class Client:
    """A connection of one user, opened again after the server has closed it."""

    def __init__(self, address: Address, user: str | None) -> None:
        self._address = address
        self._user = user
        self._wire: WireClient | None = None
        self._correlation_ids = itertools.count(1)

    def send(self, api_key: int, version: int, fields: Values) -> None:
        """Send one request."""
        self._send(api_key, version, request_body(api_key, version, **fields))

    def receive(self, api_key: int, version: int, seconds: float = _DEADLINE_SECONDS) -> Any:
        """Return the next response, decoded, or the `Outcome` that came instead."""
        return _decoded(api_key, version, self._receive(api_key, version, seconds))

    def ask(self, api_key: int, version: int, fields: Values) -> Any:
        """Send a request and return its response."""
        body = request_body(api_key, version, **fields)
        return _decoded(api_key, version, self.exchange(api_key, version, body))

    def exchange(self, api_key: int, version: int, body: bytes) -> bytes | Outcome:
        """Send a request body and return the body of its response, after the header."""
        self._send(api_key, version, body)
        return self._receive(api_key, version, _DEADLINE_SECONDS)

    def _send(self, api_key: int, version: int, body: bytes) -> None:
        flexible = is_flexible(api_key, version)
        correlation_id = next(self._correlation_ids)
        header = request_header(api_key, version, correlation_id, "acl", flexible=flexible)
        self._connected().send_payload(header + body)

    def _receive(self, api_key: int, version: int, seconds: float) -> bytes | Outcome:
        frame = self._connected().receive(seconds)
        if isinstance(frame, Outcome):
            self.close()
            return frame
        return frame[4 + response_header_version(api_key, version) :]

    def log_in(self) -> None:
        """Opens the connection, which the first request does otherwise."""
        self._connected()

    def close(self) -> None:
        """The next request opens a new connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _connected(self) -> WireClient:
        if self._wire is None:
            self._wire = WireClient(self._address)
            if self._user is not None:
                log_in(self._wire, self._user)
        return self._wire


def _decoded(api_key: int, version: int, body: bytes | Outcome) -> Any:
    return body if isinstance(body, Outcome) else decode(response_type(api_key, version), body)


def log_in(wire: WireClient, user: str, client_id: str = "acl") -> None:
    """Logs in with SCRAM; `client_id` is what the connection goes by from then on."""
    scram = ScramClient(mechanism=SCRAM, name=user, password=PASSWORD)
    _exchange(wire, client_id, _HANDSHAKE, 1, mechanism=SCRAM)
    first = _exchange(wire, client_id, _AUTHENTICATE, 2, auth_bytes=scram.first())
    final = scram.answer(first.auth_bytes).message()
    _exchange(wire, client_id, _AUTHENTICATE, 2, auth_bytes=final)


def _exchange(
    wire: WireClient, client_id: str, api_key: int, version: int, **fields: object
) -> Any:
    wire.send_frame(api_key, version, 0, client_id, request_body(api_key, version, **fields))
    frame = wire.receive()
    if isinstance(frame, Outcome):
        raise ConnectionError(f"{frame.value} at API {api_key}")
    answer = read_response(api_key, version, frame)[1]
    if answer.error_code != 0:
        raise ConnectionError(f"{answer}")
    return answer


class Side:
    """A server under test: `prepare` it, then run programs against it."""

    def __init__(self, name: str, address: Address, broker: Address) -> None:
        self.name = name
        self._address = address
        self._broker = Client(broker, None)
        self.topics: dict[uuid.UUID, str] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._clients: list[Client] = []
        self._admin_lock = threading.Lock()
        self.admin = self.client(SUPER_USER)

    def client(self, user: str) -> Client:
        """A connection of this user, closed with the side."""
        client = Client(self._address, user)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Closes every connection."""
        for client in [*self._clients, self._broker]:
            client.close()

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic of `prepare`, or one that nobody has."""
        return self._ids.get(name, uuid.UUID(int=0xABCDEF))

    # --- preparation

    def prepare(
        self, *, administers_users: bool, profiles: Mapping[str, Sequence[str]] = PROFILES
    ) -> None:
        """Makes the users, resources and ACLs.

        `administers_users`: through this side, otherwise through the broker.
        """
        everyone = [Names(self.name, profile) for profile in profiles]
        self._add_users(everyone, self.admin if administers_users else self._broker)
        self._make_topics(everyone)
        self._make_groups(everyone)
        self._make_transactional_ids(everyone)
        self.create_acls(all_creations(self.name, profiles))
        control = Names(self.name, "all")
        self.wait_until_allowed(control.user, control("one"))

    def create_acls(self, entries: Sequence[Values]) -> None:
        """As the administrator."""
        with self._admin_lock:
            answer = self.admin.ask(30, 3, {"creations": entries})
        assert {result.error_code for result in answer.results} <= {0}, answer

    def delete_acls(self, entries: Sequence[Values]) -> None:
        """As the administrator; each must be there."""
        with self._admin_lock:
            answer = self.admin.ask(31, 3, {"filters": [as_filter(each) for each in entries]})
        assert all(len(result.matching_acls) == 1 for result in answer.filter_results), answer

    def until_acls_are_known(self) -> None:
        """Until the server itself has heard of all changes so far: it does so in their order."""
        last = creation(f"+topic:last-{uuid.uuid4()}:READ", "nobody", str)
        self.create_acls([last])

        def known() -> bool:
            with self._admin_lock:
                return bool(self.admin.ask(29, 3, as_filter(last)).resources)

        wait_until(known, what=f"{self.name} does not know the last ACL")
        self.delete_acls([last])

    def until_topics_are_known(self) -> None:
        """Until the broker knows every topic that it has asked its controller to make so far.

        Its coordinators, too: they hear of a change after those who answer Metadata, but before
        these hear of the next one.
        """
        for _ in range(2):
            last = f"last-{uuid.uuid4()}"
            topics = [{"name": last, "num_partitions": 1, "replication_factor": 1}]
            answer = self.as_broker(19, 7, {"topics": topics, "timeout": 60_000})
            assert answer.topics[0].error_code == 0, answer
            wait_until(partial(self._is_led, last), what=f"no leader of {last}")

    def _is_led(self, topic: str) -> bool:
        with self._admin_lock:
            return self._has_leaders([topic])

    def wait_until_allowed(self, user: str, topic: str, *, is_allowed: bool = True) -> None:
        """Until this user sees the topic or, with `is_allowed` False, does not."""
        with contextlib.closing(self.client(user)) as client:
            fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
            wait_until(
                lambda: (client.ask(3, 12, fields).topics[0].error_code == 0) is is_allowed,
                what=f"{user} sees {topic}: not {is_allowed}",
            )

    def as_broker(self, api_key: int, version: int, fields: Values) -> Any:
        """Asks the broker itself, which forbids nothing."""
        with self._admin_lock:
            return self._broker.ask(api_key, version, fields)

    def _add_users(self, everyone: Sequence[Names], client: Client) -> None:
        salted = salted_password(SCRAM, PASSWORD, _SALT, 4096)
        verifier = {"mechanism": 1, "iterations": 4096, "salt": _SALT, "salted_password": salted}
        upsertions = [{"name": names.user, **verifier} for names in everyone]
        answer = client.ask(51, 0, {"upsertions": upsertions})
        assert {result.error_code for result in answer.results} == {0}, answer

    def _make_topics(self, everyone: Sequence[Names]) -> None:
        names = [each for one in everyone for each in _topics(one)]
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
        answer = self._broker.ask(19, 7, {"topics": topics, "timeout": 60_000})
        assert {topic.error_code for topic in answer.topics} == {0}, answer
        self._ids = {str(topic.name): topic.topic_id for topic in answer.topics}
        self.topics = {topic_id: name for name, topic_id in self._ids.items()}
        wait_until(lambda: self._has_leaders(names), what="topics without leaders")
        for name in [one(short) for one in everyone for short in _TWO]:
            self._until_done(0, 12, _produced(name), _produce_error)

    def _has_leaders(self, names: Sequence[str]) -> bool:
        fields = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        topics = self._broker.ask(3, 12, fields).topics
        return all(topic.error_code == 0 and topic.partitions for topic in topics)

    def _make_groups(self, everyone: Sequence[Names]) -> None:
        for key_type, key in ((0, "g"), (1, "t"), (2, "g:AAAAAAAAAAAAAAAAAAAAAQ:0")):
            self._until_done(10, 6, {"key_type": key_type, "coordinator_keys": [key]}, _coordinator)
        for names, group in itertools.product(everyone, _TWO):
            for fork in ("", ".d0", ".d1", ".d2", ".d3"):
                self._until_done(8, 9, _commit(names, names(f"{group}{fork}")), _commit_error)
            heartbeat = _heartbeat(names, names(f"{group}.cg"))
            self._until_done(68, 1, heartbeat, _top_error)
            share = _heartbeat(names, names(f"{group}.sg"))
            self._until_done(76, 1, share, _top_error)
        owners = {names(f"{group}.sg"): names for names in everyone for group in _TWO}
        wait_until(lambda: not self._join_again(owners), what="share groups without topics")

    def _join_again(self, owners: Mapping[str, Names]) -> int:
        # A share group gets its topics some time after its first member, and when that is heard.
        wanted = [{"group_id": group, "topics": None} for group in owners]
        described = self._broker.ask(90, 0, {"groups": wanted}).groups
        waiting = [group.group_id for group in described if len(group.topics) < len(_TWO)]
        for group in waiting:
            self._until_done(76, 1, _heartbeat(owners[group], group), _top_error)
        return len(waiting) or self._take_partitions(owners)

    def _take_partitions(self, owners: Mapping[str, Names]) -> int:
        # They are given to a member that sends the epoch it knows.
        fields = {"group_ids": list(owners), "include_authorized_operations": False}
        waiting = 0
        for group in self._broker.ask(77, 1, fields).groups:
            for member in group.members:
                if not member.assignment.topic_partitions:
                    waiting += 1
                    heartbeat = _heartbeat(owners[group.group_id], group.group_id)
                    known = {**heartbeat, "member_epoch": member.member_epoch}
                    self._until_done(76, 1, known, _top_error)
        return waiting

    def _make_transactional_ids(self, everyone: Sequence[Names]) -> None:
        for names, name in itertools.product(everyone, _TWO):
            fields = {"transactional_id": names(name), "transaction_timeout": 60_000}
            self._until_done(22, 4, fields, _top_error)

    def _until_done(
        self, api_key: int, version: int, fields: Values, error: Callable[[Any], int]
    ) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self._broker.ask(api_key, version, fields)
            if error(answer) == 0:
                return
            # A coordinator's topic is being made, or loaded; a leader has yet to learn that it is.
            assert error(answer) in (6, 14, 15, 16), answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)


_TWO = ("one", "two")


def _topics(names: Names) -> Iterator[str]:
    forks = ["", ".d1", ".d5", ".d6", ".id"] if names.profile in DELETERS else [""]
    for name, fork in itertools.product(_TWO, forks):
        yield names(f"{name}{fork}")


def _top_error(answer: Any) -> int:
    return int(answer.error_code)


def _coordinator(answer: Any) -> int:
    return int(answer.coordinators[0].error_code)


def _commit_error(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _produced(name: str) -> Values:
    partitions = [{"index": 0, "records": record_batch(b"first", b"second")}]
    topics = [{"name": name, "partition_data": partitions}]
    return {"acks": -1, "timeout": 30_000, "topic_data": topics}


def _produce_error(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def _commit(names: Names, group: str) -> Values:
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    topics = [{"name": names(name), "partitions": partitions} for name in _TWO]
    return {"group_id": group, "topics": topics}


def _heartbeat(names: Names, group: str) -> Values:
    return {
        "group_id": group,
        "member_id": "member",  # since Kafka 4.2 at most 36 characters
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [names(name) for name in _TWO],
        "topic_partitions": (),
    }
