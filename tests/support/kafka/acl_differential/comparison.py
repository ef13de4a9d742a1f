"""Comparison of both servers' answers to every request of every profile."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from tests.support.kafka.acl_differential.profiles import PROFILES, THOROUGH, Names
from tests.support.kafka.acl_differential.questions import QUESTIONS, Context, Question
from tests.support.kafka.acl_differential.side import Client, Side
from tests.support.kafka.java import is_since
from tests.support.kafka.wire_client import Address, Outcome, ask

# Intended differences from Kafka's authorization and administration, and their questions.
#
# Each row is the first cell of a row of docs/compatibility.md, which has the reason

#: Users who may describe `one` but not everything beginning with `on`, or not even `one`.
_MAY_DESCRIBE_ONE = (
    "one",
    "only-read",
    "groups-and-read",
    "groups-and-write",
    "groups-and-describe",
    "groups-and-delete",
    "here",
    "everybody",
)
_MAY_NOT_DESCRIBE_ONE = ("deny-all", "deny-describe", "prefixed-deny", "deny-everybody")

#: What Kafka 4.4 does as the proxy does, and older judges do not, of the same versions of APIs.
_SINCE_4_4: Mapping[str, Sequence[str]] = {
    "AlterConfigs and IncrementalAlterConfigs of a broker, denied": tuple(
        f"{api} of {what}, validated only"
        for api in ("33 AlterConfigs", "44 IncrementalAlterConfigs")
        for what in ("the broker", "both")
    ),
    "AlterShareGroupOffsets of a denied topic": ("91 AlterShareGroupOffsets of ",),
    "StreamsGroupHeartbeat v0, denied": ("88 StreamsGroupHeartbeat of ",),
}

#: Maximum number of differences to print.
_SHOWN = 40

#: By difference: parts of the names of the cases that show it.
DELIBERATE: Mapping[str, Sequence[str]] = {
    "CreateAcls with ANY in one of several entries": tuple(
        f"{profile}: 30 CreateAcls, one of two odd: {{'{field}': 1}}"
        for profile in ("all", "cluster-alter")
        for field in ("resource_type", "operation", "permission_type")
    ),
    "ConsumerGroupHeartbeat with a regular expression": (
        "with a regex: .*",  # a profile's topics are denied to everybody
        *(
            f"{profile}: 68 ConsumerGroupHeartbeat of {group} with a regex: {regex} v"
            for group in ("one.cg", "two.cg", "missing")
            for regex, profiles in (
                ("on.*", (*_MAY_DESCRIBE_ONE, *_MAY_NOT_DESCRIBE_ONE)),
                ("one", _MAY_NOT_DESCRIBE_ONE),
            )
            for profile in profiles
        ),
    ),
    "ShareFetch of an unknown topic id": ("78 ShareFetch of an unknown id",),
    "StreamsGroupHeartbeat with internal topics": (
        "prefixed-read: 88 StreamsGroupHeartbeat of one.st with topic one",
        "prefixed-read: 89 StreamsGroupDescribe",  # of the group that was not made
    ),
    "AddPartitionsToTxn with a denied and a missing topic": (
        "24 AddPartitionsToTxn of one: one two missing",
        "24 AddPartitionsToTxn of two: one two missing",
    ),
    **({} if is_since("4.4") else _SINCE_4_4),
}


def explained_by(case: str) -> str | None:
    """The deliberate difference that a case shows."""
    for difference, parts in DELIBERATE.items():
        if any(part in case for part in parts):
            return difference
    return None


def compare(kafkas: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise AssertionError on an answer that differs in no documented way, or on a documented
    difference that no answer shows."""
    assert kafkas.keys() == ours.keys()
    different = differences(kafkas, ours)
    unexpected = [case for case in different if explained_by(case) is None]
    assert not unexpected, described(unexpected, kafkas, ours)
    assert {explained_by(case) for case in different} == set(DELIBERATE)


