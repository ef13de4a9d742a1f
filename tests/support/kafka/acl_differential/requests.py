"""What every API is asked in the ACL test, as a table: one row per question, all versions.

A question names `one` and `two`, of which a profile may have rights to both, one or none, and
where it matters something that does not exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.kafka.acl_differential.profiles import Names
from tests.support.kafka.acl_differential.side import Side
from tests.support.messages import Values

_TWO = ("one", "two")
_THREE = ("one", "two", "missing")


@dataclass(frozen=True, slots=True)
class Context:
    """Whose question, and where."""

    names: Names
    side: Side
    version: int

    def topics(self, shorts: Sequence[str], **more: Any) -> list[dict[str, Any]]:
        """Items of topics, by name and by id under whatever name a version has for them."""
        return [self.topic(short, **more) for short in shorts]

    def topic(self, short: str, **more: Any) -> dict[str, Any]:
        """One item."""
        name = self.names(short)
        return {
            "name": name,
            "topic": name,
            "topic_name": name,
            "topic_id": self.side.topic_id(name),
            **more,
        }

    def all(self, shorts: Sequence[str] = _TWO) -> list[str]:
        """Whole names."""
        return [self.names(short) for short in shorts]


Build = Callable[..., Values]
"""Given a `Context`; what rows of a loop have of their own are defaults of further arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row."""

    api_key: int
    label: str
    build: Build
    versions: Callable[[int], bool]
    """Which versions it is asked in."""
    is_list: bool
    """It asks for everything there is."""
    profiles: Sequence[str] | None
    """Who asks; None: everybody."""


QUESTIONS: list[Question] = []


def ask(
    api_key: int,
    label: str,
    build: Build,
    *,
    since: int = 0,
    until: int = 99,
    is_list: bool = False,
    profiles: Sequence[str] | None = None,
) -> None:
    """Adds a row."""
    QUESTIONS.append(
        Question(
            api_key=api_key,
            label=label,
            build=build,
            versions=lambda version: since <= version <= until,
            is_list=is_list,
            profiles=profiles,
        )
    )


def constant(**fields: Any) -> Build:
    """A question that names nothing of the profile."""
    return lambda _: fields


BOTH, WITH_MISSING = _TWO, _THREE
