"""Parser of YAML text, without YAML's implicit conversions.

It refuses duplicate keys (the last would silently win), aliases (a short file could become a huge
value), tags, and deep nesting. Booleans and numbers are those of YAML 1.2, so `mode: off` is text,
and `10:30` is not a number of seconds.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from proxy.config.values import shown
from proxy.errors import ConfigError

MAX_BYTES = 1_048_576
"""Maximum size of a configuration file in bytes: enough for ten thousand overrides, and quickly
parsed."""
_MAX_DEPTH = 16


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    _depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases (*) are not supported", event.start_mark)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _refused("tags (!) are not supported", event.start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _refused("is nested too deeply", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag == "tag:yaml.org,2002:int":
                key.tag = "tag:yaml.org,2002:str"  # ids of brokers
            if not isinstance(key, ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise _refused("a key must be text", key.start_mark)
            if key.value in seen:
                raise _refused(f"the key {shown(key.value)} is a duplicate", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]{1,18}|[0-9]{1,18}\.[0-9]{0,18})", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first
    )


# PyYAML's own constructor reads 010 as 8
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


class NotADocument(ConfigError):
    """The file is not a document that this parser accepts."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(f"line {line}" if line else "", problem)
        self.line = line
        """Line of the problem, from 1; None if the problem has no line."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: a child process returns it to its parent."""
        return type(self), (self.problem, self.line)


def _refused(problem: str, mark: Any) -> NotADocument:
    return NotADocument(problem, mark.line + 1 if mark else None)


def parse(text: bytes) -> dict[str, Any]:
    """Return the mapping in a file's text. Raises ConfigError with the line of the problem."""
    if len(text) > MAX_BYTES:
        raise NotADocument(f"is larger than {MAX_BYTES} bytes")
    try:
        document = yaml.load(text.decode(), _Loader)  # noqa: S506 - a SafeLoader, made stricter
    except UnicodeDecodeError:
        raise NotADocument("is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "cannot be parsed"
        raise _refused(f"is not YAML: {problem}", error.problem_mark) from None
    except yaml.YAMLError:
        raise NotADocument(
            "is not YAML: it contains a character that YAML does not allow"
        ) from None
    if document is None:
        raise NotADocument("is empty")
    if not isinstance(document, dict):
        raise NotADocument(f"must be a mapping of settings, got {shown(document)}")
    return document


class Lines:
    """Lines of the settings in a text that `parse` accepts."""

    def __init__(self, text: bytes) -> None:
        self._by_path: dict[str, int] = {}
        node = yaml.compose(text.decode(), _Loader)
        assert node is not None
        self._add("", node)

    def _add(self, path: str, node: Node) -> None:
        if isinstance(node, MappingNode):
            for key, value in node.value:
                below = f"{path}.{key.value}" if path else key.value
                self._by_path[below] = key.start_mark.line + 1
                self._add(below, value)
        elif isinstance(node, SequenceNode):
            for index, value in enumerate(node.value):
                below = f"{path}[{index}]"
                self._by_path[below] = value.start_mark.line + 1
                self._add(below, value)

    def of(self, path: str) -> int | None:
        """Return the line of a setting, such as `listeners[0].address`; None if it is not set."""
        return self._by_path.get(path)

    def near(self, path: str) -> int | None:
        """Return the line of a setting, or of its section if it is not set."""
        while path and path not in self._by_path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._by_path.get(path)
