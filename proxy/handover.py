"""The configuration file as the parent has judged it: the same bytes for all of its workers.

A file that is written twice within a moment would be another one for each who reads it, and some
workers would enforce what others do not.
"""

import hashlib
import os
from typing import Final

_DIGEST: Final = hashlib.sha256().digest_size
_LONGEST: Final = 2**31


class Handover:
    """Memory that the parent shares with its workers; to be made before they are started.

    Whoever takes what is being put gets nothing of it, and is told by another signal.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("configuration", os.MFD_CLOEXEC)

    def put(self, text: bytes) -> None:
        """Leave what is to be in effect; nothing: what the file held was refused."""
        content = hashlib.sha256(text).digest() + text
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)

    def take(self) -> bytes | None:
        """Return what was left last; None: nothing yet, or it is just being put."""
        content = os.pread(self._file, _LONGEST, 0)
        digest, text = content[:_DIGEST], content[_DIGEST:]
        return text if digest == hashlib.sha256(text).digest() else None
