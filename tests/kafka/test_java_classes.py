"""Comparisons with Kafka's own Java classes, without a broker.

Its generated messages judge the codec and the data files, its `SslPrincipalMapper` the principals
of certificates, and its `StandardAuthorizer` the decisions, about clients with groups, too. The
authorizer knows clients of one principal. It is asked about each of a client's principals, and the
answers are combined by the rule of docs/acls.md: denied if an ACL denies any of them, else allowed
if any is allowed.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.wire.apis import APIS
from proxy.wire.codec import decode, encode
from proxy.wire.primitives import Malformed
from proxy.wire.schema import Field, Message
from tests.drift.definitions import OVERLAY
from tests.drift.generate import CLIENTS, ERROR_CODES, MESSAGES, error_codes_of, messages_of
from tests.drift.settings import read_settings
from tests.support.acls import acl
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
from tests.support.kafka.java import KAFKA_VERSION, class_path, is_since, run_program
from tests.support.messages import request_kind, response_kind

pytestmark = pytest.mark.kafka

EACH = 4
"""Number of messages per kind and version."""
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TEXTS = ("", "a", "Zürich", "\N{GRINNING FACE}", "n" * 127, "n" * 300)


def made(kind: type[Message], version: int, random: Random) -> Message:
    """A random message of this version."""
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
    """Versions in the release under test, without older ones and those of the overlay."""
    older = {name for names in OVERLAY["releases"].values() for name in names}
    found = []
    for key in APIS:
        for which, kind in (("request", request_kind(key)), ("response", response_kind(key))):
            first, last = kind.HEAD.versions
            last -= kind.HEAD.name in OVERLAY["changes"]
            first += kind.HEAD.name in older
            found += [(which, kind, version) for version in range(first, last + 1)]
    return found


def assert_answers(asked: list[str], expected: list[str]) -> None:
    """Kafka's classes read these bytes and write the expected ones."""
    done = run_program("Messages", (), stdin="\n".join(asked) + "\n")
    assert done.exit_status == 0, done.stderr
    found = zip(asked, done.stdout.splitlines(), expected, strict=True)
    assert [(ask, answer) for ask, answer, body in found if answer != body] == []


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
    assert_answers(asked, expected)


@pytest.mark.skipif(not is_since("4.4"), reason="the messages are those of 4.4")
def test_what_the_codec_accepts_kafka_reads_the_same() -> None:
    """Kafka reads randomly changed bytes as the codec does, so it executes what was authorized."""
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
            if len(written) == len(changed):  # without unknown tags and trailing bytes
                asked.append(f"{which} {kind.HEAD.api_key} {version} {changed.hex()}")
                expected.append(written.hex())
    assert len(asked) > 500
    assert_answers(asked, expected)


# --- the data files


def clients_jar() -> Path:
    return Path(class_path().removesuffix("/*")) / f"{CLIENTS}-{KAFKA_VERSION}.jar"


def test_the_files_are_those_that_are_generated(tmp_path: Path) -> None:
    text = MESSAGES.read_text()
    found = re.match(r"# Messages of Apache Kafka (\S+),", text)
    assert found is not None
    if found[1] != KAFKA_VERSION:
        pytest.skip(f"the messages are those of {found[1]}")
    assert text == messages_of(KAFKA_VERSION, clients_jar(), tmp_path)
    assert ERROR_CODES.read_text() == error_codes_of(KAFKA_VERSION)


def test_its_settings_are_found() -> None:
    settings = read_settings([clients_jar()])
    assert {"sasl.oauthbearer.jwks.endpoint.url", "ssl.truststore.certificates"} <= settings


# --- principals of certificates

REFUSES = "refused"
CONTROLS = [case for case, (_, why) in NOBODY.items() if "control" in why]


def asked(questions: Sequence[tuple[bytes | str, ...]]) -> list[str | None]:
    """Principals from one Java program: a name, `refused`, or None."""
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


@pytest.mark.slow
def test_kafka_names_whom_the_proxy_names() -> None:
    """Java 17 reads UTF-16 as UTF-8 and keeps control characters; both are documented."""
    questions: dict[str, list[tuple[bytes | str, ...]]] = {
        "names": [(der,) for der, _ in NAMES.values()],
        "otherwise": [(der,) for der, _ in OTHERWISE.values()],
        "controls": [(NOBODY[case][0],) for case in CONTROLS],
        "rules": [(rules, subject) for rules, subject, _ in RULES],
        "refused": [(rules, DUKE) for rules, _ in REFUSED],
        "refused here": [(rules, DUKE) for rules, _ in REFUSED_HERE],
        "emptied": [*EMPTIED],
    }
    answers = iter(asked([*chain(*questions.values())]))
    found = {part: [*islice(answers, len(lines))] for part, lines in questions.items()}
    assert found["names"] == [name for _, name in NAMES.values()]
    for one, (_, name) in zip(found["otherwise"], OTHERWISE.values(), strict=True):
        assert one == name or (one is not None and "\\00" in one)
    assert all(found["controls"])
    assert found["rules"] == [expected for _, _, expected in RULES]
    assert set(found["refused"]) == {REFUSES}
    assert REFUSES not in found["refused here"], "it belongs in the other table"
    assert found["emptied"] == ["", ""]


