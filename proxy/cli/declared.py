"""ACLs and quotas as files declare them: what `export` writes and `apply` takes (YAML or JSON)."""

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.cli.common import Exit, Misuse, fail
from proxy.quota.model import DEFAULT, BadEntity, QuotaEntity, QuotaKey, key_of, value_problem

MAX_BYTES: Final = 67_108_864
"""Largest file in bytes: 100,000 ACLs take a third of it."""

Member = TypeVar("Member", bound=IntEnum)

DeclaredFile = Annotated[
    Path,
    typer.Option(
        "--file", "-f", metavar="FILE", help="As `export` writes it, YAML or JSON; - is stdin."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Prune = Annotated[bool, typer.Option("--prune", help="Remove what the file does not have.")]


def items(file: Path) -> list[Mapping[str, Any]]:
    """Return the items of a list in a file. Raises Misuse and Exit."""
    import yaml

    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            text = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise fail(f"{file}: cannot be read: {error.strerror}", Exit.USAGE) from None
    if len(text) > MAX_BYTES:
        raise Misuse(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        found = yaml.load(text.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise Misuse(f"{file} is neither YAML nor JSON") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Misuse(f"{file} must be a list, as `export` writes it")
    if not found:
        raise Misuse(f"{file} is an empty list; `remove` removes")
    return found


def acls(found: Sequence[Mapping[str, Any]]) -> list[Acl]:
    """Return the ACLs of a file's items, each once. Raises Misuse."""
    return list(dict.fromkeys(_numbered(_acl, found)))


def quotas(found: Sequence[Mapping[str, Any]]) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    """Return the quotas of a file's items. Raises Misuse."""
    pairs = _numbered(_quotas, found)
    declared = dict(pairs)
    if len(declared) < len(pairs):
        raise Misuse("an entity is given twice")
    return declared


T = TypeVar("T")


def _numbered(read: Any, found: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return each item as read; a Misuse names the item by its number."""
    result = []
    for number, item in enumerate(found, 1):
        try:
            result.append(read(item))
        except Misuse as problem:
            raise Misuse(f"item {number}: {problem}") from None
    return result


_ACL_KEYS: Final = (
    "resource_type",
    "pattern_type",
    "name",
    "principal",
    "host",
    "operation",
    "permission",
)


def _acl(item: Mapping[str, Any]) -> Acl:
    if item.keys() != set(_ACL_KEYS) or not all(isinstance(one, str) for one in item.values()):
        raise Misuse(f"must have {', '.join(_ACL_KEYS)}, all of them text")
    return Acl(
        _member(ResourceType, item["resource_type"]),
        _member(PatternType, item["pattern_type"]),
        item["name"],
        item["principal"],
        item["host"],
        _member(Operation, item["operation"]),
        _member(Permission, item["permission"]),
    )


def _member(kind: type[Member], name: str) -> Member:
    known = {one.name: one for one in kind if one.name not in ("UNKNOWN", "ANY", "MATCH")}
    if name not in known:
        raise Misuse(f"{name} is not one of {', '.join(known)}")
    return known[name]


def _quotas(item: Mapping[str, Any]) -> tuple[QuotaEntity, dict[QuotaKey, float]]:
    entity, limits = item.get("entity"), item.get("quotas")
    if item.keys() != {"entity", "quotas"} or not (
        isinstance(entity, dict) and isinstance(limits, dict)
    ):
        raise Misuse("must have entity and quotas, both of them mappings")
    owner = _entity(entity)
    return owner, {_key(owner, name): _limit(owner, name, v) for name, v in limits.items()}


_PARTS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}


def _entity(entity: Mapping[Any, Any]) -> QuotaEntity:
    if not entity.keys() <= _PARTS.keys():
        raise Misuse(f"an entity has {', '.join(_PARTS)}, and no other")
    if not all(name is None or isinstance(name, str) for name in entity.values()):
        raise Misuse("a name must be text, or null for the default")
    names = {_PARTS[k]: DEFAULT if name is None else name for k, name in entity.items()}
    try:
        return QuotaEntity(**names)
    except BadEntity as bad:
        raise Misuse(str(bad)) from None


def _key(entity: QuotaEntity, name: object) -> QuotaKey:
    key = key_of(entity, name) if isinstance(name, str) else None
    if key is None:
        raise Misuse(f"{name} is no quota of {entity}")
    return key


def _limit(entity: QuotaEntity, name: object, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misuse(f"{name} must be a number")
    if problem := value_problem(_key(entity, name), float(value)):
        raise Misuse(problem)
    return float(value)
