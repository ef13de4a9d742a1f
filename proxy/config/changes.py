"""Differences between two configurations, with those that a reload can apply."""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.config.listener import Listener
from proxy.config.model import Config
from proxy.config.section import Section, described, keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Paths of settings that differ, such as `listeners[clients].reauth.enforcement`."""

    reloadable: tuple[str, ...]
    """Settings that a reload by SIGHUP puts into effect."""
    needs_restart: tuple[str, ...]
    """Settings that need a restart of the proxy."""


def compare(old: Config, new: Config) -> Changes:
    """Compare two configurations. Listeners are matched by name; their order does not matter."""
    changed = list(_changed("", old, new))
    return Changes(
        reloadable=tuple(path for path, reloadable in changed if reloadable),
        needs_restart=tuple(path for path, reloadable in changed if not reloadable),
    )


def _changed(prefix: str, old: Section, new: Section) -> Iterator[tuple[str, bool]]:
    for key, name, field in keys(type(old)):
        before, after = getattr(old, name), getattr(new, name)
        if name == "listeners":
            yield from _changed_listeners(before, after)
        elif isinstance(before, Section):
            yield from _changed(f"{prefix}{key}.", before, after)
        elif before != after:
            known = described(field)
            yield f"{prefix}{key}", known is not None and known.reloadable


def _changed_listeners(
    old: tuple[Listener, ...], new: tuple[Listener, ...]
) -> Iterator[tuple[str, bool]]:
    before = {listener.name: listener for listener in old}
    after = {listener.name: listener for listener in new}
    for name in sorted(before.keys() | after.keys()):
        if name in before and name in after:
            yield from _changed(f"listeners[{name}].", before[name], after[name])
        else:
            yield f"listeners[{name}]", False
