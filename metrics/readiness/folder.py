"""Local folders: event files, which are listed before any engine starts, and the state's lock."""

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from metrics.readiness.errors import IRREGULAR_FILE, ReportError

PATTERNS = (
    "*.jsonl",
    "*.jsonl.gz",
    "*.jsonl.zst",
    "part-*.json",
    "part-*.json.gz",
    "*.jsonl.open",
    "*.parquet",
)
"""Patterns of event file names; a `.jsonl.open` still grows, so its last line may be incomplete."""

NO_FOLDER = "there is no such folder"
_NO_FILES = "no event files (events-*.jsonl, .jsonl.open, or .parquet) in this folder"
_MIXED = "holds both lines (.jsonl) and Parquet; give each a folder of its own, and report on one"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The start of an address, with one slash: `Path` merges two slashes into one."""

_AS_EFFECTIVE = os.access in os.supports_effective_ids


@dataclass(frozen=True, slots=True)
class Folder:
    """The event files below a folder: all lines, or all Parquet."""

    files: Sequence[Path]
    parquet: bool
    aside: Mapping[Path, str] = field(default_factory=dict)
    """Files that match by name but are not read, with the reasons."""

    @property
    def line_bytes(self) -> int:
        """Their approximate size as JSON lines."""
        return sum(file.stat().st_size * _expansion(file.name) for file in self.files)


def is_hidden(name: str) -> bool:
    """Return True for a file or folder to skip, as of a writer that is not finished.

    The rule is Spark's: `_temporary` and `.part` are hidden; the partition `_day=1` is not.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def is_event_file(name: str) -> bool:
    """Return True for the name of an event file."""
    return not is_hidden(name) and any(fnmatchcase(name, pattern) for pattern in PATTERNS)


def is_remote(path: str) -> bool:
    """Return True for an address for Hadoop, such as `s3a://bucket/events` or `file:/events`."""
    return _SCHEME.match(path) is not None


def is_within(path: str, folder: str) -> bool:
    """Return True if a path or address is a folder itself or below it."""
    if is_remote(path) or is_remote(folder):
        # Hadoop writes file:/a, Python file:///a
        path, folder = (each.replace("file:///", "file:/").rstrip("/") for each in (path, folder))
        return f"{path}/".startswith(f"{folder}/")
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def event_files(path: str, broken: Mapping[Path, str] = MappingProxyType({})) -> Folder:
    """Find the event files, without those that are `broken`.

    Only regular files are read: a pipe would block the report, and a link may lead anywhere. Raises
    ReportError if no file can be read, or if there are both kinds.
    """
    folder = Path(path)
    try:
        if not folder.exists():
            raise ReportError(f"{path}: {NO_FOLDER}")
    except PermissionError as error:
        raise ReportError(f"{path}: {error.strerror}; check its permissions") from None
    files = [folder] if folder.is_file() else _found(folder)
    aside = {file: IRREGULAR_FILE for file in files if not _is_regular(file, folder)}
    aside.update(broken)
    files = [file for file in files if file not in aside]
    kinds = {file.suffix == ".parquet" for file in files}
    if not files and aside:
        file, reason = next(iter(aside.items()))
        raise ReportError(f"{path}: no file can be read; {file}: {reason}")
    refuse_unless_one_kind(path, parquet=True in kinds, lines=False in kinds)
    for file in files:
        try:
            str(file).encode()
        except UnicodeEncodeError:
            raise ReportError(f"{file}: the name of this file is not UTF-8; rename it") from None
        if not os.access(file, os.R_OK, effective_ids=_AS_EFFECTIVE):
            raise ReportError(f"{file}: this file may not be read; check its permissions")
    return Folder(sorted(files), parquet=True in kinds, aside=aside)


def _is_regular(file: Path, folder: Path) -> bool:
    """Return whether it is a regular file; a file that the user named may be a link."""
    return file == folder or stat.S_ISREG(file.lstat().st_mode)


def refuse_unless_one_kind(path: str, *, parquet: bool, lines: bool) -> None:
    """Raise ReportError unless a folder contains exactly one of the two kinds."""
    if parquet == lines:
        raise ReportError(f"{path}: {_MIXED if lines else _NO_FILES}")


def _expansion(name: str) -> int:
    """Return the approximate factor between a file's size and its size as JSON lines."""
    return 30 if name.endswith((".parquet", ".gz", ".zst")) else 1


def _found(folder: Path) -> list[Path]:
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise ReportError(f"{error.filename}: {error.strerror}; check its permissions")

    for directory, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not is_hidden(name)]
        found += (Path(directory) / name for name in names if is_event_file(name))
    return found


@contextmanager
def held(state: Path) -> Iterator[None]:
    """Lock the folder of a state for this run. Raises ReportError and OSError."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ReportError(f"{state}: another run uses this --state; wait for its end") from None
        yield
