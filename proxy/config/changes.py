"""Settings in force, and the differences between two configurations that a reload can apply."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.config.listener import Listener, OauthbearerSettings
from proxy.config.model import Config
from proxy.config.section import Section, described, keys

if TYPE_CHECKING:
    from proxy.config.document import Lines  # with PyYAML


class Changes(NamedTuple):
    """Paths of settings that differ, such as `listeners[clients].reauth.enforcement`."""

    reloadable: tuple[str, ...]
    """Settings that a reload by SIGHUP puts into effect."""
    needs_restart: tuple[str, ...]
    """Settings that need a restart of the proxy."""


_KEYS_OF_LISTS: Final = {
    "listeners": "name",
    "sasl_oauthbearer_issuers": "sasl_oauthbearer_expected_issuer",
}
"""Lists whose items are matched by one of their settings, in any order."""


def compare(old: Config, new: Config) -> Changes:
    """Compare two configurations. Listeners and issuers are matched by name; their order does
    not matter."""
    changed = list(_changed("", old, new))
    return Changes(
        reloadable=tuple(path for path, reloadable in changed if reloadable),
        needs_restart=tuple(path for path, reloadable in changed if not reloadable),
    )


def in_force(start: Config, before: Config, new: Config) -> Config:
    """Return the configuration that a reload of `new` puts into effect after `before`.

    Signing keys are read only for the issuers that were configured at the start. While a listener
    has another issuer in `new`, or no issuer, all its token settings stay as in `before`, because a
    mixture of both files was never validated.
    """
    at_start = {one.name: one for one in start.listeners}
    held = at_start | {one.name: one for one in before.listeners}
    listeners = tuple(
        one
        if one.name not in at_start or _can_follow(at_start[one.name], one)
        else one.model_copy(
            update={
                name: getattr(held[one.name], name) for name in OauthbearerSettings.model_fields
            }
        )
        for one in new.listeners
    )
    return new.model_copy(update={"listeners": listeners})


def _can_follow(start: Listener, new: Listener) -> bool:
    before, after = start.token_issuers().keys(), new.token_issuers().keys()
    return after <= before and bool(after) == bool(before)


def _changed(prefix: str, old: Section, new: Section) -> Iterator[tuple[str, bool]]:
    for key, name, field in keys(type(old)):
        before, after = getattr(old, name), getattr(new, name)
        if name in _KEYS_OF_LISTS:
            known = described(field)
            reloadable = known is not None and known.reloadable
            place = f"{prefix}{key}"
            yield from _changed_items(place, _KEYS_OF_LISTS[name], before, after, reloadable)
        elif isinstance(before, Section):
            yield from _changed(f"{prefix}{key}.", before, after)
        elif before != after:
            known = described(field)
            yield f"{prefix}{key}", known is not None and known.reloadable


def _changed_items(
    place: str, name: str, old: tuple[Section, ...], new: tuple[Section, ...], reloadable: bool
) -> Iterator[tuple[str, bool]]:
    """Compare lists of sections whose items are identified by the setting `name`."""
    before = {getattr(one, name): one for one in old}
    after = {getattr(one, name): one for one in new}
    for item in sorted(before.keys() | after.keys()):
        if item in before and item in after:
            yield from _changed(f"{place}[{item}].", before[item], after[item])
        else:
            yield f"{place}[{item}]", reloadable


class SettingInForce(NamedTuple):
    """One setting, and the origin of its value."""

    key: str
    """The path of the setting, such as `listeners[0].address`."""
    value: Any
    """The value as in JSON; for a secret, its source."""
    line: int | None
    """The line in the file; None for a default."""


def settings_in_force(config: Config, lines: "Lines") -> Iterator[SettingInForce]:
    """Yield every setting in the order of the documentation."""
    return _of_section("", config, lines)


def _of_section(prefix: str, section: Section, lines: "Lines") -> Iterator[SettingInForce]:
    values = section.model_dump(mode="json", by_alias=True)
    for key, name, _ in keys(type(section)):
        path, value = f"{prefix}{key}", getattr(section, name)
        if isinstance(value, Section):
            yield from _of_section(f"{path}.", value, lines)
        elif isinstance(value, tuple) and any(isinstance(one, Section) for one in value):
            for index, one in enumerate(value):
                yield from _of_section(f"{path}[{index}].", one, lines)
        else:
            yield SettingInForce(path, values[key], lines.of(path))
