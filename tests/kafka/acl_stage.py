"""Where the conversations of the ACL test take place: a connection, and what was seen on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.kafka.acl_messages import Fields, creation
from tests.kafka.acl_normal import Normal
from tests.kafka.acl_profiles import Names
from tests.kafka.acl_side import Side
from tests.kafka.wire_client import Outcome


class Stage:
    """One script at work: its connection and what it has seen."""

    def __init__(self, side: Side, script: str) -> None:
        self.side = side
        self.names = Names(side.name, script)
        self.acls = SCRIPTS[script].acls
        self.client = side.client(self.names.user)
        self.lines: list[str] = []
        self._normal = Normal(self.names, side.topics)

    def ask(self, label: str, api_key: int, version: int, fields: Fields) -> Any:
        """Sends a request and writes the answer down."""
        answer = self.client.ask(api_key, version, fields)
        self.see(f"{label} v{version}", self.text(api_key, answer))
        return answer

    def text(self, api_key: int, answer: Any) -> str:
        """An answer, or what came instead."""
        if isinstance(answer, Outcome):
            return answer.value
        return self._normal.text(api_key, answer)

    def see(self, label: str, seen: object) -> None:
        """Writes something down."""
        self.lines.append(f"{label}: {seen}")

    def topics(self, *shorts: str, **more: Any) -> list[dict[str, Any]]:
        """Items by name and by id."""
        return [
            {"name": name, "topic": name, "topic_id": self.side.topic_id(name), **more}
            for name in map(self.names, shorts)
        ]

    def grant(self, *acls: str) -> None:
        """Creates ACLs for the user."""
        self.side.create_acls(self._entries(acls))

    def take(self, *acls: str) -> None:
        """Deletes them."""
        self.side.delete_acls(self._entries(acls))

    def wait_until(self, topic: str, *, is_allowed: bool) -> None:
        """Until the user sees the topic or does not."""
        self.side.wait_until_allowed(self.names.user, self.names(topic), is_allowed=is_allowed)

    def end_offset(self, topic: str) -> int:
        """The broker's own word."""
        partitions = [{"partition_index": 0, "timestamp": -1}]
        fields = {"replica_id": -1, "topics": self.topics(topic, partitions=partitions)}
        return int(self.side.as_broker(2, 5, fields).topics[0].partitions[0].offset)

    def _entries(self, acls: Sequence[str]) -> list[Fields]:
        return [creation(acl, self.names.user, self.names) for acl in acls]


Act = Callable[[Stage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One conversation and the ACLs it begins with."""

    act: Act
    acls: Sequence[str]


SCRIPTS: dict[str, Script] = {}


def script(name: str, *acls: str) -> Callable[[Act], Act]:
    """Registers a script; it may be registered under several names with other ACLs."""

    def register(act: Act) -> Act:
        SCRIPTS[name] = Script(act=act, acls=acls)
        return act

    return register
