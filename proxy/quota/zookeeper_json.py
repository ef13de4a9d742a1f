"""JSON of KIP-55: quotas in ZooKeeper's nodes, and notifications of their changes."""

import json
from collections.abc import Mapping
from typing import Final

from proxy.errors import ProxyError
from proxy.quota.model import QuotaEntity, QuotaKey, key_of, value_problem

_CONFIG_VERSION: Final = 1
_NOTICE_VERSION: Final = 2


class BadQuotaJson(ProxyError):
    """The node does not hold valid quotas."""


def write_quotas(quotas: Mapping[QuotaKey, float]) -> str:
    """Return the content of an entity's node: every limit as a string."""
    config = {key.value: format_limit(value) for key, value in sorted(quotas.items())}
    return json.dumps({"version": _CONFIG_VERSION, "config": config}, separators=(",", ":"))


def read_quotas(entity: QuotaEntity, text: str) -> dict[QuotaKey, float]:
    """Parse the quotas in an entity's node.

    Other keys are ignored: a user's node also holds its SCRAM verifiers. Raises BadQuotaJson.
    """
    try:
        config = json.loads(text)["config"]
        items = list(config.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadQuotaJson(f"{entity.path} does not hold a config") from None
    quotas: dict[QuotaKey, float] = {}
    for name, limit in items:
        key = key_of(entity, name)
        if key is not None:
            quotas[key] = _limit(entity, key, limit)
    return quotas


def _limit(entity: QuotaEntity, key: QuotaKey, text: object) -> float:
    try:
        value = float(str(text))
    except ValueError:
        raise BadQuotaJson(f"{entity.path}: {key} is not a number") from None
    if problem := value_problem(key, value):
        raise BadQuotaJson(f"{entity.path}: {problem}")
    return value


def write_notice(entity: QuotaEntity) -> str:
    """Return the notification of a change of an entity's quotas."""
    notice = {"version": _NOTICE_VERSION, "entity_path": entity.entity_path}
    return json.dumps(notice, separators=(",", ":"))


def read_notice(text: str) -> QuotaEntity:
    """Return the entity of a change notification. Raises BadQuotaJson or BadEntity."""
    try:
        path = json.loads(text)["entity_path"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadQuotaJson("not the notification of a change") from None
    if not isinstance(path, str):
        raise BadQuotaJson("not the notification of a change")
    return QuotaEntity.from_entity_path(path)


def format_limit(value: float) -> str:
    """Return a limit without superfluous digits: `1024`, `12.5`."""
    return str(int(value)) if value == int(value) else repr(value)
