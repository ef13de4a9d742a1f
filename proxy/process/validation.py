"""Validation of the configuration in a short-lived child, which alone loads pydantic and YAML."""

import pickle
from pathlib import Path
from typing import NamedTuple

from proxy import declarations


class Validated(NamedTuple):
    """Configuration that was found valid."""

    config: bytes
    """The `Config`, pickled."""
    exposures: tuple[str, ...]
    """The warnings about what it exposes."""


class Changed(NamedTuple):
    """Configuration that was found valid, beside those before it."""

    config: bytes
    """The `Config` that is to be in effect, pickled."""
    needs_restart: tuple[str, ...]
    """The settings that differ from those in effect, and need a restart."""
    reloadable: tuple[str, ...]
    """The settings that differ from those of the last reload, and need none."""
    exposures: tuple[str, ...]
    """The warnings about what it exposes, and the last one did not."""


def validate(path: Path) -> Validated:
    """Validate the file for a start. Raises ConfigError."""
    declarations.validate_too()
    from proxy.config import load
    from proxy.config.exposure import exposures

    config = load(path)
    return Validated(pickle.dumps(config), exposures(config))


def validate_change(path: Path, in_effect: bytes, latest: bytes) -> Changed:
    """Validate the file for a reload. Raises ConfigError."""
    declarations.validate_too()
    from proxy.config import Config, compare, load
    from proxy.config.changes import in_force
    from proxy.config.exposure import exposures

    config = load(path)
    old: Config = pickle.loads(in_effect)  # noqa: S301 - written by this program, as the next is
    before: Config = pickle.loads(latest)  # noqa: S301
    reloaded = in_force(old, before, config)
    needs_restart = {*compare(old, config).needs_restart, *compare(reloaded, config).reloadable}
    return Changed(
        pickle.dumps(reloaded),
        tuple(sorted(needs_restart)),
        compare(before, reloaded).reloadable,
        tuple(sorted(set(exposures(reloaded)) - set(exposures(before)))),
    )
