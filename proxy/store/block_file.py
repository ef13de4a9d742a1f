"""File of the block list: proxies read it, commands and signals of identity providers change it."""

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from proxy.connection.blocks import MAX_BYTES, MAX_ENTRIES, BadBlocks, Block, Blocks
from proxy.store.users_file import edited, replace_file

MODE: Final = 0o644
"""Mode of a new list: the proxy may have another user than the operator, and it has no secrets."""
KEPT_S: Final = 86_400.0
"""Seconds for which an entry that has ended is kept: clocks differ."""

Edit = Callable[[Blocks], tuple[Sequence[Block], Collection[str]]]
"""Function that returns the entries to add to a list, and the ids of those to remove."""


def read_block_file(
    path: Path, before: Blocks | None = None, *, now: float = 0.0, may_be_missing: bool = True
) -> Blocks:
    """Return the list in a file; `before`, by default an empty list, if it is missing and may be.

    Raises BadBlocks. Entries that `before` does not have are new `now`, in monotonic seconds.
    """
    before = before or Blocks()
    try:
        with path.open("rb") as file:
            return Blocks.parse(file.read(MAX_BYTES + 1), before.seen, now)
    except FileNotFoundError:
        if may_be_missing:
            return before
        line = '{"version": 0, "entries": 0}'
        problem = f"is missing: restore it, or write the line {line}"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except BadBlocks as bad:
        problem = str(bad)
    raise BadBlocks(f"{path} {problem}")


def change_block_file(path: Path, edit: Edit, *, may_be_missing: bool = True) -> int:
    """Change a list, and return its version, which is the id of one added entry.

    Raises BadBlocks and StoreError; the file is then unchanged.
    """
    with edited(path):
        before = read_block_file(path, may_be_missing=may_be_missing)
        added, removed = edit(before)
        if missing := [one for one in removed if one not in before.entries]:
            raise BadBlocks(f"there is no block {missing[0]!a}")
        if not added and not removed:
            return before.version
        version, since = before.version + 1, time.time() - KEPT_S
        lines = [
            one.line()
            for one in before.entries.values()
            if one.id not in removed and (one.ends_at is None or one.ends_at > since)
        ]
        for number, one in enumerate(added):
            lines.append(replace(one, id=f"{version}.{number}" if number else str(version)).line())
            Block.parse(lines[-1].encode())
        head = json.dumps({"version": version, "entries": len(lines)})
        text = "".join(f"{line}\n" for line in (head, *lines))
        if len(lines) > MAX_ENTRIES or len(text) > MAX_BYTES:
            raise BadBlocks(f"{path} is full: unblock some clients, or block a group")
        replace_file(path, text, MODE)
    return version


def heartbeats_of(path: Path) -> Path:
    """Return the directory in which the workers that read a list write their heartbeats."""
    return path.with_name(f"{path.name}.proxies")
