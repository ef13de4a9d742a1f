"""Java and Kafka themselves say whom a certificate is for, and what rules make of it."""

from base64 import b64decode, b64encode
from collections.abc import Sequence

import pytest

from tests.support.certificates import (
    DUKE,
    EMPTIED,
    NAMES,
    NOBODY,
    OTHERWISE,
    REFUSED,
    REFUSED_HERE,
    RULES,
)
from tests.support.kafka.java import run_program

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("require_kafka")]

REFUSES, NAMES_NOBODY = "refused", None
CONTROLS = [case for case, (_, why) in NOBODY.items() if "control" in why]


def asked(questions: Sequence[tuple[bytes | str, ...]]) -> list[str | None]:
    """One program for all of them: the name, `refused`, or None for nobody."""
    parts = [
        [one if isinstance(one, bytes) else one.encode() for one in line] for line in questions
    ]
    text = "".join(" ".join(b64encode(one).decode() for one in line) + "\n" for line in parts)
    done = run_program("Principals", [], stdin=text)
    assert done.exit_status == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions)
    return [
        b64decode(one[1:]).decode() if one.startswith("=") else None if one == "nobody" else one
        for one in answers
    ]


def test_java_writes_names_as_the_proxy_does() -> None:
    said = asked([(der,) for der, _ in NAMES.values()])
    assert dict(zip(NAMES, said, strict=True)) == {case: name for case, (_, name) in NAMES.items()}


def test_java_reads_some_names_otherwise() -> None:
    """Java 17 takes UTF-16 for UTF-8, and lets control characters be; both are documented."""
    said = asked([(der,) for der, _ in OTHERWISE.values()])
    for one, (_, name) in zip(said, OTHERWISE.values(), strict=True):
        assert one == name or (one is not None and "\\00" in one)
    assert all(asked([(NOBODY[case][0],) for case in CONTROLS]))


def test_kafka_maps_names_as_the_proxy_does() -> None:
    said = asked([(rules, subject) for rules, subject, _ in RULES])
    assert said == [expected for _, _, expected in RULES]


def test_kafka_refuses_what_the_proxy_refuses() -> None:
    assert set(asked([(rules, DUKE) for rules, _ in REFUSED])) == {REFUSES}


def test_kafka_takes_what_is_refused_here_alone() -> None:
    """Or refuses it too: then it is in the wrong table."""
    refused = asked([(rules, DUKE) for rules, _ in REFUSED_HERE])
    assert REFUSES not in refused
    assert asked(EMPTIED) == ["", ""]
