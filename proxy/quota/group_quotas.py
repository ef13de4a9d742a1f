"""Quotas of groups: a quota callback that uses the groups from a client's login, as ACLs do.

    quotas:
      client.quota.callback.class: proxy.quota.group_quotas:GroupQuotas
      client.quota.callback.configs: {share: together}

The quota of a group is set like that of a user whose name is the group's principal, so every tool
for quotas of users works: `kafka-configs.sh --entity-type users --entity-name Group:analysts …`.
Rules:

- An entry that names the client's user takes precedence over entries of its groups, and these over
  the defaults (KIP-55's rows 1 to 3, then groups, then rows 4 to 9), separately for each quota
  type.
- If several groups have a quota, the lowest limit applies, as the strictest does in
  `reauth.overrides`. Among equal limits, the group whose name sorts first applies.
- `share: together` (the default): all members share one quota. `share: each`: every member has its
  own quota of that size.
- An entry for a group and a client id (named or default) has no effect on the group's members.
- A user is never mistaken for a group: entries of `Group:NAME` apply only to groups.
"""

import math
from collections.abc import Mapping
from typing import Final

from proxy.quota.callback import ClientPrincipal, ClientQuotaType, DefaultQuotaCallback, user_name
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey, Quotas
from proxy.quota.precedence import USER_TAG, Considered, Explanation, StaticDefaults, Tags, explain
from sasl.identity import GROUP_TYPE

GROUP_TAG: Final = "group"
GROUP_ROW: Final = 0
"""Number of a group's row in an `Explanation`, where it is between rows 3 and 4."""
_LAST_OF_USER: Final = 3
"""Last of KIP-55's rows that name the user."""
_SHARE: Final = "share"
_TOGETHER: Final = "together"
_EACH: Final = "each"


class GroupQuotas(DefaultQuotaCallback):
    """Callback that applies the quota of a group to its members, together or to each of them."""

    def __init__(self) -> None:
        super().__init__()
        self._together = True
        self._of_groups: dict[str, dict[ClientQuotaType, float]] = {}
        """Limits by group, e.g. `Group:analysts`."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Read `share`."""
        if unknown := configs.keys() - {_SHARE}:
            raise ValueError(f"{min(unknown)} is unknown: use {_SHARE}")
        share = configs.get(_SHARE, _TOGETHER)
        if share not in (_TOGETHER, _EACH):
            raise ValueError(f"{_SHARE} must be {_TOGETHER} or {_EACH}")
        self._together = share == _TOGETHER

    def quota_metric_tags(
        self, quota_type: ClientQuotaType, principal: str, client_id: str
    ) -> Tags:
        """Return the tags of the client's group with the lowest limit, unless an entry names its
        user."""
        usual = super().quota_metric_tags(quota_type, principal, client_id)
        if not isinstance(principal, ClientPrincipal) or not principal.groups:
            return usual
        user = user_name(principal)
        if self._names_user(quota_type, user, client_id):
            return usual
        limits = {
            group: limit
            for group in principal.groups
            if (limit := self._of_groups.get(group, {}).get(quota_type)) is not None
        }
        if not limits:
            return usual
        return self._tags(min(limits, key=lambda one: (limits[one], one)), user)

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return the limit of a group, or of a client to which KIP-55's rows apply."""
        if GROUP_TAG in metric_tags:
            return self._of_groups.get(GROUP_TYPE + metric_tags[GROUP_TAG], {}).get(quota_type)
        return super().quota_limit(quota_type, metric_tags)

    def update_quota(
        self, quota_type: ClientQuotaType, quota_entity: QuotaEntity, new_value: float
    ) -> None:
        """Store a quota, of a group or of another entity."""
        group = _group_of(quota_entity)
        if group is None:
            super().update_quota(quota_type, quota_entity, new_value)
        else:
            self._of_groups.setdefault(group, {})[quota_type] = new_value

    def remove_quota(self, quota_type: ClientQuotaType, quota_entity: QuotaEntity) -> None:
        """Remove a quota."""
        group = _group_of(quota_entity)
        if group is None:
            super().remove_quota(quota_type, quota_entity)
        else:
            self._of_groups.get(group, {}).pop(quota_type, None)

    def explain(
        self,
        quotas: Quotas,
        static: StaticDefaults,
        key: QuotaKey,
        principal: ClientPrincipal,
        client_id: str,
    ) -> Explanation:
        """Return the quota that applies to a client, with the groups that were considered."""
        user = user_name(principal)
        of_users = {one: limits for one, limits in quotas.items() if _group_of(one) is None}
        usual = explain(of_users, static, key, user, client_id)
        limits = {one: quotas.get(QuotaEntity(user=one), {}).get(key) for one in principal.groups}
        shared_by = "all members of {}" if self._together else f"only user {user}, a member of {{}}"
        groups = [
            Considered(
                row=GROUP_ROW,
                entity=QuotaEntity(user=group),
                tags=self._tags(group, user),
                shared_by=shared_by.format(group),
                limit=limit,
            )
            for group, limit in sorted(limits.items(), key=_lowest_first)
        ]
        rows = usual.considered
        before = sum(one.row <= _LAST_OF_USER for one in rows)
        return Explanation(key=key, considered=(*rows[:before], *groups, *rows[before:]))

    def _tags(self, group: str, user: str) -> Tags:
        name = group.removeprefix(GROUP_TYPE)
        return {GROUP_TAG: name} if self._together else {GROUP_TAG: name, USER_TAG: user}

    def _names_user(self, quota_type: ClientQuotaType, user: str, client_id: str) -> bool:
        """Return whether one of KIP-55's rows 1 to 3 applies."""
        rows = [QuotaEntity(user=user), QuotaEntity(user=user, client_id=DEFAULT)]
        if client_id:
            rows.append(QuotaEntity(user=user, client_id=client_id))
        return any(quota_type.value in self._quotas.get(row, {}) for row in rows)


def _group_of(entity: QuotaEntity) -> str | None:
    """Return the group that an entity stands for; None if it does not stand for a group."""
    name = entity.user
    if isinstance(name, str) and name.startswith(GROUP_TYPE) and entity.client_id is None:
        return name
    return None


def _lowest_first(limit_of_group: tuple[str, float | None]) -> tuple[float, str]:
    group, limit = limit_of_group
    return (math.inf if limit is None else limit, group)
