"""Files that an administrator named: read whole, or refused."""

from pathlib import Path
from typing import Final

from proxy.errors import ConfigError

MAX_FILE_BYTES: Final = 1_048_576
"""Maximum size of a file in bytes: far beyond any token, and any properties file with
certificates."""


def read_file(key: str, file: Path, max_bytes: int) -> bytes:
    """Return a file's content; `max_bytes` bounds the memory that a wrong path can cost.

    Raises ConfigError with this key. It does not name the path, which may be a secret that was
    given in place of a path.
    """
    try:
        with file.open("rb") as source:
            data = source.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(key, f"cannot be read: {error.strerror}") from None
    except ValueError:  # it contains a NUL or a lone surrogate
        raise ConfigError(key, "is not a path") from None
    if len(data) > max_bytes:
        raise ConfigError(key, f"is larger than {max_bytes} bytes")
    return data
