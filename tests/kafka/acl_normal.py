"""An answer as text that two right servers have in common.

What depends on the run (ids, times, ports, a side's names) is replaced; lists whose order means
nothing are sorted.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from tests.kafka.acl_profiles import Names

#: CreateAcls and DeleteAcls answer item by item, without names.
_ORDERED = {30: "results", 31: "filter_results"}

_CLUSTER_DENIED = 31
_SHARE_FETCH = 78

#: What names an item of a list of everything there is.
_NAME_FIELDS = ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name")

#: With at most so many the number of foreign items is told; there are more if all are shown.
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
        """One line; `is_list` hides what belongs to others and tells how much it is."""
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
