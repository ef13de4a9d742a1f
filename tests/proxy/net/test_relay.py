"""The relay with real sockets: every byte, in order, whatever the kernel takes at a time."""

import asyncio
import hashlib
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kio.schema.describe_groups.v5.response import DescribeGroupsResponse

from proxy.acl.model import Operation
from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.connection.life import PauseReason
from proxy.net import read_buffer
from proxy.net import relay as module
from proxy.wire.error_codes import ErrorCode
from tests.support import relay as harness
from tests.support.authorization import (
    LITTLE,
    MUCH,
    PADDING,
    Judge,
    describe,
    described,
    group,
    produced_topics,
    topic,
)
from tests.support.authorization import produce as denied_produce
from tests.support.frames import fetch, metadata, produce, response, sized
from tests.support.kio_messages import decode
from tests.support.playbook import Offer, everything
from tests.support.processes import PATIENCE_SECONDS, until
from tests.support.relay import (
    MEGABYTE,
    PLAIN,
    SMALL_BUFFER,
    Secured,
    answer_at_length,
    answer_slowly,
    read_frame,
    relayed,
)
from tests.support.tls import BACK, BOTH, FRONT

REWRITING = everything()


@pytest.fixture(
    params=[
        pytest.param(Secured(), id="plain"),
        pytest.param(FRONT, id="clients", marks=pytest.mark.slow),
        pytest.param(BACK, id="brokers", marks=pytest.mark.slow),
        pytest.param(BOTH, id="both"),
    ]
)
def with_and_without_tls(request: pytest.FixtureRequest) -> Iterator[None]:
    """The laws of the relay hold with TLS on either side."""
    harness.present[0] = request.param
    yield
    harness.present[0] = Secured()


@pytest.mark.usefixtures("with_and_without_tls")
@pytest.mark.parametrize("receive_buffer", [None, SMALL_BUFFER])
@pytest.mark.parametrize("offer", [PLAIN, REWRITING])
async def test_20_megabytes_both_ways(receive_buffer: int | None, offer: Offer) -> None:
    """Partial writes on both sides at once: no byte of a reused buffer may slip in."""
    count = 20 if receive_buffer is None else 4
    bodies = [os.urandom(MEGABYTE) for _ in range(count)]
    requests = [produce(number, records=body) for number, body in enumerate(bodies)]
    answers = [response(number, body[::-1]) for number, body in enumerate(bodies)]
    arrived, received = hashlib.sha256(), hashlib.sha256()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            content = await read_frame(reader)
            arrived.update(sized(content))
            writer.write(answer)
            await writer.drain()
        await reader.read()

    async with relayed(broker, offer=offer, receive_buffer=receive_buffer) as relay:

        async def send() -> None:
            for request in requests:
                relay.writer.write(request)
                await relay.writer.drain()

        sending = asyncio.create_task(send())
        for _ in answers:
            received.update(sized(await relay.frame()))
        await sending
    assert arrived.digest() == hashlib.sha256(b"".join(requests)).digest()
    assert received.digest() == hashlib.sha256(b"".join(answers)).digest()


@pytest.mark.usefixtures("with_and_without_tls")
async def test_what_the_socket_holds_at_the_end_of_a_session_is_on_time() -> None:
    """With TLS perhaps a record more. The turns of others are not the client's delay."""
    waiting = [produce(number, records=bytes(1_000)) for number in range(10, 30)]
    async with relayed(answer_slowly, offer=PLAIN, max_reauth_ms=1_000) as relay:
        (client,) = relay.shell.clients
        connection = client.connection
        assert connection is not None
        relay.writer.write(fetch(3))
        await relay.frame()
        client.call(lambda connection, _: connection.hold(PauseReason.TURN))
        relay.writer.write(b"".join(waiting))
        await until(lambda: connection.stages.unmeasured_end == math.inf)
        client.call(lambda connection, now: connection.release(PauseReason.TURN, now))
        answered = [int.from_bytes((await relay.frame())[:4]) for _ in waiting]
        assert answered == list(range(10, 30))
        relay.writer.write(b"".join(waiting * 2))
        more = await relay.reader.read()
        assert len(more) <= 20 * len(response(10))
    assert relay.shell.play.log[-2:] == ["expired enforce by Produce", "closed expired"]


