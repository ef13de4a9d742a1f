"""Settings in force: those of the file, and the defaults of all others."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from proxy.config.document import Lines
from proxy.config.model import Config
from proxy.config.section import Section, keys


class SettingInForce(NamedTuple):
    """One setting, and where its value is from."""

    key: str
    """The path of the setting, such as `listeners[0].address`."""
    value: Any
    """The value as JSON has it; of a secret, its source."""
    line: int | None
    """The line of the file; None: it is the default."""


def settings_in_force(config: Config, lines: Lines) -> Iterator[SettingInForce]:
    """Yield every setting in the order of the documentation."""
    return _of_section("", config, lines)


def _of_section(prefix: str, section: Section, lines: Lines) -> Iterator[SettingInForce]:
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
