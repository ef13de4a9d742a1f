"""Message definitions: how a release of Kafka describes its requests and responses.

They lie in the clients' jar as JSON with comments (`common/message/*.json`; the README.md beside
their source says what each attribute means).
"""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')


@dataclass(frozen=True, slots=True)
class Versions:
    """Range of versions, both ends included."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        return f"v{self.first}" if self.first == self.last else f"v{self.first} to v{self.last}"


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a message."""

    path: str
    """Its name behind those of the structures that it is in, with dots between: `Topics.Name`."""
    type: str
    """Its type as Kafka writes it: `int32`, `[]TopicData`."""
    versions: Versions
    nullable: Versions | None = None
    """Versions in which it may be null; None: never."""
    tag: int | None = None
    """Its tag, if it is a tagged field (KIP-482) in all its versions; None: it is not."""


@dataclass(frozen=True, slots=True)
class Message:
    """Request or response of an API."""

    api_key: int
    name: str
    """Its name without `Request` or `Response`."""
    is_request: bool
    versions: Versions | None
    """The versions that the release has; None: it has removed the message."""
    is_unstable: bool
    """True if the last version may still change: brokers offer it only where told to."""
    listeners: tuple[str, ...]
    """Who serves the request: `broker`, `controller`; empty for a response."""
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Definitions:
    """All messages of a release."""

    messages: tuple[Message, ...]
    unreadable: tuple[str, ...]
    """A sentence for each file that could not be understood."""


def read_definitions(jar: Path) -> Definitions:
    """Read the definitions of a clients' jar; raises OSError and zipfile.BadZipFile."""
    messages: list[Message] = []
    unreadable: list[str] = []
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                try:
                    messages.append(_message(_without_comments(archive.read(name).decode())))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    unreadable.append(f"{name}: {type(error).__name__}: {error}")
    return Definitions(tuple(messages), tuple(unreadable))


def _without_comments(text: str) -> Mapping[str, Any]:
    def keep_strings(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else ""

    definition = json.loads(_STRING_OR_COMMENT.sub(keep_strings, text))
    if not isinstance(definition, dict):
        raise TypeError("not an object")
    return definition


def _message(definition: Mapping[str, Any]) -> Message:
    versions = parse_versions(definition["validVersions"])
    structures = {one["name"]: one["fields"] for one in definition.get("commonStructs", ())}
    return Message(
        api_key=int(definition["apiKey"]),
        name=re.sub("(Request|Response)$", "", definition["name"]),
        is_request=definition["type"] == "request",
        versions=versions,
        is_unstable=definition.get("latestVersionUnstable", False),
        listeners=tuple(definition.get("listeners", ())),
        fields=tuple(_fields(definition["fields"], structures, versions, ())) if versions else (),
    )


def _fields(
    fields: list[Mapping[str, Any]],
    structures: Mapping[str, list[Mapping[str, Any]]],
    outer: Versions,
    path: tuple[str, ...],
) -> Iterator[Field]:
    for one in fields:
        versions = parse_versions(one["versions"], outer)
        if versions is None:
            continue
        names = (*path, one["name"])
        nullable = parse_versions(one.get("nullableVersions", "none"), versions)
        yield Field(".".join(names), one["type"], versions, nullable, one.get("tag"))
        inner = one.get("fields") or structures.get(one["type"].removeprefix("[]"), [])
        yield from _fields(inner, structures, versions, names)


def parse_versions(text: str, within: Versions | None = None) -> Versions | None:
    """Parse `none`, `3`, `3-5` or `3+`, cut to what is `within`; None: there are none.

    Raises ValueError.
    """
    if text == "none":
        return None
    found = re.fullmatch(r"(\d+)(\+|-(\d+))?", text)
    if found is None:
        raise ValueError(f"not versions: {text!r}")
    first = int(found[1])
    if found[2] == "+":
        if within is None:
            raise ValueError(f"versions without an end: {text!r}")
        last = within.last
    else:
        last = int(found[3] or first)
    if within is not None:
        first, last = max(first, within.first), min(last, within.last)
    return Versions(first, last) if first <= last else None
