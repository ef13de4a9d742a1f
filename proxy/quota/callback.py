"""Quota callback of KIP-257, and its default implementation: KIP-55's precedence.

A class of one's own is named in the configuration by `client.quota.callback.class:
package.module:Class`. It is made without arguments, once per worker process, then configured.

What each method is for, and when it is called, is Kafka's. Two things differ to the better:

- Kafka calls on every request. Here an answer is asked for when a client is first seen, and again
  after every change (of quotas, of the cluster, or when `quota_reset_required` says so), and kept.
- A callback cannot stop the traffic: see `proxy.quota.guarded_callback`, which calls it in a
  thread.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from proxy.errors import ConfigError
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.precedence import StaticDefaults, Tags, limit_of, tags_of

CLASS_SETTING: Final = "client.quota.callback.class"


class ClientQuotaType(Enum):
    """What a quota limits, by the key it is configured with (KIP-257; KIP-599 for the last)."""

    PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
    FETCH = QuotaKey.CONSUMER_BYTE_RATE
    REQUEST = QuotaKey.REQUEST_PERCENTAGE
    CONTROLLER_MUTATION = QuotaKey.CONTROLLER_MUTATION_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster as its metadata tell it (`org.apache.kafka.common.Cluster`)."""

    leaders: Mapping[str, Sequence[int | None]]
    """By topic: the broker id of the leader of each partition, None while there is none."""
    behind: frozenset[int]
    """The ids of the brokers that are reached through this proxy."""


class QuotaCallback(Protocol):
    """Decides which clients share a quota, and what its limit is (`ClientQuotaCallback`).

    After `configure`, all methods of one object are called in one thread, one after the other.
    """

    def configure(self, configs: Mapping[str, object]) -> None:
        """Take the settings below `quotas.client.quota.callback.configs`. Called once, first.

        Raises ConfigError or ValueError for what it cannot use; the proxy then does not start.
        """
        ...

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return the tags of the quota that a client uses: who has the same tags shares it.

        `principal` is such as `User:alice`; `client_id` may be empty. The tags become labels of
        metrics, so there must not be one set per request.
        """
        ...

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of a quota, by the tags that `quota_metric_tags` gave.

        Bytes per second, percent, or mutations per second. None: there is no limit, or nobody
        uses these tags any more.
        """
        ...

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """A quota was set in the store, or was there at the start."""
        ...

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """A quota was removed from the store."""
        ...

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        """Whether answers may have changed since the last call, by anything but this interface.

        Asked about once a second.
        """
        ...

    def update_cluster_metadata(self, cluster: Cluster) -> bool:
        """The cluster changed; return whether limits did."""
        ...

    def close(self) -> None:
        """Let go of everything; no other method is called after it."""
        ...


class DefaultQuotaCallback:
    """Quotas by user and client id, in KIP-55's order of precedence."""

    def __init__(self, static: StaticDefaults | None = None) -> None:
        self._static: StaticDefaults = static or {}
        self._quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}

    def configure(self, configs: Mapping[str, object]) -> None:
        """There is nothing to configure."""

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return `user` and `client-id`, one of them empty if the quota is not for both."""
        user = user_name(principal)
        return tags_of(self._quotas, self._static, quota_type.value, user, client_id)

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of the first row that these tags can stand for."""
        return limit_of(self._quotas, self._static, quota_type.value, metric_tags)

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """Remember a quota."""
        self._quotas.setdefault(quota_entity, {})[quota_type.value] = new_value

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """Forget a quota."""
        quotas = self._quotas.get(quota_entity, {})
        quotas.pop(quota_type.value, None)
        if not quotas:
            self._quotas.pop(quota_entity, None)

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:  # noqa: ARG002
        """Nothing changes but by `update_quota` and `remove_quota`."""
        return False

    def update_cluster_metadata(self, cluster: Cluster) -> bool:  # noqa: ARG002
        """Where partitions are led does not matter."""
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


def user_name(principal: str) -> str:
    """Return the name that quotas of users go by: `alice` of `User:alice`."""
    return principal.partition(":")[2]


def load_callback(name: str) -> QuotaCallback:
    """Make the callback that `package.module:Class` names. Raises ConfigError."""
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name.isidentifier()):
        raise ConfigError(CLASS_SETTING, f"must be package.module:Class, got {name!r}")
    try:
        made: object = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # whatever somebody's module does when it is imported
        raise ConfigError(CLASS_SETTING, f"{name} cannot be made: {_reason(error)}") from error
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigError(CLASS_SETTING, f"{name} has no {', '.join(missing)}")
    return made  # type: ignore[return-value] # judged by its methods, just above


def configured_callback(name: str | None, configs: Mapping[str, object]) -> QuotaCallback | None:
    """Make and configure the callback of this name, if there is one. Raises ConfigError."""
    if name is None:
        return None
    callback = load_callback(name)
    try:
        callback.configure(configs)
    except ConfigError:
        raise
    except Exception as error:  # whatever somebody's class does
        raise ConfigError(
            CLASS_SETTING, f"{name} cannot be configured: {_reason(error)}"
        ) from error
    return callback


def try_callback(name: str | None, configs: Mapping[str, object]) -> None:
    """Make and configure it once, in a process of its own: it may start threads.

    Raises ConfigError with the key's whole path.
    """
    if name is None:
        return
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        problem = ""
        try:
            callback = configured_callback(name, configs)
            assert callback is not None
            callback.close()
        except BaseException as error:
            problem = error.problem if isinstance(error, ConfigError) else repr(error)
        finally:
            os.write(writer, problem.encode()[:4_000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as answer:
        problem = answer.read()
    os.waitpid(pid, 0)
    if problem:
        raise ConfigError(f"quotas.{CLASS_SETTING}", problem)


_METHODS: Final = tuple(name for name in vars(QuotaCallback) if not name.startswith("_"))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
