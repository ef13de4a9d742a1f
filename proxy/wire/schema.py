"""Kafka's message definitions as data, and the entity types that are made of them on first use.

`messages.txt` has a block per request, response and record of a KRaft cluster, which `make schemas`
generates from the definitions in Kafka's jars; `tests/drift/overlay.json` adds definitions that
they lack. A block is the message, its fields, and the structures that it contains with theirs:

    API key, name, versions, "flexible=" first version with tagged fields, "unstable"
    name of a field, type, versions, "null=" versions, "default=", "tag=", "ignorable"
    "." and the name of a structure, as it is used in the types of fields

There is one entity type per structure for all versions, as in Kafka's generated classes. A field
that a version lacks holds its default. Names are Kafka's in snake case, and units are Kafka's, too:
`throttle_time_ms` is an int of milliseconds, an error code is an int, an id is 16 bytes.
"""

import threading
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast

from proxy.scheduling.steps import pause

NEVER: Final = 0x8000
"""First version of a feature that no version has: greater than any version, which is an INT16."""
NO_ID: Final = bytes(16)
"""Kafka's `Uuid.ZERO_UUID`, which no topic has."""
BLOCKS: Final = {
    block.split(" ", 2)[1]: block
    for block in Path(__file__).with_name("messages.txt").read_text().split("\n\n")[1:]
}
"""Block of each message, by name: its lines as strings would take twice the memory."""

_DEFAULTS: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "uuid": NO_ID,
    "bytes": b"",
    "records": b"",
}
"""Defaults of the types whose default is not 0."""
_NUMBERS: Final = frozenset({"int8", "int16", "uint16", "int32", "uint32", "int64"})

_LOCK: Final = threading.RLock()
"""Held while a type is completed: requests are also decoded in threads."""

M = TypeVar("M", bound="Message")


class Versions(NamedTuple):
    """Range of versions, both ends included."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        """Return whether the range includes a version."""
        return self.first <= version <= self.last


_NO_VERSIONS: Final = Versions(NEVER, NEVER)


class Head(NamedTuple):
    """Facts about a message as a whole."""

    api_key: int
    name: str
    versions: Versions
    """Versions that Kafka has, and those that only the proxy still serves."""
    first_flexible: int
    """First version with tagged fields and compact types (KIP-482); `NEVER` if no version has
    them."""


class Field(NamedTuple):
    """Field of a structure."""

    name: str
    kind: str
    """Kafka's type of the field or of its items: a primitive type, or `struct`."""
    struct: "type[Message] | None"
    """Entity type of a `struct`."""
    is_array: bool
    versions: Versions
    null: Versions
    """Versions in which the field may be null."""
    default: Any
    tag: int | None
    """Number of a tagged field (KIP-482); None if it is not tagged."""
    ignorable: bool
    """True if a version without the field may drop its value."""


class _MadeAtFirstUse(type):
    """Type of a message: its fields and structures are read when one of them is needed."""

    def __getattr__(cls, name: str) -> Any:
        with _LOCK:
            if "FIELDS" not in vars(cls) and cls.__name__ in BLOCKS:
                _complete(cls)
        if name not in vars(cls):
            raise AttributeError(f"{cls.__qualname__} has no {name!r}")
        return vars(cls)[name]


class Message(metaclass=_MadeAtFirstUse):
    """Base of the entity types: a value of one structure of a message. Not to be changed."""

    __slots__ = ()
    HEAD: ClassVar[Head]
    FIELDS: ClassVar[tuple[Field, ...]]
    EPOCHS: ClassVar[tuple[int, ...]]
    """First versions of the layouts of the structure, in ascending order; the first is 0."""
    DEFAULTS: ClassVar[dict[str, Any]]
    VALUES: ClassVar[Callable[["Message"], Any]]
    """Function that returns the values of all fields of an entity."""

    def __init__(self, **values: Any) -> None:
        """Create an entity with these fields; the others hold their defaults.

        Its fields count as values of long work: see `pause`.
        """
        kind = type(self)
        pause(len(kind.DEFAULTS))
        every = kind.DEFAULTS | values
        if len(every) > len(kind.DEFAULTS):
            raise TypeError(f"{kind.__qualname__} has no {[*every][len(kind.DEFAULTS)]!r}")
        for name, value in every.items():
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        kind = type(self)
        return type(other) is kind and kind.VALUES(self) == kind.VALUES(other)

    def __hash__(self) -> int:
        kind = type(self)
        return hash(kind.VALUES(self))

    def __repr__(self) -> str:
        kind = type(self)
        values = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in kind.FIELDS)
        return f"{kind.__qualname__}({values})"


