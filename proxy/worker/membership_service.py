"""Reader of a listener's file of memberships: at the start, and again when it changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from proxy.acl.memberships import MAX_BYTES, BadMemberships, Memberships
from proxy.errors import ConfigError
from proxy.scheduling.file_signature import Signature, signature_of

log = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file."""


class MembershipService:
    """Memberships of a listener; the last valid file is in force."""

    def __init__(self, path: Path, changed: Callable[[], Awaitable[None]]) -> None:
        """Read the file, and await `changed` whenever it has been read again, before the next look
        at it. Raises ConfigError."""
        self._path = path
        self._changed = changed
        self._signature: Signature = None
        self._problem: str | None = None
        self.current = self._read()
        """The memberships in force."""

    async def run(self) -> None:
        """Look at the file, for ever."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the file again if it has changed."""
        if await asyncio.to_thread(signature_of, self._path) == self._signature:
            return
        try:
            self.current = await asyncio.to_thread(self._read)
        except ConfigError as error:
            self._log(error.problem)
        else:
            self._log(None)
            await self._changed()

    def _read(self) -> Memberships:
        self._signature = signature_of(self._path)
        return read_memberships(self._path)

    def _log(self, problem: str | None) -> None:
        """Log what has become of the file, if it differs from what was logged before."""
        if problem is not None and problem != self._problem:
            log.error("%s; the memberships stay as they were", problem)
        elif problem is None:
            log.info("%s: read again, %d clients have groups", self._path, len(self.current))
        self._problem = problem


def read_memberships(path: Path, key: str = "groups.file") -> Memberships:
    """Return the memberships in a file. Raises ConfigError with the setting's `key`."""
    try:
        with path.open("rb") as file:
            return Memberships.parse(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror}") from None
    except BadMemberships as bad:
        raise ConfigError(key, f"{path} {bad}") from None