@pytest.mark.usefixtures("with_and_without_tls")
async def test_many_small_frames_between_large_ones() -> None:
    """Frames cut at the end of the read buffer, with rewritten answers in between."""
    requests, answers, expected = [], [], []
    for number in range(600):
        if number % 3 == 0:
            requests.append(produce(number, records=os.urandom(number * 37)))
            body = os.urandom(number * 29)
        elif number % 3 == 1:
            requests.append(metadata(number))
            body = os.urandom(50)
        else:
            requests.append(fetch(number))
            body = os.urandom(number * 11)
        answers.append(response(number, body))
        rewritten = b"<rewritten>" if number % 3 == 1 else b""
        expected.append(response(number, body + rewritten)[4:])

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_frame(reader)
            writer.write(answer)
        await reader.read()

    async with relayed(broker, offer=REWRITING) as relay:
        relay.writer.write(b"".join(requests))
        for content in expected:
            assert await relay.frame() == content


async def test_long_requests_and_responses_of_a_judged_connection() -> None:
    """Frames that are judged and cut in steps keep their order among the others."""
    names = [f"v{number}".ljust(PADDING, ".") for number in range(MUCH)]
    judge = Judge(group(Operation.DESCRIBE, "mine", *names))
    requests = [
        describe(1, more=MUCH),
        describe(2, "mine"),
        describe(3, "hidden", more=MUCH),
        describe(4, "hidden", more=LITTLE, hidden=True),
        describe(5, "mine"),
    ]
    long = described(0, *names)

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert sized(await read_frame(reader)) == requests[0]
        assert sized(await read_frame(reader)) == requests[1]
        assert b"hidden" not in await read_frame(reader)
        for correlation_id in (1, 2, 3):
            writer.write(long[:4] + struct.pack(">i", correlation_id) + long[8:])
        # the data kept for the response to a long one leaves no memory for others meanwhile
        assert sized(await read_frame(reader)) == requests[4]
        writer.write(long[:4] + struct.pack(">i", 5) + long[8:])
        await reader.read()

    async with relayed(broker, offer=PLAIN, rights=judge) as relay:
        relay.writer.write(b"".join(requests))
        answers = [decode(DescribeGroupsResponse, await relay.frame(), 5) for _ in requests]
        assert [len(one.groups) for one in answers] == [MUCH, MUCH, MUCH + 1, LITTLE + 1, MUCH]
        assert answers[2].groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_half_closed_client_gets_its_answers() -> None:
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        relay.writer.write(fetch(3) + fetch(4))
        relay.writer.write_eof()
        assert await relay.frame() == response(3, b"late")[4:]
        assert await relay.frame() == response(4, b"late")[4:]
        assert await relay.reader.read() == b""
    assert relay.shell.play.take()[-1] == "closed client_closed"


async def test_an_idle_half_closed_client_is_closed_at_once() -> None:
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        relay.writer.write_eof()
        assert await asyncio.wait_for(relay.reader.read(), PATIENCE_SECONDS) == b""
        await until(lambda: not relay.shell.clients)
    assert relay.shell.play.take()[-1] == "closed client_closed"


