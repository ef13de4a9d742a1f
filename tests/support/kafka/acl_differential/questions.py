"""Questions of the differential test of ACLs, from `questions.jsonl`: a request in each line.

A question names `one` and `two`, of which a profile may have rights to both, one or none, and
where it matters something that does not exist. In its fields, `{one}` is the profile's name of
`one`, `{/one}` the same as a regular expression, `{user}` its user, and `{version}` the version of
the API; `each topic` stands for an item of each of these topics, by name and by id; `records` is a
batch with these records.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kafka.acl_differential.profiles import Names
from tests.support.kafka.acl_differential.side import Side
from tests.support.kafka.wire_client import record_batch

_FILE = Path(__file__).with_suffix(".jsonl")
_EACH = "each topic"
_NAMED = re.compile(r"\{(/?)([^}]+)\}")


@dataclass(frozen=True, slots=True)
class Context:
    """The names and the server of a question."""

    names: Names
    side: Side
    version: int

    def filled(self, value: Any) -> Any:
        """A value of a request, with this side's names and ids."""
        if isinstance(value, str):
            return _NAMED.sub(self._named, value.replace("{version}", str(self.version)))
        if isinstance(value, list):
            return [found for item in value for found in self._items(item)]
        if isinstance(value, dict):
            if value.keys() == {"records"}:
                return record_batch(value["records"].encode())
            return {name: self.filled(each) for name, each in value.items()}
        return value

    def _named(self, found: re.Match[str]) -> str:
        is_regex, name = found.groups()
        text = self.names.user if name == "user" else self.names(name)
        return re.escape(text) if is_regex else text

    def _items(self, item: Any) -> list[Any]:
        if not isinstance(item, dict) or _EACH not in item:
            return [self.filled(item)]
        more = {name: self.filled(each) for name, each in item.items() if name != _EACH}
        return [self._topic(self.names(short)) | more for short in item[_EACH].split()]

    def _topic(self, name: str) -> dict[str, Any]:
        topic_id = self.side.topic_id(name)
        return {"name": name, "topic": name, "topic_name": name, "topic_id": topic_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row."""

    api_key: int
    label: str
    fields: Mapping[str, Any]
    since: int = 0
    """The first version to ask, `until` the last one."""
    until: int = 99
    is_list: bool = False
    """It asks for everything there is."""
    profiles: Sequence[str] | None = None
    """The askers; None for all."""


QUESTIONS = [Question(**json.loads(line)) for line in _FILE.read_text().splitlines()]
