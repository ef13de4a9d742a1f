"""A differential fuzzer of the first look: what passes like a frame that was judged is allowed.

Each round sends the same frames, good and bent, to two connections of the same client: one that
remembers what it judged, and one that judges each frame as if it were the first. ACLs and fetch
sessions change between them. Invariants: both brokers are sent the same bytes, both clients are
answered the same, and both connections end alike.
Run: python -m tests.fuzz.fuzz_fingerprints --seconds 60 [--seed 1]
Exit status 1 if one is broken; the input is printed in hex.
"""

import random

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from proxy.acl.model import Operation
from proxy.wire.apis import FETCH, OFFSET_COMMIT, PRODUCE
from tests.support.authorization import Guarded, group, topic
from tests.support.frames import request, response
from tests.support.fuzzing import main, mutate
from tests.support.kio_messages import encode, request_type
from tests.support.kio_messages.entities import item_type, make
from tests.support.messages import fetch_body, produce_body, topic_id

NAMES = ("mine", "ours", "their")
HEARTBEAT = 12
SESSION = 77


class Fuzzer:
    """Each round is a connection, played twice."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.inputs: list[bytes] = []

    def round(self) -> None:
        rng = self.rng
        self.inputs = []
        known = {topic_id(name).bytes: name for name in NAMES}
        rights = self.rights()
        remembers, forgets = (Guarded(*rights, known=dict(known)) for _ in range(2))
        for _ in range(rng.randint(1, 30)):
            if rng.random() < 0.05:
                rights = self.rights()
                for one in (remembers, forgets):
                    if not one.play.connection.closed:
                        one.change(*rights)
            frames = [self.frame() for _ in range(rng.randint(1, 4))]
            self.inputs += frames
            remembers.play.client(*frames)
            for frame in frames:
                forgets.play.connection.pipe.forget()
                forgets.play.client(frame)
            assert remembers.play.to_broker == forgets.play.to_broker
            assert remembers.play.to_client == forgets.play.to_client
            assert sorted(remembers.play.log) == sorted(forgets.play.log)
            if remembers.play.connection.closed:
                break
            self.answer(remembers, forgets)

    def rights(self) -> tuple[frozenset[object], ...]:
        rng = self.rng
        return (
            topic(Operation.READ, *rng.sample(NAMES, rng.randint(0, 3))),
            topic(Operation.WRITE, *rng.sample(NAMES, rng.randint(0, 3))),
            group(Operation.READ, *rng.sample(("g", "h"), rng.randint(1, 2))),
        )

    def frame(self) -> bytes:
        rng = self.rng
        number = rng.randint(1, 2**31 - 1)
        topics = [
            (name, list(range(rng.randint(0, 2)))) for name in rng.sample(NAMES, rng.randint(0, 3))
        ]
        match rng.randint(0, 4):
            case 0:
                version = rng.choice((7, 9, 12, 13))
                body = produce_body(
                    version,
                    topics,
                    acks=rng.choice((-1, -1, 0)),
                    transactional_id=rng.choice((None, None, None, "t")),
                    records=bytes(rng.choice((1, 80, 300))),
                )
                frame = request(PRODUCE, version, number, body)
            case 1 | 2:
                version = rng.choice((11, 12, 13, 17))
                body = fetch_body(
                    version,
                    topics,
                    session_id=i32(rng.choice((0, SESSION, SESSION, SESSION + 1))),
                    session_epoch=i32(rng.choice((-1, 0, 1, 2, 3, 256))),
                )
                frame = request(FETCH, version, number, body)
            case 3:
                schema = request_type(HEARTBEAT, 4)
                body = encode(
                    make(
                        schema,
                        group_id=rng.choice("ghi"),
                        generation_id=i32(rng.randint(0, 1)),
                        member_id=rng.choice(("", "m")),
                    )
                )
                frame = request(HEARTBEAT, 4, number, body)
            case _:
                frame = self.commit(number, topics)
        return mutate(rng, frame) if rng.random() < 0.1 else frame

    def commit(self, number: int, topics: list[tuple[str, list[int]]]) -> bytes:
        rng, version = self.rng, self.rng.choice((8, 9, 10))
        schema = request_type(OFFSET_COMMIT, version)
        entry = item_type(schema, "topics")
        partition = item_type(entry, "partitions")
        body = make(
            schema,
            group_id=rng.choice("gh"),
            member_id="",
            topics=tuple(
                make(
                    entry,
                    name=TopicName(name),
                    topic_id=topic_id(name),
                    partitions=tuple(
                        make(
                            partition,
                            partition_index=i32(index),
                            committed_offset=i64(rng.randint(0, 2**40)),
                            committed_metadata=rng.choice(("", "x")),
                        )
                        for index in indexes
                    ),
                )
                for name, indexes in topics
            ),
        )
        return request(OFFSET_COMMIT, version, number, encode(body))

    def answer(self, remembers: Guarded, forgets: Guarded) -> None:
        """Answer all requests; sometimes a Fetch gets a session."""
        numbers = remembers.play.owed
        assert numbers == forgets.play.owed
        if remembers.play.connection.pipe.left:
            return
        session = self.rng.choice((SESSION, SESSION, SESSION + 1, 0))
        for number in numbers:
            body = b"\0" + bytes(6) + session.to_bytes(4) + bytes(self.rng.choice((1, 60)))
            for one in (remembers, forgets):
                if not one.play.connection.closed:
                    one.play.broker(response(number, body))
        assert remembers.play.to_client == forgets.play.to_client


if __name__ == "__main__":
    main(Fuzzer, __doc__, "every invariant held")