async def test_a_half_closed_unauthenticated_client_is_closed_at_once() -> None:
    async with relayed(answer_slowly, offer=PLAIN) as relay:
        port = relay.writer.get_extra_info("peername")[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\0\0\0\x40half a frame")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        writer.close()


@pytest.mark.parametrize("size", [MEGABYTE, 0])
async def test_an_acks_0_request_before_a_close_arrives(size: int) -> None:
    """Fire and forget, then gone: Kafka would have written it. A small request and FIN are in one
    turn of the loop: the close drops no byte."""
    request = produce(4, acks=0, records=os.urandom(size))
    arrived: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(response(3))
        await asyncio.sleep(0.05 if size else 0)
        arrived.append(await read_frame(reader))

    async with relayed(broker, offer=PLAIN, receive_buffer=SMALL_BUFFER) as relay:
        relay.writer.write(fetch(3))
        await relay.frame()
        relay.writer.write(request)
        relay.writer.write_eof()
        await relay.reader.read()
        await until(lambda: bool(arrived))
    assert arrived == [request[4:]]


@pytest.mark.usefixtures("with_and_without_tls")
async def test_a_broker_that_closes_in_the_middle_takes_the_client_along() -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(response(3, b"r" * 1000)[:500])

    async with relayed(broker, offer=PLAIN) as relay:
        relay.writer.write(fetch(3))
        assert len(await relay.reader.read()) == 500
    assert relay.shell.play.take()[-1] == "closed broker_closed"


@pytest.mark.usefixtures("with_and_without_tls")
async def test_a_client_that_goes_takes_its_broker_along() -> None:
    """After the answer: a close looks like the end of sending, until something is sent."""
    asked, gone, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        asked.set()
        await gone.wait()
        writer.write(response(3))
        try:
            await reader.read()
        finally:
            ended.set()

    async with relayed(broker, offer=PLAIN) as relay:
        relay.writer.write(fetch(3))
        await asked.wait()
        relay.writer.transport.abort()
        gone.set()
        await ended.wait()


async def test_a_client_that_does_not_read_its_last_bytes_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A close waits for what was written, but not forever: `LINGER`."""
    monkeypatch.setattr(module, "LINGER", 1.0)
    async with relayed(answer_at_length, offer=PLAIN, receive_buffer=SMALL_BUFFER) as relay:
        relay.writer.transport.pause_reading()  # type: ignore[attr-defined]
        relay.writer.write(fetch(3))
        (client,) = relay.shell.clients
        transport = client._transport
        assert transport is not None
        await until(lambda: transport.get_write_buffer_size() > 0)
        began = asyncio.get_running_loop().time()
        client.call(finishing(CloseReason.DRAINED))
        assert relay.shell.clients
        await until(lambda: not relay.shell.clients)
        assert asyncio.get_running_loop().time() - began > 0.9
    assert relay.shell.play.take()[-1] == "closed drained"


@pytest.mark.usefixtures("with_and_without_tls")
async def test_memory_is_bounded_when_a_client_does_not_read() -> None:
    """The broker is not read either: what it sends stays in its own kernel."""
    sent = 0

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_frame(reader)
        writer.write(struct.pack(">ii", 200 * MEGABYTE, 3))
        while True:
            writer.write(b"r" * 100_000)
            await writer.drain()
            sent += 100_000

    async with relayed(broker, offer=PLAIN) as relay:
        relay.writer.transport.pause_reading()  # type: ignore[attr-defined]
        relay.writer.write(fetch(3))
        seen: list[int] = []
        while not seen or sent == 0 or sent != seen[-1]:  # it comes to rest
            seen.append(sent)
            await asyncio.sleep(0.2)
        client = next(iter(relay.shell.clients))
        assert client._transport is not None
        most = read_buffer.BUFFER_BYTES * 17 // 16  # TLS adds to each record
        assert client._transport.get_write_buffer_size() <= most


PARTLY_DENIED = denied_produce(3, "mine", "other", acks=0)


@pytest.mark.parametrize("secured", [Secured(), FRONT])
async def test_a_denial_closes_when_the_broker_has_read_the_rest(secured: Secured) -> None:
    """Allowed records were written when the client sees the end: with acks=0 it gets no other
    answer. (With TLS to brokers asyncio, which is the broker here, closes by itself.)"""
    steps: list[str] = []

    async def broker(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        steps.append(f"reads {produced_topics(sized(await read_frame(reader)))}")
        assert await reader.read() == b""
        await asyncio.sleep(0.05)  # or its client would be quicker
        steps.append("closes")

    judge = Judge(topic(Operation.WRITE, "mine"))
    async with relayed(broker, offer=PLAIN, rights=judge, secured=secured) as relay:
        relay.writer.write(PARTLY_DENIED)
        assert await asyncio.wait_for(relay.reader.read(), PATIENCE_SECONDS) == b""
        steps.append("the client is closed")
    assert steps == ["reads ['mine']", "closes", "the client is closed"]
    assert relay.shell.play.take()[-1] == "closed denied"


@pytest.mark.usefixtures("with_and_without_tls")
async def test_a_denial_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may hang."""
    monkeypatch.setattr(module, "LINGER", 0.05)
    over = asyncio.Event()

    async def broker(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        await over.wait()

    judge = Judge(topic(Operation.WRITE, "mine"))
    async with relayed(broker, offer=PLAIN, rights=judge) as relay:
        relay.writer.write(PARTLY_DENIED)
        assert await asyncio.wait_for(relay.reader.read(), PATIENCE_SECONDS) == b""
        await until(lambda: not relay.shell.clients)
        over.set()
    assert relay.shell.play.take()[-1] == "closed denied"


async def test_a_silent_client_is_closed_by_a_timer_of_its_own() -> None:
    """Armed when it connects, to the time for a login; what was put off is seen when it is due."""

    async def broker(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with relayed(broker, offer=PLAIN) as relay:
        (client,) = relay.shell.clients
        connection = client.connection
        assert connection is not None
        assert client._wakes_at == connection.connected_at + 10.0
        connection.rules = replace(connection.rules, max_idle=0.1)
        client._wake()
        assert client._wakes_at == connection.next_deadline()
        assert await asyncio.wait_for(relay.reader.read(), PATIENCE_SECONDS) == b""
        assert "closed idle" in relay.shell.play.log
