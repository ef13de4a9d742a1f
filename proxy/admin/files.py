"""Files named by an administrator, read whole or refused."""

from pathlib import Path
from typing import Final

from proxy.errors import ConfigError

LARGEST_FILE: Final = 1_048_576
"""Largest file in bytes: far beyond any properties file, certificates in it included, and any
token."""


def read_file(key: str, file: Path, most: int) -> bytes:
    """Read a file of at most so many bytes: a wrong path must not fill the memory.

    Raises ConfigError with this key, and without the path: it may be a secret in the wrong place.
    """
    try:
        with file.open("rb") as source:
            data = source.read(most + 1)
    except OSError as error:
        raise ConfigError(key, f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in it, or half a letter
        raise ConfigError(key, "is no path") from None
    if len(data) > most:
        raise ConfigError(key, f"is larger than {most} bytes")
    return data
