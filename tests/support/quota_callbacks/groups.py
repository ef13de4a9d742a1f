"""Quota groups: many users share one quota.

    quotas:
      client.quota.callback.class: tests.support.quota_callbacks.groups:QuotaGroups
      client.quota.callback.configs:
        groups:
          analytics: [alice, bob, batch-*]
          web: [frontend]

The quota of a group is set like a user's of the group's name, so every tool that sets quotas of
users sets those of groups: `kafka-configs.sh --entity-type users --entity-name analytics …`. Users
without a group fall under KIP-55's precedence, and so do those of a group while it has no quota of
this kind; the group's name is then no user's.
"""

from collections.abc import Mapping
from typing import Final

from proxy.quota.callback import ClientQuotaType, DefaultQuotaCallback, user_name
from proxy.quota.model import QuotaEntity
from proxy.quota.precedence import Tags

GROUP_TAG: Final = "group"


class QuotaGroups(DefaultQuotaCallback):
    """Callback that puts users into groups by a mapping in the configuration."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, str] = {}
        """Groups by user name."""
        self._prefixes: list[tuple[str, str]] = []
        """Prefixes of user names with their groups, the longest prefix first."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Read `groups`: the users by group; a name that ends in `*` is a prefix."""
        groups = configs.get("groups")
        if not isinstance(groups, Mapping):
            raise ValueError("groups must be a mapping from groups to lists of users")
        for group, users in groups.items():
            if not isinstance(group, str) or not group or not isinstance(users, list):
                raise ValueError("groups must be a mapping from groups to lists of users")
            for user in users:
                self._add(group, user)
        self._prefixes.sort(key=lambda one: -len(one[0]))

    def _add(self, group: str, user: object) -> None:
        if not isinstance(user, str) or not user:
            raise ValueError(f"groups.{group} must be a list of users")
        if user.endswith("*"):
            self._prefixes.append((user[:-1], group))
        elif self._groups.setdefault(user, group) != group:
            raise ValueError(f"{user} is in two groups, {self._groups[user]} and {group}")

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return the user's group, if it has one and the group has a quota."""
        group = self._group(user_name(principal))
        if group is None or self._limit_of(quota_type, group) is None:
            return super().quota_metric_tags(quota_type, principal, client_id)
        return {GROUP_TAG: group}

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of a group, or of a user outside all groups."""
        if GROUP_TAG in metric_tags:
            return self._limit_of(quota_type, metric_tags[GROUP_TAG])
        return super().quota_limit(quota_type, metric_tags)

    def _group(self, user: str) -> str | None:
        if user in self._groups:
            return self._groups[user]
        return next((group for prefix, group in self._prefixes if user.startswith(prefix)), None)

    def _limit_of(self, quota_type: ClientQuotaType, group: str) -> float | None:
        return self._quotas.get(QuotaEntity(user=group), {}).get(quota_type.value)
