"""The codec against Kafka's generated classes: every message in every version, byte for byte."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from proxy.wire.apis import APIS
from proxy.wire.codec import decode, encode
from proxy.wire.primitives import Malformed
from proxy.wire.schema import Field, Message
from tests.drift.definitions import OVERLAY
from tests.support.kafka.java import is_since, run_program
from tests.support.messages import request_kind, response_kind

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_kafka")]

EACH = 4
"""Messages of each kind and version."""
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TEXTS = ("", "a", "Zürich", "\N{GRINNING FACE}", "n" * 127, "n" * 300)


def made(kind: type[Message], version: int, random: Random) -> Message:
    """Any entity that has such a version."""
    present = [one for one in kind.FIELDS if one.versions.has(version)]
    return kind(**{one.name: _value(one, version, random) for one in present})


def _value(field: Field, version: int, random: Random) -> Any:
    if field.null.has(version) and random.random() < 0.2:
        return None
    if field.tag is not None and random.random() < 0.3:
        return field.default
    if field.is_array:
        count = random.choice((0, 1, 2, 2, 3))
        return tuple(_single(field, version, random) for _ in range(count))
    return _single(field, version, random)


def _single(field: Field, version: int, random: Random) -> Any:
    if field.struct is not None:
        return made(field.struct, version, random)
    if field.kind in BITS:
        bits = BITS[field.kind]
        return random.randrange(-(1 << bits), 1 << bits)
    others: dict[str, Callable[[], Any]] = {
        "bool": lambda: random.random() < 0.5,
        "uint16": lambda: random.randrange(1 << 16),
        "float64": lambda: random.uniform(-1e9, 1e9),
        "string": lambda: random.choice(TEXTS),
        "uuid": lambda: random.randbytes(16),
    }
    if field.kind in others:
        return others[field.kind]()
    return random.randbytes(random.choice((0, 3, 200)))


def versions_of_kafka() -> list[tuple[str, type[Message], int]]:
    """What the release under test has: not the versions of an older one, and not the overlay's."""
    older = {name for names in OVERLAY["releases"].values() for name in names}
    found = []
    for key in APIS:
        for which, kind in (("request", request_kind(key)), ("response", response_kind(key))):
            first, last = kind.HEAD.versions
            last -= kind.HEAD.name in OVERLAY["changes"]
            first += kind.HEAD.name in older
            found += [(which, kind, version) for version in range(first, last + 1)]
    return found


def answers(lines: list[str]) -> list[str]:
    done = run_program("Messages", (), stdin="\n".join(lines) + "\n")
    assert done.exit_status == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not is_since("4.4"), reason="the messages are those of 4.4")
def test_kafka_reads_and_writes_the_same_bytes() -> None:
    random = Random(44)  # noqa: S311
    asked, expected = [], []
    for which, kind, version in versions_of_kafka():
        for _ in range(EACH):
            entity = made(kind, version, random)
            body = encode(entity, version)
            assert decode(kind, version, body) == entity
            asked.append(f"{which} {kind.HEAD.api_key} {version} {body.hex()}")
            expected.append(body.hex())
    assert len(asked) > 2_000
    found = answers(asked)
    different = [
        (ask[:60], answer[:200])
        for ask, answer, body in zip(asked, found, expected, strict=True)
        if answer != body
    ]
    assert different == []


@pytest.mark.skipif(not is_since("4.4"), reason="the messages are those of 4.4")
def test_what_the_codec_accepts_kafka_reads_the_same() -> None:
    """Bytes that were changed at random: what is authorized is what is carried out."""
    random = Random(45)  # noqa: S311
    asked, expected = [], []
    for which, kind, version in versions_of_kafka():
        for _ in range(EACH):
            changed = bytearray(encode(made(kind, version, random), version))
            for _ in range(random.randrange(1, 4)):
                if changed:
                    changed[random.randrange(len(changed))] = random.choice(
                        (0, 1, 2, 127, 128, 255)
                    )
            try:
                entity = decode(kind, version, bytes(changed))
            except Malformed:
                continue
            written = encode(entity, version)
            if len(written) == len(changed):  # neither unknown tags nor bytes behind the body
                asked.append(f"{which} {kind.HEAD.api_key} {version} {changed.hex()}")
                expected.append(written.hex())
    assert len(asked) > 500
    different = [
        (ask, answer)
        for ask, answer, body in zip(asked, answers(asked), expected, strict=True)
        if answer != body
    ]
    assert different == []
