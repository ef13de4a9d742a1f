"""Writer of the frames in `tests/proxy/wire/captured`: responses as a real Kafka sends them.

Run `python -m tests.support.kafka.capture` from the repository's root; it needs Java and takes
a minute.
Each file's first line describes it; the rest is one response frame in hexadecimal, from the
correlation id on (without the four bytes of its size).
"""

import json
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.kafka.cluster import KafkaCluster, kafka_uuid, wait_until
from tests.support.kafka.java import KAFKA_VERSION
from tests.support.kafka.sasl_differential.transcript import bearer
from tests.support.kafka.scram_client import ScramClient
from tests.support.kafka.wire_client import (
    Address,
    Outcome,
    WireClient,
    api_versions_fields,
    ask,
    ask_for_bytes,
    metadata_fields,
    record_batch,
)
from tests.support.messages import read_response, request_body
from tests.support.sasl import Issuer

_DIRECTORY = Path(__file__).parents[2] / "proxy/wire/captured"
_LINE_BYTES = 48

_METADATA, _FIND_COORDINATOR = 3, 10
_HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 17, 18, 36
_INCREMENTAL_ALTER_CONFIGS = 44
_SHARE_GROUP_HEARTBEAT, _SHARE_FETCH, _SHARE_ACKNOWLEDGE = 76, 78, 79

_TOPIC = "wire"
_GROUP = "wire-group"
_SHARE_GROUP = "wire-share"

#: File name without its ending, and the frame.
Captures = Iterator[tuple[str, bytes]]


