"""File of the block list: proxies read it, commands and signals of identity providers change it."""

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from proxy.config import Config
from proxy.connection.blocks import MAX_BYTES, MAX_ENTRIES, BadBlocks, Block, Blocks
from proxy.errors import ConfigError
from proxy.store.users_file import edited, replace_file

MODE: Final = 0o644
"""Mode of a new list: the proxy may have another user than the operator, and it has no secrets."""
KEPT_S: Final = 86_400.0
"""Seconds for which an entry that has ended is kept: clocks differ."""

Edit = Callable[[Blocks], tuple[Sequence[Block], Collection[str]]]
"""Function that returns the entries to add to a list, and the ids of those to remove."""


class BlockFile:
    """Block list of one proxy, or of all that share the file."""

    def __init__(self, settings: Config) -> None:
        shared, store = settings.block.file, settings.store.path()
        self.is_shared: Final = shared is not None
        """True for `block.file`, which must exist; False for a list beside the store."""
        self.path: Final = shared or store.with_name(f"{store.name}.blocks")
        self.heartbeats: Final = self.path.with_name(f"{self.path.name}.proxies")
        """Directory in which the workers that read the list write their heartbeats."""

    def read(self, before: Blocks | None = None, now: float = 0.0) -> Blocks:
        """Return the list; an empty one if a list beside the store was never written.

        Raises ConfigError. Entries that `before` does not have are new `now`, in monotonic seconds.
        """
        before = before or Blocks()
        try:
            with self.path.open("rb") as file:
                return Blocks.parse(file.read(MAX_BYTES + 1), before.seen, now)
        except FileNotFoundError:
            if not self.is_shared and not before.version:
                return before
            problem = 'is missing: restore it, or write the line {"version": 0, "entries": 0}'
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except BadBlocks as bad:
            problem = str(bad)
        raise ConfigError("block.file", f"{self.path} {problem}")

    def change(self, edit: Edit) -> int:
        """Change the list, and return its version, which is the id of one added entry.

        Raises BadBlocks, ConfigError and StoreError; the file is then unchanged.
        """
        with edited(self.path):
            before = self.read()
            added, removed = edit(before)
            if missing := [one for one in removed if one not in before.entries]:
                raise BadBlocks(f"there is no block {missing[0]!a}")
            if not added and not removed:
                return before.version
            version, since = before.version + 1, time.time() - KEPT_S
            kept = [
                one
                for one in before.entries.values()
                if one.id not in removed and (one.ends_at is None or one.ends_at > since)
            ]
            kept += [
                replace(one, id=f"{version}.{number}" if number else str(version))
                for number, one in enumerate(added)
            ]
            head = json.dumps({"version": version, "entries": len(kept)})
            text = "".join(f"{line}\n" for line in (head, *(one.line() for one in kept)))
            if len(kept) > MAX_ENTRIES or len(text) > MAX_BYTES:
                raise BadBlocks(f"{self.path} is full: unblock some clients, or block a group")
            replace_file(self.path, text, MODE)
        return version
