"""Quota callback of KIP-257, and its default implementation: KIP-55's precedence.

`client.quota.callback.class: package.module:Class` in the configuration names a custom class. It is
created without arguments, once per worker process, then configured.

The methods are Kafka's, and are called at the same times, with two improvements:

- Kafka calls the callback for every request. The proxy calls it for the first request of a client,
  and again after every change (of quotas, of the cluster, or if `quota_reset_required` returns
  True), and caches the results.
- A callback cannot block traffic: `proxy.quota.guarded_callback` calls it in a thread.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, Self

from proxy.errors import ConfigError
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.precedence import StaticDefaults, Tags, limit_of, tags_of

CLASS_SETTING: Final = "client.quota.callback.class"


class ClientQuotaType(Enum):
    """Types of quotas, with the keys that configure them (KIP-257; KIP-599 for the last)."""

    PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
    FETCH = QuotaKey.CONSUMER_BYTE_RATE
    REQUEST = QuotaKey.REQUEST_PERCENTAGE
    CONTROLLER_MUTATION = QuotaKey.CONTROLLER_MUTATION_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """State of the cluster according to its metadata (`org.apache.kafka.common.Cluster`)."""

    leaders: Mapping[str, Sequence[int | None]]
    """Broker ids of the partitions' leaders, by topic; None for a partition without a leader."""
    behind: frozenset[int]
    """Ids of the brokers that clients reach through this proxy."""


class ClientPrincipal(str):
    """Principal of a client, e.g. `User:alice`, with the groups from its login."""

    __slots__ = ("groups",)

    groups: tuple[str, ...]
    """Groups as principals, e.g. `Group:analysts`, sorted. They are the groups that ACLs use."""

    def __new__(cls, principal: str, groups: tuple[str, ...] = ()) -> Self:
        """Return the principal with its groups."""
        made = super().__new__(cls, principal)
        made.groups = groups
        return made


class QuotaCallback(Protocol):
    """Callback that decides which clients share a quota, and its limit (`ClientQuotaCallback`).

    After `configure`, all methods of one object are called in one thread, one after the other.
    """

    def configure(self, configs: Mapping[str, object]) -> None:
        """Configure the callback with `quotas.client.quota.callback.configs`. Called once, first.

        Raise ConfigError or ValueError for invalid settings; the proxy then does not start.
        """

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return the tags of the quota that a client uses; clients with the same tags share a
        quota.

        `principal` is, for example, `User:alice`; as a `ClientPrincipal` it also has the client's
        groups. `client_id` may be empty. The tags become labels of metrics, so the number of
        different sets must be bounded: never use one set per request.
        """

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of the quota with these tags, as `quota_metric_tags` returned them.

        The unit is bytes per second, percent, or mutations per second. None means that there is no
        limit, or that the tags are no longer in use.
        """

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """Handle a quota that was set in the store, or that the store contained at startup."""

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """Handle a quota that was removed from the store."""

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        """Return whether results may have changed since the last call for reasons unknown to the
        proxy.

        Called about once a second.
        """

    def update_cluster_metadata(self, cluster: Cluster) -> bool:
        """Handle a change of the cluster; return whether limits changed."""

    def close(self) -> None:
        """Release all resources; no other method is called afterwards."""


class DefaultQuotaCallback:
    """Quotas per user and client id, in KIP-55's order of precedence."""

    def __init__(self, static: StaticDefaults | None = None) -> None:
        self._static: StaticDefaults = static or {}
        self._quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}

    def configure(self, configs: Mapping[str, object]) -> None:
        """Do nothing: there are no settings."""

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return `user` and `client-id`; one of them is empty if the quota does not name it."""
        user = user_name(principal)
        return tags_of(self._quotas, self._static, quota_type.value, user, client_id)

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of the first row that can have these tags."""
        return limit_of(self._quotas, self._static, quota_type.value, metric_tags)

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """Store a quota."""
        self._quotas.setdefault(quota_entity, {})[quota_type.value] = new_value

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """Remove a quota."""
        quotas = self._quotas.get(quota_entity, {})
        quotas.pop(quota_type.value, None)
        if not quotas:
            self._quotas.pop(quota_entity, None)

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:  # noqa: ARG002
        """Return False: limits change only through `update_quota` and `remove_quota`."""
        return False

    def update_cluster_metadata(self, cluster: Cluster) -> bool:  # noqa: ARG002
        """Return False: limits do not depend on the leaders of partitions."""
        return False

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def user_name(principal: str) -> str:
    """Return the user name under which quotas are configured: `alice` for `User:alice`."""
    return principal.partition(":")[2]


def load_callback(name: str) -> QuotaCallback:
    """Create the callback that `package.module:Class` names. Raises ConfigError."""
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name.isidentifier()):
        raise ConfigError(CLASS_SETTING, f"must be package.module:Class, got {name!r}")
    try:
        made: object = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # an imported module may raise anything
        raise ConfigError(CLASS_SETTING, f"{name} cannot be created: {_reason(error)}") from error
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigError(CLASS_SETTING, f"{name} has no {', '.join(missing)}")
    return made  # type: ignore[return-value] # its methods were checked above


def configured_callback(name: str | None, configs: Mapping[str, object]) -> QuotaCallback | None:
    """Create and configure the callback of this name; return None without a name. Raises
    ConfigError."""
    if name is None:
        return None
    callback = load_callback(name)
    try:
        callback.configure(configs)
    except ConfigError:
        raise
    except Exception as error:  # a foreign class may raise anything
        raise ConfigError(
            CLASS_SETTING, f"{name} cannot be configured: {_reason(error)}"
        ) from error
    return callback


def try_callback(name: str, configs: Mapping[str, object]) -> None:
    """Create, configure and close the callback; it may leave threads behind.

    Raises ConfigError with the full path of the setting.
    """
    try:
        callback = configured_callback(name, configs)
        assert callback is not None
        callback.close()
    except BaseException as error:  # foreign code may raise anything
        problem = str(error.problem) if isinstance(error, ConfigError) else repr(error)
        raise ConfigError(f"quotas.{CLASS_SETTING}", problem[:4_000]) from None


_METHODS: Final = tuple(name for name in vars(QuotaCallback) if not name.startswith("_"))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