def capture_all(cluster: KafkaCluster, issuer: Issuer) -> None:
    """Captures from three brokers that each lead one partition of a topic."""
    cluster.create_topic(_TOPIC, replicas={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    topic_id = ask(cluster.address(), _METADATA, 12, metadata_fields([_TOPIC])).topics[0].topic_id
    captures: tuple[Callable[[], Captures], ...] = (
        lambda: _listed(cluster, topic_id),
        lambda: _share(cluster, topic_id),
        lambda: _sasl(cluster.address(listener="LONG"), issuer),
    )
    for capture in captures:
        for name, frame in capture():
            _write(name, frame)


def _write(name: str, frame: bytes) -> None:
    title = f"# {name}: Apache Kafka {KAFKA_VERSION}, python -m tests.support.kafka.capture"
    hexadecimal = frame.hex()
    width = 2 * _LINE_BYTES
    lines = [hexadecimal[start : start + width] for start in range(0, len(hexadecimal), width)]
    (_DIRECTORY / f"{name}.hex").write_text("\n".join([title, *lines]) + "\n")


def _listed(cluster: KafkaCluster, topic_id: uuid.UUID) -> Captures:
    """Responses to the requests of `capture.jsonl`, which are sent to one broker."""

    def filled(given: dict[str, Any]) -> Any:
        if given.keys() == {"records"}:
            return record_batch(*(value.encode() for value in given["records"]))
        return {name: topic_id if one == "TOPIC_ID" else one for name, one in given.items()}

    yield "api_versions_v0_unsupported_version", _too_new(cluster.address())
    _until_coordinated(cluster.address())
    for line in Path(__file__).with_suffix(".jsonl").read_text().splitlines():
        row = json.loads(line, object_hook=filled)
        api_key, version = row["api_key"], row["version"]
        frame = ask_for_bytes(cluster.address(), api_key, version, row["fields"])
        if "end_points" in row:
            _check_end_points(api_key, version, frame, wanted=row["end_points"])
        yield row["name"], frame


def _too_new(address: Address) -> bytes:
    with WireClient(address) as client:
        body = request_body(_API_VERSIONS, 4, **api_versions_fields())
        client.send_frame(_API_VERSIONS, 99, 1, "harness", body)
        return _frame(client)


def _until_coordinated(address: Address) -> None:
    fields = {"key_type": 0, "coordinator_keys": [_GROUP, "another"]}

    def is_found() -> bool:
        # The first request creates the internal topic and returns an error.
        found = ask(address, _FIND_COORDINATOR, 4, fields).coordinators
        return all(one.error_code == 0 for one in found)

    wait_until(is_found, 30, what="no group coordinator")


def _check_end_points(api_key: int, version: int, frame: bytes, *, wanted: bool) -> None:
    message = read_response(api_key, version, frame)[1]
    # Older versions have no such field.
    if bool(getattr(message, "node_endpoints", ())) != wanted:
        raise SystemExit(f"API {api_key} v{version}: expected end points: {wanted}, got {message}")


def _share(cluster: KafkaCluster, topic_id: uuid.UUID) -> Captures:
    member = kafka_uuid()
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": _SHARE_GROUP, "configs": [earliest]}
    cluster.ask(_INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    coordinator = _share_coordinator(cluster)
    _join_share_group(coordinator, member)
    fields: dict[str, Any] = {
        "group_id": _SHARE_GROUP,
        "member_id": member,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "forgotten_topics_data": [],
    }
    with WireClient(cluster.address(1)) as client:
        epoch, frame = _acquired(client, fields, topic_id)
        yield "share_fetch_v1_records", frame
        for case, partition in {"success": 0, "unknown_partition": 1}.items():
            epoch += 1
            message = {**fields, "share_session_epoch": epoch}
            message["topics"] = [_acknowledged(topic_id, partition)]
            yield f"share_acknowledge_v1_{case}", _exchange(client, _SHARE_ACKNOWLEDGE, message)
        message = {**fields, "share_session_epoch": -1, "topics": []}
        yield "share_fetch_v1_end_of_session", _exchange(client, _SHARE_FETCH, message)
    with WireClient(cluster.address(1)) as client:
        frame = _share_fetch(client, fields, topic_id, partition=1, epoch=0)
        _check_end_points(_SHARE_FETCH, 1, frame, wanted=True)
        yield "share_fetch_v1_node_endpoints", frame


def _share_coordinator(cluster: KafkaCluster) -> Address:
    fields = {"key_type": 0, "coordinator_keys": [_SHARE_GROUP]}
    found = ask(cluster.address(), _FIND_COORDINATOR, 4, fields).coordinators[0]
    return Address(found.host, found.port)


def _join_share_group(coordinator: Address, member: str) -> None:
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        fields = {
            "group_id": _SHARE_GROUP,
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": [_TOPIC] if epoch == 0 else None,
        }
        answer = ask(coordinator, _SHARE_GROUP_HEARTBEAT, 1, fields)
        if answer.error_code != 0:
            return False
        epoch = answer.member_epoch
        assignment = answer.assignment
        return assignment is not None and len(assignment.topic_partitions) > 0

    wait_until(is_assigned, 30, what="no share group assignment")


def _acquired(
    client: WireClient, fields: Mapping[str, Any], topic_id: uuid.UUID
) -> tuple[int, bytes]:
    """Fetch until records arrive; the first fetch only creates the group's state."""
    for epoch in range(20):
        frame = _share_fetch(client, fields, topic_id, partition=0, epoch=epoch)
        answer = read_response(_SHARE_FETCH, 1, frame)[1]
        if any(p.acquired_records for topic in answer.responses for p in topic.partitions):
            return epoch, frame
    raise SystemExit(f"no records for the share group: {answer}")


def _share_fetch(
    client: WireClient,
    fields: Mapping[str, Any],
    topic_id: uuid.UUID,
    *,
    partition: int,
    epoch: int,
) -> bytes:
    entry = {"partition_index": partition, "acknowledgement_batches": []}
    message = {**fields, "share_session_epoch": epoch}
    message["topics"] = [{"topic_id": topic_id, "partitions": [entry]}]
    return _exchange(client, _SHARE_FETCH, message)


def _exchange(client: WireClient, api_key: int, message: Mapping[str, Any]) -> bytes:
    client.send_frame(api_key, 1, 8, "harness", request_body(api_key, 1, **message))
    return _frame(client)


def _acknowledged(topic_id: uuid.UUID, partition: int) -> dict[str, object]:
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
    entry = {"partition_index": partition, "acknowledgement_batches": [batch]}
    return {"topic_id": topic_id, "partitions": [entry]}


def _sasl(address: Address, issuer: Issuer) -> Captures:
    for version in (0, 1):
        for case, mechanism in {"known": "OAUTHBEARER", "unsupported_mechanism": "PLAIN"}.items():
            frame = ask_for_bytes(address, _HANDSHAKE, version, {"mechanism": mechanism})
            yield f"sasl_handshake_v{version}_{case}", frame
    scram = ScramClient(mechanism="SCRAM-SHA-256", name="alice", password="alice-secret")
    for version in (0, 1, 2):
        messages = {
            "success": ("OAUTHBEARER", bearer(issuer.mint())),
            "invalid_token": ("OAUTHBEARER", bearer(issuer.mint(aud="other"))),
            "failed": ("OAUTHBEARER", b"garbage"),
            "scram_first": ("SCRAM-SHA-256", scram.first()),
        }
        for case, (mechanism, message) in messages.items():
            with WireClient(address) as client:
                handshake = request_body(_HANDSHAKE, 1, mechanism=mechanism)
                client.send_frame(_HANDSHAKE, 1, 1, "harness", handshake)
                client.receive()
                body = request_body(_AUTHENTICATE, version, auth_bytes=message)
                client.send_frame(_AUTHENTICATE, version, 2, "harness", body)
                yield f"sasl_authenticate_v{version}_{case}", _frame(client)


def _frame(client: WireClient) -> bytes:
    frame = client.receive()
    if isinstance(frame, Outcome):
        raise SystemExit(f"{frame.value} instead of an answer")
    return frame


def main() -> int:
    """Start three nodes, capture their responses, end them."""
    issuer = Issuer()
    with tempfile.TemporaryDirectory() as directory:
        jwks = issuer.write_jwks(Path(directory) / "jwks.json")
        with KafkaCluster(nodes=3, jwks=jwks, features=["share.version=1"]) as cluster:
            cluster.add_scram_user("alice", "alice-secret")
            capture_all(cluster, issuer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