def differences(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """The cases with different answers."""
    return [case for case in left if left[case] != right.get(case)]


def described(cases: Sequence[str], left: Mapping[str, str], right: Mapping[str, str]) -> str:
    """How many cases differ by request, and the first of them."""
    counts = Counter(case.split(": ", 1)[-1].rsplit(" v", 1)[0] for case in cases)
    rows = [f"{count:5} {what}" for what, count in counts.most_common()]
    for case in cases[:_SHOWN]:
        rows += ["", case, *_around(left[case], right.get(case, "no answer"))]
    return "\n".join(rows)


def _around(left: str, right: str, width: int = 300) -> tuple[str, str]:
    # Long answers are cut to what surrounds their first difference
    pairs = enumerate(zip(left, right, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), 0)
    start = max(0, first - width // 2)
    return f"  < {left[start : start + width]}", f"  > {right[start : start + width]}"


# An answer as text that two right servers have in common.
#
# What depends on the run (ids, times, ports, a side's names) is replaced; lists whose order means
# nothing are sorted

#: CreateAcls and DeleteAcls answer item by item, without names.
_ORDERED = {30: "results", 31: "filter_results"}

_CLUSTER_DENIED = 31
_SHARE_FETCH = 78

#: What names an item of a list of everything there is.
_NAME_FIELDS = ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name")

#: Up to this number, foreign items are counted; there are more if all are shown.
_FEW = 40


def _hidden(text: str) -> Callable[[Any], str | None]:
    return lambda value: text if value not in (-1, 0, "", None) else repr(value)


#: By field name: what stands for its value; None leaves it out.
_FIELDS: Mapping[str, Callable[[Any], str | None]] = {
    "throttle_time": lambda _: None,
    "port": _hidden("PORT"),
    "cluster_id": _hidden("CLUSTER"),
    "producer_id": _hidden("PID"),
    "session_id": _hidden("SESSION"),
    "start_timestamp": _hidden("TIME"),
    "last_timestamp": _hidden("TIME"),
    "transaction_start_time": _hidden("TIME"),
    "partition_size": _hidden("SIZE"),
    "total_bytes": _hidden("SIZE"),
    "usable_bytes": _hidden("SIZE"),
    "client_instance_id": lambda _: "ID",
    "subscription_id": lambda _: "ID",
    "voter_directory_id": _hidden("ID"),
    "replica_directory_id": _hidden("ID"),
}

#: Fields of one API whose value is that of the moment.
_OF_THE_MOMENT = {
    2: {"timestamp"},
    55: {
        "high_watermark",
        "log_end_offset",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "leader_epoch",
    },
    60: {"broker_epoch"},
}


class Normal:
    """Turns the answers to one profile into text."""

    def __init__(self, names: Names, topics: Mapping[uuid.UUID, str]) -> None:
        self._names = names
        self._topics = topics

    def text(self, api_key: int, message: Any, *, is_list: bool = False) -> str:
        """One line; `is_list` hides and counts the items of others."""
        return _Writer(self._names, self._topics, api_key, is_list=is_list).value("", message)


class _Writer:
    def __init__(
        self, names: Names, topics: Mapping[uuid.UUID, str], api_key: int, *, is_list: bool
    ) -> None:
        self._names = names
        self._topics = topics
        self._moment = _OF_THE_MOMENT.get(api_key, set())
        self._ordered = _ORDERED.get(api_key)
        self._is_list = is_list
        self._api_key = api_key

    def value(self, name: str, value: Any) -> str:
        if is_dataclass(value):
            return self._structure(value)
        if isinstance(value, tuple | list):
            return self._sequence(name, value)
        if isinstance(value, str):
            return self._names.short(value) or "''"
        return self._plain(value)

    def _plain(self, value: Any) -> str:
        if isinstance(value, uuid.UUID):
            return f"id({self._names.short(self._topics.get(value, 'UNKNOWN'))})"
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, timedelta):
            return f"{round(value / timedelta(milliseconds=1))}ms"
        if isinstance(value, datetime):
            return "TIME"
        if isinstance(value, bytes | bytearray | memoryview):
            return f"bytes({len(value)})"
        return str(value)

    def _structure(self, value: Any) -> str:
        parts = []
        for field in fields(value):
            each = getattr(value, field.name)
            if field.name in self._moment:
                continue
            if field.name == "error_message" and each and value.error_code == _CLUSTER_DENIED:
                each = "SENTENCE"  # Kafka's prints the server's own objects
            special = _FIELDS.get(field.name)
            text = self.value(field.name, each) if special is None else special(each)
            if text is not None:
                parts.append(f"{field.name}={text}")
        return f"({' '.join(parts)})"

    def _sequence(self, name: str, values: Any) -> str:
        items = []
        foreign = 0
        for value in values:
            if self._api_key == _SHARE_FETCH and name == "responses" and not _errors(value):
                continue  # whether a broker has come to acquire records is a matter of moments
            owner = _name_of(value) if self._is_list else None
            if owner is None or owner.startswith(self._names.prefix):
                items.append(self.value(name, value))
            elif owner.startswith(f"{self._names.side}."):
                foreign += 1
        if name != self._ordered:
            items.sort()
        if foreign:
            items.append(f"+{foreign if foreign <= _FEW else 'many'} of others")
        return f"[{', '.join(items)}]"


def _errors(topic: Any) -> bool:
    return any(partition.error_code for partition in topic.partitions)


def _name_of(value: Any) -> str | None:
    for field in _NAME_FIELDS:
        name = getattr(value, field, None)
        if isinstance(name, str):
            return name
    return None


# Every question of the tables, asked by every profile, in the versions that both sides offer

Versions = Mapping[int, tuple[int, int]]

_AT_ONCE = 4

#: CreateAcls and DeleteAcls; what they do shows in DescribeAcls a moment later.
_CHANGE_ACLS = (30, 31)

#: What a streams group's coordinator says while the topics that it needs are being made.
_IS_MAKING_TOPICS = "Internal topics are missing"


def offered(address: Address) -> Versions:
    """What a listener says to ApiVersions."""
    answer: Any = ask(address, 18, 3, {"client_software_name": "a", "client_software_version": "1"})
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


def answer_all(
    side: Side, versions: Versions, profiles: Iterable[str] = PROFILES
) -> dict[str, str]:
    """By case: the answer. Profiles are independent of each other, so they share the time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = pool.map(lambda profile: list(_answers(side, profile, versions)), profiles)
        return dict(case for cases in done for case in cases)


def _answers(side: Side, profile: str, versions: Versions) -> Iterator[tuple[str, str]]:
    names = Names(side.name, profile)
    client = side.client(names.user)
    normal = Normal(names, side.topics)
    previous = None
    for question in QUESTIONS:
        if previous in _CHANGE_ACLS and question.api_key not in _CHANGE_ACLS:
            side.until_acls_are_known()
        previous = question.api_key
        if question.profiles is not None and profile not in question.profiles:
            continue
        for version in _versions(question, versions, is_thorough=profile in THOROUGH):
            context = Context(names, side, version)
            answer = _answer(client, normal, question, context)
            yield f"{profile}: {question.api_key} {question.label} v{version}", answer
            if _IS_MAKING_TOPICS in answer:
                side.until_topics_are_known()


def _answer(client: Client, normal: Normal, question: Question, context: Context) -> str:
    answer = client.ask(question.api_key, context.version, context.filled(question.fields))
    if isinstance(answer, Outcome):
        return answer.value
    return normal.text(question.api_key, answer, is_list=question.is_list)


def _versions(question: Question, offered: Versions, *, is_thorough: bool) -> Iterable[int]:
    if question.api_key not in offered:
        return ()
    low, high = offered[question.api_key]
    fitting = [each for each in range(low, high + 1) if question.since <= each <= question.until]
    if is_thorough or len(fitting) <= 3:
        return fitting
    return (fitting[0], fitting[len(fitting) // 2], fitting[-1])
