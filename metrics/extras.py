"""Optional dependencies: the extra that a missing one belongs to, and how to install it here."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_DISTRIBUTION: Final = "kafka-reauth-proxy"
_MODULES: Final = {
    "demo": ("confluent_kafka", "duckdb", "kafka"),
    "kafka": ("confluent_kafka",),
    "report": ("duckdb",),
    "spark": ("duckdb", "pyspark"),
    "htpasswd": ("bcrypt",),
    "aws": ("botocore",),
    "gcp": ("google.auth",),
    "azure": ("azure.identity",),
}
"""Modules that must be there for each extra."""
_NEWEST_PYTHON: Final = {"confluent_kafka": (3, 14)}
"""Newest Python that a module has wheels for, as in the markers of pyproject.toml."""


def missing(extra: str) -> str | None:
    """Return a sentence about an extra that is not installed, as the rest of one that begins with
    what needs it; None if it is installed."""
    absent = [name for name in _MODULES[extra] if not _is_there(name)]
    if not absent:
        return None
    for name in absent:
        if name in _NEWEST_PYTHON and sys.version_info[:2] > (newest := _NEWEST_PYTHON[name]):
            wanted, running = ("{}.{}".format(*one) for one in (newest, sys.version_info))
            return f"needs {name}, which has no wheel for Python {running}: use Python {wanted}"
    return f"needs {' and '.join(absent)}, the extra {extra}{_command(extra)}"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that would contain it
        return False


def _command(extra: str) -> str:
    """Return the command that installs an extra, in the way in which this program was installed,
    behind a colon; empty if this program was not installed."""
    from importlib.metadata import PackageNotFoundError, requires  # with the parser of e-mail

    try:
        required = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        required = []
    needed = " ".join(
        f"'{requirement.strip()}'"
        for requirement, _, marker in (one.partition(";") for one in required)
        if f"extra == '{extra}'" in marker.replace('"', "'")
    )
    if not needed:
        return ""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f": pipx inject {prefix.name} {needed}"
    if (prefix / "uv-receipt.toml").exists() or not _is_there("pip"):
        return f": uv pip install --python {prefix} {needed}"
    return f": {sys.executable} -m pip install {needed}"