# --- decisions of the authorizer for groups

SETS = 4_000
MAX_ACLS = 10
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
RESOURCES = ("a", "ab", "abc", "abd", "b", "hard")
PATTERNS = (PatternType.LITERAL, PatternType.LITERAL, PatternType.PREFIXED)
PERMISSIONS = (Permission.ALLOW, Permission.ALLOW, Permission.DENY)
GROUPS = tuple(f"Group:{name}" for name in "abcde")
PRINCIPALS = ("User:a", "User:b", "User:*", "Group:*", "User:Group:a", *GROUPS)
ACL_HOSTS = ("*", "*", "10.0.0.1", "192.0.2.1")
HOSTS = ("10.0.0.1", "10.0.0.2")
CROWD = tuple(f"Group:crowd{number}" for number in range(12))
OF_CROWD = tuple(
    Acl(kind, PatternType.LITERAL, "other", one, "*", Operation.ALL, Permission.ALLOW)
    for one in CROWD
    for kind in TYPES
)
"""Groups without a rule for any of `RESOURCES`. With them a client has so many that the rules of
all groups are searched at once."""

OPERATIONS = tuple(one for one in Operation if Operation.ALL < one <= Operation.IDEMPOTENT_WRITE)


@dataclass(frozen=True, slots=True)
class Case:
    """A set of ACLs and one decision for one client."""

    acls: tuple[Acl, ...]
    everyone: bool
    principals: tuple[str, ...]
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str

    def lines(self) -> list[str]:
        """Input of `Decisions`: whether each principal is allowed, whether the first one is on any
        resource, and whether an ACL denies each."""
        asked = f"{self.host} {self.operation.value} {self.resource_type.value} {self.name}"
        allows_all = acl(
            self.name, "User:*", resource_type=self.resource_type, operation=Operation.ALL
        )
        lines = []
        for acls in (self.acls, {*self.acls, allows_all}):
            lines.append(f"set {str(self.everyone).lower()}")
            lines += [_line(one) for one in acls]
            lines += [f"ask {principal} {asked}" for principal in self.principals]
            if acls is self.acls:
                lines.append(f"any {self.principals[0]} {asked}")
        return lines


def _line(one: Acl) -> str:
    return (
        f"acl {one.resource_type.value} {one.pattern_type.value} {one.name} {one.principal}"
        f" {one.host} {one.operation.value} {one.permission.value}"
    )


def drawn(random: Random) -> Case:
    def one() -> Acl:
        return Acl(
            random.choice(TYPES),
            pattern := random.choice(PATTERNS),
            random.choice(RESOURCES if pattern is PatternType.PREFIXED else (*RESOURCES, "*")),
            random.choice(PRINCIPALS),
            random.choice(ACL_HOSTS),
            random.choice((Operation.ALL, *OPERATIONS)),
            random.choice(PERMISSIONS),
        )

    groups = random.sample(GROUPS, random.randint(0, len(GROUPS)))
    return Case(
        tuple({one() for _ in range(random.randint(1, MAX_ACLS))}),
        random.random() < 0.3,
        (random.choice(("User:a", "User:b")), *groups),
        random.choice(HOSTS),
        random.choice(OPERATIONS),
        random.choice(TYPES),
        random.choice(RESOURCES),
    )


@pytest.mark.slow
@pytest.mark.skipif(not is_since("4.1"), reason="StandardAuthorizer is started so since 4.1")
def test_any_groups_are_judged_as_kafka_judges_each() -> None:
    random = Random(1)  # noqa: S311 - the same ones each time
    cases = [drawn(random) for _ in range(SETS)]
    stdin = "".join(f"{line}\n" for case in cases for line in case.lines())
    done = run_program("Decisions", [], stdin=stdin)
    assert done.exit_status == 0, done.stderr
    answers = iter(done.stdout.split())
    results = [0, 0]
    for case in cases:
        count = len(case.principals)
        *may, may_any = (one == "ALLOWED" for one in islice(answers, count + 1))
        undenied = [one == "ALLOWED" for one in islice(answers, count)]
        expected = all(undenied) and any(may)
        for crowd, of_crowd in (((), ()), (CROWD, OF_CROWD)):
            index = AclIndex(
                (*case.acls, *of_crowd), allow_everyone_if_no_acl_found=case.everyone, version=1
            )
            decision = index.decide(
                (*case.principals, *crowd), case.host, case.operation, case.resource_type, case.name
            )
            assert decision.allowed is expected, (case, may, undenied, crowd)
            if not crowd:
                question = case.principals[:1], case.host, case.operation, case.resource_type
                assert index.decide_any(*question).allowed is may_any, case
        results[expected] += 1
    assert next(answers, None) is None
    assert min(results) > SETS / 10, "one answer is as good as the other"
