"""Produce in a transaction; ShareFetch and ShareAcknowledge, by topic id and in sessions."""

from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Change
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import group, judged, received, sent, topic, transactional_id
from tests.support.kio_messages import encode
from tests.support.messages import request, response, versions

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
A, SECRET, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {A.bytes: "a", SECRET.bytes: "secret", GONE.bytes: None}
READS = group(Operation.READ, "g") | topic(Operation.READ, "a")
BATCHES = [{"first_offset": 1, "last_offset": 2}]


def asking(
    api_key: int, version: int, *ids: UUID, epoch: int = 1, acknowledge: bool = False
) -> Any:
    partition = {"partition_index": 7, "acknowledgement_batches": BATCHES if acknowledge else []}
    topics = [{"topic_id": one, "partitions": [partition]} for one in ids]
    return request(api_key, version, group_id="g", share_session_epoch=epoch, topics=topics)


def fetched(version: int, *ids: UUID) -> Any:
    partition = {
        "partition_index": 7,
        "records": b"records",
        "acquired_records": [{"first_offset": 1, "last_offset": 1, "delivery_count": 1}],
    }
    responses = [{"topic_id": one, "partitions": [partition]} for one in ids]
    return response(78, version, responses=responses)


@pytest.mark.parametrize("version", versions(78))
def test_a_right_taken_away_bites_in_a_running_session(version: int) -> None:
    """The request names no topic: what the broker sends is what earlier requests added."""
    asked = asking(78, version)
    judgement = judged(GUARDS[78], asked, READS, NAMES)
    assert isinstance(judgement, Change)
    assert judgement.request is None
    broker = fetched(version, A, SECRET)
    answer = received(judgement, asked, broker)
    assert answer.responses[0] == broker.responses[0]
    emptied = answer.responses[1].partitions[0]
    assert (emptied.error_code, emptied.records, emptied.acquired_records) == (
        TOPIC_DENIED,
        b"",
        (),
    )


def test_a_topic_without_a_known_name_is_not_shown() -> None:
    """A session that was opened elsewhere must not get records past the ACLs."""
    judgement = judged(GUARDS[78], asking(78, 1), READS, {})
    answer = received(judgement, asking(78, 1), fetched(1, A))
    assert answer.responses[0].partitions[0].records == b""


def test_an_allowed_response_stays_byte_for_byte() -> None:
    judgement = judged(GUARDS[78], asking(78, 1, A), READS, NAMES)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    assert judgement.request is None
    body = encode(fetched(1, A)) + b"bytes behind it"
    assert judgement.response(body) is body


@pytest.mark.parametrize(
    ("epoch", "acknowledge", "fetch_error", "acknowledge_error"),
    [
        (1, False, TOPIC_DENIED, 0),
        (1, True, TOPIC_DENIED, TOPIC_DENIED.value),
        (-1, True, ErrorCode.NONE, TOPIC_DENIED.value),
    ],
)
def test_where_the_errors_of_a_fetch_stand(
    epoch: int, acknowledge: bool, fetch_error: ErrorCode, acknowledge_error: int
) -> None:
    asked = asking(78, 1, SECRET, epoch=epoch, acknowledge=acknowledge)
    judgement = judged(GUARDS[78], asked, READS, NAMES)
    assert sent(judgement, asked).topics == ()
    (denied,) = received(judgement, asked, fetched(1)).responses
    assert denied.partitions[0].error_code == fetch_error
    assert denied.partitions[0].acknowledge_error_code == acknowledge_error


@pytest.mark.parametrize("api_key", [78, 79])
def test_a_session_error_stands_alone(api_key: int) -> None:
    asked = asking(api_key, 1, SECRET)
    failed = response(api_key, 1, error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
    assert received(judged(GUARDS[api_key], asked, READS, NAMES), asked, failed) == failed


@pytest.mark.parametrize("api_key", [78, 79])
def test_no_group_is_no_way_around_one(api_key: int) -> None:
    asked = request(api_key, 1, group_id=None)
    denied = received(judged(GUARDS[api_key], asked, READS, NAMES), asked)
    assert denied.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_batch_of_a_transaction_needs_write_on_its_id(version: int) -> None:
    """Without an id there is no right that would suffice."""
    magic, transactional = 16, 22
    batch = bytearray(80)
    batch[magic], batch[transactional] = 2, 0x10
    partitions = [{"index": 0, "records": bytes(batch)}]
    topics = [{"name": "a", "partition_data": partitions}]
    writes = topic(Operation.WRITE, "a")
    both = writes | transactional_id(Operation.WRITE, "t")
    asked = request(0, version, transactional_id="t", acks=-1, topic_data=topics)
    nameless = request(0, version, transactional_id=None, acks=-1, topic_data=topics)
    assert judged(GUARDS[0], asked, both) is FORWARD
    for refused, rights in ((asked, writes), (nameless, both)):
        (denied,) = received(judged(GUARDS[0], refused, rights), refused).responses
        error = denied.partition_responses[0].error_code
        assert error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
