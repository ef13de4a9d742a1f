"""However bytes are cut into reads, what leaves a connection is the same, in the same order."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.connection import fingerprints, responses
from proxy.wire.apis import FETCH, METADATA
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    metadata,
    produce,
    response,
    sized,
)
from tests.support.playbook import OAUTHBEARER, Offer, Playbook, everything, log_in, logged_in


@pytest.fixture(scope="module", autouse=True, params=["views", "bytes"])
def reads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Views of the bulk buffer, and bytes, by the loops that compiled code has for them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "bytes":
            patch.setattr(Playbook, "reads_bulk", False)
            for module in (fingerprints, responses):
                patch.setattr(module, "COMPILED", True)
        yield


@dataclass
class Traffic:
    """What a client sends, and a broker answers to what it is forwarded."""

    requests: list[bytes] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)


KINDS = ("fetch", "metadata", "produce", "unanswered", "legacy", "versions", "reauthenticate")


def traffic_of(kinds: list[str], sizes: list[int]) -> Traffic:
    traffic = Traffic()
    correlation_id = 10
    for number, kind in enumerate(kinds):
        correlation_id += 2
        body = bytes([number % 256]) * sizes[number % len(sizes)]
        match kind:
            case "fetch":
                traffic.requests.append(fetch(correlation_id, body[:200]))
                traffic.responses.append(response(correlation_id, body))
            case "metadata":
                traffic.requests.append(metadata(correlation_id))
                traffic.responses.append(response(correlation_id, body))
            case "produce":
                traffic.requests.append(produce(correlation_id, records=body))
                traffic.responses.append(response(correlation_id, b"offsets"))
            case "legacy":
                traffic.requests.append(produce(correlation_id, version=7, client_id="x" * 40))
                traffic.responses.append(response(correlation_id, b"offsets"))
            case "unanswered":
                traffic.requests.append(produce(correlation_id, acks=0, records=body))
            case "versions":
                traffic.requests.append(api_versions(correlation_id, 3))
            case _:
                traffic.requests.append(handshake(correlation_id, OAUTHBEARER))
                traffic.requests.append(authenticate(correlation_id + 1, bearer()))
    return traffic


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


def whole(traffic: Traffic, offer: Offer) -> Playbook:
    play = logged_in(Playbook(offer=offer))
    play.client(*traffic.requests)
    play.broker(*traffic.responses)
    return play


CUTS = st.lists(st.integers(0, 1 << 30), max_size=30)
TRAFFIC = st.builds(
    traffic_of,
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 3, 70, 5_000]), min_size=1, max_size=4),
)
OFFERS = st.sampled_from(
    [everything(), everything(rewritten=frozenset()), everything(rewritten=frozenset({FETCH}))]
)


@settings(max_examples=120, deadline=None)
@given(traffic=TRAFFIC, offer=OFFERS, client_cuts=CUTS, broker_cuts=CUTS)
def test_any_cuts_in_both_directions(
    traffic: Traffic, offer: Offer, client_cuts: list[int], broker_cuts: list[int]
) -> None:
    expected = whole(traffic, offer)
    play = logged_in(Playbook(offer=offer))
    for piece in pieces(b"".join(traffic.requests), client_cuts):
        play.client(piece)
    for piece in pieces(b"".join(traffic.responses), broker_cuts):
        play.broker(piece)
    assert play.to_broker == expected.to_broker
    assert play.to_client == expected.to_client
    assert play.connection.responses.settled
    assert not play.connection.closed


@settings(max_examples=60, deadline=None)
@given(traffic=TRAFFIC, offer=OFFERS, data=st.data())
def test_responses_between_requests(traffic: Traffic, offer: Offer, data: st.DataObject) -> None:
    """Reads of both sides in any order that a broker can manage: it answers what it was asked."""
    expected = whole(traffic, offer)
    play = logged_in(Playbook(offer=offer))
    to_send, to_answer = b"".join(traffic.requests), b""
    unanswered = list(traffic.responses)
    answered = {struct.unpack_from(">i", frame, 4)[0] for frame in unanswered}
    asked = 0
    while to_send or to_answer:
        if to_send and (not to_answer or data.draw(st.booleans())):
            size = data.draw(st.sampled_from([1, 7, 60, 900, 9_000]))
            play.client(to_send[:size])
            to_send = to_send[size:]
        else:
            size = data.draw(st.sampled_from([1, 7, 60, 900, 9_000]))
            play.broker(to_answer[:size])
            to_answer = to_answer[size:]
        forwarded = answered_requests(bytes(play.to_broker), answered)
        to_answer += b"".join(unanswered[asked:forwarded])
        asked = forwarded
    assert play.to_broker == expected.to_broker
    assert play.to_client == expected.to_client


def answered_requests(to_broker: bytes, answered: set[int]) -> int:
    """How many whole requests that want an answer the broker has."""
    count, at = 0, 0
    while at + 12 <= len(to_broker):
        size, _, correlation_id = struct.unpack_from(">iii", to_broker, at)
        at += 4 + size
        count += at <= len(to_broker) and correlation_id in answered
    return count


def test_every_single_cut_of_a_whole_life() -> None:
    life = b"".join(
        (
            api_versions(1, 3),
            handshake(2, OAUTHBEARER),
            authenticate(3, bearer(), 2),
            metadata(4),
            produce(5, acks=0, records=b"r" * 30),
            fetch(6),
            handshake(7, OAUTHBEARER),
            authenticate(8, bearer()),
            fetch(9),
        )
    )
    answers = b"".join((response(4, b"topics"), response(6, b"r" * 40), response(9, b"more")))
    expected = Playbook()
    expected.client(life)
    expected.broker(answers)
    assert expected.to_broker
    for cut in range(1, len(life)):
        play = Playbook()
        play.client(life[:cut])
        play.client(life[cut:])
        at = cut % len(answers)
        play.broker(answers[:at])
        play.broker(answers[at:])
        assert play.to_broker == expected.to_broker
        assert play.to_client == expected.to_client


def test_raw_tokens_cut_anywhere() -> None:
    life = handshake(1, OAUTHBEARER, 0) + sized(bearer())
    for cut in range(1, len(life)):
        play = Playbook()
        play.client(life[:cut])
        play.raw = True
        play.client(life[cut:])
        assert play.session.principal == "User:alice"


def test_own_answers_wait_for_their_turn() -> None:
    """Between two responses of the broker, one cut through and one gathered."""
    play = Playbook(offer=everything(rewritten=frozenset({METADATA})))
    log_in(play)
    play.take()
    play.client(api_versions(3), fetch(4), api_versions(5), metadata(6), api_versions(7), fetch(8))
    play.client(api_versions(9))
    play.take()
    play.broker(response(4, b"a" * 40)[:20])
    assert play.take() == []
    play.broker(response(4, b"a" * 40)[20:], response(6, b"m" * 40)[:20])
    assert play.take() == [f"to client: #4 {'a' * 40}", "to client: #5 versions error 0"]
    play.broker(response(6, b"m" * 40)[20:], response(8, b"b")[:8])
    assert play.take() == [f"to client: #6 {'m' * 40}<rewritten>", "to client: #7 versions error 0"]
    play.broker(response(8, b"b")[8:])
    assert play.take() == ["to client: #8 b", "to client: #9 versions error 0"]


def test_a_frame_that_begins_as_others_did_may_still_be_too_long() -> None:
    play = logged_in(Playbook(request_max_bytes=1_000))
    short = produce(3)
    play.client(short)
    play.client(produce(4), produce(5, records=b"r" * 1_000))
    play.broker(response(3), response(4))
    assert play.to_broker == short + produce(4)
    assert play.connection.closed


@pytest.mark.parametrize(
    "wrong",
    [response(5), struct.pack(">ii", 3, 4) + b"\0" * 8],
    ids=["out of turn", "of an impossible size"],
)
def test_a_response_behind_a_good_one_may_still_be_wrong(wrong: bytes) -> None:
    play = logged_in()
    play.client(fetch(3), fetch(4), fetch(5))
    play.broker(response(3), wrong)
    assert play.connection.closed
    assert play.to_client.endswith(response(3))
