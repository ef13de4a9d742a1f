"""Differences between two configurations, with those that a reload can apply."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.config.model import Config
from proxy.config.section import Section, described, keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Paths of settings that differ, such as `listeners[clients].reauth.enforcement`."""

    reloadable: tuple[str, ...]
    """Settings that a reload by SIGHUP puts into effect."""
    needs_restart: tuple[str, ...]
    """Settings that need a restart of the proxy."""


_KEYS_OF_LISTS: Final = {
    "listeners": "name",
    "sasl_oauthbearer_issuers": "sasl_oauthbearer_expected_issuer",
}
"""Lists whose items are matched by a setting of each, whatever their order."""


def compare(old: Config, new: Config) -> Changes:
    """Compare two configurations. Listeners and issuers are matched by name; their order does
    not matter."""
    changed = list(_changed("", old, new))
    return Changes(
        reloadable=tuple(path for path, reloadable in changed if reloadable),
        needs_restart=tuple(path for path, reloadable in changed if not reloadable),
    )


def _changed(prefix: str, old: Section, new: Section) -> Iterator[tuple[str, bool]]:
    for key, name, field in keys(type(old)):
        before, after = getattr(old, name), getattr(new, name)
        if name in _KEYS_OF_LISTS:
            yield from _changed_items(key, _KEYS_OF_LISTS[name], prefix, before, after)
        elif isinstance(before, Section):
            yield from _changed(f"{prefix}{key}.", before, after)
        elif before != after:
            known = described(field)
            yield f"{prefix}{key}", known is not None and known.reloadable


def _changed_items(
    key: str, name: str, prefix: str, old: tuple[Section, ...], new: tuple[Section, ...]
) -> Iterator[tuple[str, bool]]:
    """Compare lists of sections that are known by a setting of each."""
    before = {getattr(one, name): one for one in old}
    after = {getattr(one, name): one for one in new}
    for item in sorted(before.keys() | after.keys()):
        if item in before and item in after:
            yield from _changed(f"{prefix}{key}[{item}].", before[item], after[item])
        else:
            yield f"{prefix}{key}[{item}]", False
