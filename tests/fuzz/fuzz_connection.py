"""A mutational fuzzer of a whole connection: what clients and brokers may send, bent.

Seeds are good frames; each round logs in or not, bends some frames, cuts them anywhere and mixes
both sides. Invariants: no exception, no byte to the broker before authentication (which
`Playbook` asserts), kept bytes bounded, answers in the order of their requests.
Run: python -m tests.fuzz.fuzz_connection --seconds 60 [--seed 1]
Exit status 1 if one is broken; the input is printed in hex.
"""

import random
import struct
from dataclasses import replace
from itertools import pairwise
from typing import Final

from proxy.connection.connection import Connection
from proxy.connection.inflight import MAX_IN_FLIGHT, LatencySampler
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.wire.api_versions import BrokerIdentity
from sasl.states import Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    meaning,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.support.fuzzing import main, mutate
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, everything, log_in

RECEIVE_SIZE: Final = 20_000
"""`sasl.server.max.receive.size` of the rounds: small, so that it is reached."""
MAX_KEPT: Final = 2 * BUFFER_BYTES + RECEIVE_SIZE + MAX_IN_FLIGHT * 2_000
"""Two reads, one gathered frame, and the proxy's own answers that wait for their turn."""


IDENTIFIED: Final = replace(
    everything(), identity=BrokerIdentity(cluster_id="c", node_ids=frozenset({1}))
)


class Fuzzer:
    """Each round is one connection."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.inputs: list[bytes] = []
        self.ids = 0

    def round(self) -> None:
        rng = self.rng
        self.inputs, self.ids = [], 100
        play = Playbook(
            enforcement=rng.choice(list(Enforcement)),
            max_reauth_ms=rng.choice((0, 2_000)),
            sasl_max_receive_size=RECEIVE_SIZE,
            request_max_bytes=100_000,
            connects=rng.random() < 0.8,
            offer=IDENTIFIED,
            latency=LatencySampler(rng.random, lambda _key, _broker, _proxy: None),
        )
        good = rng.random() < 0.3  # nothing is altered, so the order can be checked
        if rng.random() < 0.8:
            log_in(play)
        play.raw = True  # altered answers cannot be decoded
        for _ in range(rng.randint(1, 20)):
            if play.connection.closed:
                break
            self.step(play, good)
            assert play.kept_bytes <= MAX_KEPT, play.kept_bytes
            assert len(play.connection.inflight) <= MAX_IN_FLIGHT + BUFFER_BYTES // 14
        if good:
            received = [struct.unpack_from(">i", frame)[0] for frame in play.received]
            ours = [correlation_id for correlation_id in received if correlation_id >= 100]
            assert ours == sorted(ours), ours

    def step(self, play: Playbook, good: bool) -> None:
        rng = self.rng
        match rng.randint(0, 9):
            case 0 | 1 | 2 | 3 | 4:
                self.send(play, self.frames(good), good)
            case 5 | 6 | 7:
                self.answer(play, good)
            case 8:
                play.now += rng.choice((0.001, 0.5, 1.5, 100.0))
                play.call(Connection.timer)
            case _:
                self.happen(play)

    def frames(self, good: bool) -> bytes:
        rng = self.rng
        frames = []
        for _ in range(rng.randint(1, 6)):
            self.ids += 1
            number, body = self.ids, bytes(rng.choice((0, 3, 300, 3_000)))
            choices = [fetch(number, body), metadata(number), produce(number, records=body)]
            choices += [produce(number, acks=0), api_versions(number, rng.randint(0, 4))]
            choices += [meaning(number, rng.choice((None, "c", "k" * 300)), rng.randint(-2, 3))]
            if not good:
                choices += [
                    handshake(number, rng.choice((SCRAM, OAUTHBEARER, "PLAIN")), rng.randint(0, 2)),
                    authenticate(
                        number, rng.choice((bearer(), b"n,,n=alice,r=x")), rng.randint(0, 2)
                    ),
                    request(rng.randint(-1, 95), rng.randint(-1, 15), number, body),
                    sized(bytes(rng.randint(0, 40))),
                ]
            frames.append(rng.choice(choices))
        return b"".join(frames)

    def send(self, play: Playbook, data: bytes, good: bool) -> None:
        if not good and self.rng.random() < 0.5:
            data = mutate(self.rng, data)
        for piece in self.cut(data):
            self.inputs.append(b"client " + piece)
            play.client(piece)

    def answer(self, play: Playbook, good: bool) -> None:
        """Answer some requests in order, correctly or not."""
        entries = play.owed
        whole = entries[: self.rng.randint(0, 4)]
        if good and play.connection.pipe.left and len(whole) == len(entries):
            whole = whole[:-1]  # a correct broker does not answer partial requests
        partly = play.connection.responses.left or play.connection.responses._gathered
        if good and (partly or play.connection.responses.rest):
            return
        data = b"".join(response(one, bytes(self.rng.choice((0, 9, 9_000)))) for one in whole)
        if not good and self.rng.random() < 0.3:
            data = mutate(self.rng, data)
        for piece in self.cut(data):
            self.inputs.append(b"broker " + piece)
            play.broker(piece)

    def cut(self, data: bytes) -> list[bytes]:
        places = sorted(self.rng.randint(0, len(data)) for _ in range(self.rng.randint(0, 5)))
        edges = [0, *places, len(data)]
        return [data[one:two] for one, two in pairwise(edges) if one < two]

    def happen(self, play: Playbook) -> None:
        """Other events on a connection."""
        rng = self.rng
        full = rng.random() < 0.5
        self.inputs.append(b"something")
        match rng.randint(0, 7):
            case 0:
                play.call(Connection.drain)
            case 1:
                play.call(Connection.client_finished)
            case 2 if play.connection.holds & 1:
                play.broker_connects()
            case 3:
                play.call(lambda connection, now: connection.client_full(full, now))
            case 4 if play.connection.pipe.to_broker is not None:
                play.call(lambda connection, now: connection.broker_full(full, now))
            case 5 if (
                play.connection.authentication.waiting is not None
                and play.connection.requests.relaying
            ):
                play.call(lambda connection, now: connection.store_answered(b"", now))
            case 6:
                play.call(Connection.broker_closed)
            case _:
                play.call(Connection.timer)


if __name__ == "__main__":
    main(Fuzzer, __doc__, "every invariant held")
