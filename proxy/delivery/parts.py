"""Names and contents of what is delivered to folders and object stores.

A part of an event file is one compressed file there. Its name has where it comes from and a digest
of its lines: a part that is delivered twice has one name and the same bytes, and two parts never
share one.
"""

import gzip
import hashlib
import re
from datetime import UTC, datetime
from typing import Final

from metrics.delivery.deliverer import Part

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Largest part in bytes before it is compressed, to about a twentieth."""

_COMPRESSION: Final = 6
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


def name_of(part: Part) -> tuple[str, str, str]:
    """Return the two folders and the file of a part: `date=…`, `proxy=…`, and its name."""
    file = part.file
    begun = file.modified if file.begun is None else file.begun
    date = datetime.fromtimestamp(begun, UTC).strftime("%Y-%m-%d")
    digest = hashlib.sha256()
    for line in part.lines:
        digest.update(line)
        digest.update(b"\n")
    stem = _UNSAFE.sub("_", file.name.removesuffix(".jsonl"))
    name = f"{stem}-{part.begin}-{digest.hexdigest()[:16]}.jsonl.gz"
    return f"date={date}", f"proxy={file.proxy or 'unknown'}", name


def content_of(part: Part) -> bytes:
    """Return the compressed lines of a part, the same bytes each time."""
    return gzip.compress(b"\n".join(part.lines) + b"\n", _COMPRESSION, mtime=0)