def replace(message: M, /, **changes: Any) -> M:
    """Return the entity with other values of some fields."""
    values = {name: getattr(message, name) for name in type(message).DEFAULTS}
    return type(message)(**values | changes)


def head_of(name: str) -> Head:
    """Return the facts about a message as a whole. Raises KeyError."""
    api_key, _, versions, *rest = BLOCKS[name].partition("\n")[0].split(" ")
    flexible = rest[0].removeprefix("flexible=") if rest else ""
    return Head(
        int(api_key), name, _versions(versions), int(flexible) if flexible.isdigit() else NEVER
    )


@cache
def message_type(name: str) -> type[Message]:
    """Return the entity type of a message, which has those of its structures as attributes.

    Raises KeyError.
    """
    if name not in BLOCKS:
        raise KeyError(name)
    return _made(name, {"__module__": "proxy.wire.messages"})


def _made(name: str, attributes: dict[str, Any]) -> type[Message]:
    return cast("type[Message]", _MadeAtFirstUse(name, (Message,), attributes))


def _complete(whole: type) -> None:
    """Set the attributes of a message's type, and of the types of its structures."""
    lines: dict[str, list[str]] = {whole.__name__: []}
    current = lines[whole.__name__]
    for line in BLOCKS[whole.__name__].splitlines()[1:]:
        if line.startswith("."):
            current = lines[line[1:]] = []
        else:
            current.append(line)
    head = head_of(whole.__name__)
    made: dict[str, type[Message]] = {}

    def struct(of: str) -> type[Message]:
        if of not in made:
            facts = _facts(tuple(_field(line, struct) for line in lines[of]), head)
            facts |= {
                "__slots__": tuple(facts["DEFAULTS"]),
                "__module__": whole.__module__,
                "__qualname__": f"{whole.__name__}.{of}",
            }
            made[of] = _made(of, facts)
            setattr(whole, of, made[of])
        return made[of]

    facts = _facts(tuple(_field(line, struct) for line in lines[whole.__name__]), head)
    for name, value in facts.items():
        setattr(whole, name, value)


def _facts(fields: tuple[Field, ...], head: Head) -> dict[str, Any]:
    epochs = {0, head.first_flexible}
    for one in fields:
        epochs |= {one.versions.first, one.versions.last + 1, one.null.first, one.null.last + 1}
        epochs.update(one.struct.EPOCHS if one.struct is not None else ())
    defaults = {one.name: one.default for one in fields}
    return {
        "HEAD": head,
        "EPOCHS": tuple(sorted(one for one in epochs if one < NEVER)),
        "DEFAULTS": defaults,
        "VALUES": attrgetter(*defaults) if fields else bool,
        "FIELDS": fields,
    }


def _field(line: str, struct: Callable[[str], type[Message]]) -> Field:
    name, kind, versions, *rest = line.split(" ")
    facts = dict(one.partition("=")[::2] for one in rest)
    item = kind.removeprefix("[]")
    of = None if item in _NUMBERS or item in _DEFAULTS else struct(item)
    return Field(
        name=name,
        kind=item if of is None else "struct",
        struct=of,
        is_array=item != kind,
        versions=_versions(versions),
        null=_versions(facts["null"]) if "null" in facts else _NO_VERSIONS,
        default=_default(kind, of, facts.get("default")),
        tag=int(facts["tag"]) if "tag" in facts else None,
        ignorable="ignorable" in facts,
    )


def _default(kind: str, struct: type[Message] | None, text: str | None) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if struct is not None:
        entity = object.__new__(struct)  # without a pause, during which the lock would be held
        for name, value in struct.DEFAULTS.items():
            setattr(entity, name, value)
        return entity
    if text is None or kind not in _NUMBERS:
        return text == "true" if kind == "bool" else text or _DEFAULTS.get(kind, 0)
    return int(text, 0)


@cache
def _versions(text: str) -> Versions:
    """Parse `3`, `3-5` or `3+`."""
    first, _, last = text.removesuffix("+").partition("-")
    return Versions(int(first), NEVER - 1 if text.endswith("+") else int(last or first))
