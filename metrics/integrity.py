"""Integrity of the event log: numbers that show gaps, a hash chain that shows changes, their check.

`EventWriter` numbers a worker's records, before a full queue may drop them; `EventLog` chains the
lines of a file. The chain has no key: it proves nothing against somebody who can write the files
and computes it again. A copy of a file's last chain value, kept elsewhere, does.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from metrics.event_files import FILE_PATTERN, OPEN_SUFFIX

MAX_LINE_BYTES: Final = 1 << 20
"""Maximum size of a record in bytes; a file is not checked beyond a longer one."""
MAX_FINDINGS: Final = 1_000
"""Maximum number of findings that are listed; more are counted."""

_CHAIN: Final = re.compile(rb',"chain":"([0-9a-f]{64})"\}$')


def numbered(line: str, number: int) -> str:
    """Add a record's number among those of its worker since the start."""
    return f'{line[:-1]},"log_sequence":{number}}}'


def chained(lines: Iterable[str], chain: str) -> tuple[list[str], str]:
    """Add the chain to lines of a file; return them and the last value.

    A value is the SHA-256 of the previous one (empty in the first line of a file) and the line
    without it, in hexadecimal digits.
    """
    done = []
    for line in lines:
        chain = _digest(chain, line.encode("ascii"))
        done.append(f'{line[:-1]},"chain":"{chain}"}}')
    return done, chain


def _digest(chain: str, line: bytes) -> str:
    return hashlib.sha256(chain.encode("ascii") + line).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Place where the log is not as the proxy wrote it."""

    file: str
    line: int | None
    """Number of the line, from 1; None if it is about the whole file."""
    problem: str


class _Span(NamedTuple):
    """Records of one run of a worker in one file."""

    first: int
    last: int
    file: str


@dataclass(slots=True)
class Verification:
    """Result of a check."""

    files: int = 0
    records: int = 0
    unchained_files: int = 0
    """Files without a chain, in which a changed record is not visible."""
    unnumbered_files: int = 0
    """Files without numbers, in which a removed record is not visible: of an older version."""
    begun_late: int = 0
    """Runs of a worker without their first records: retention removed them, or they were moved."""
    findings: list[Finding] = field(default_factory=list)
    unlisted_findings: int = 0
    """Findings beyond `MAX_FINDINGS`."""

    def add(self, file: str, line: int | None, problem: str) -> None:
        """Add a finding."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(file=file, line=line, problem=problem))
        else:
            self.unlisted_findings += 1


def files_of_log(path: Path) -> list[Path]:
    """Return the event files of a folder, or `path` itself if it is a file. Raises OSError."""
    if not path.is_dir():
        return [path]
    names = [entry.name for entry in os.scandir(path)]
    patterns = FILE_PATTERN, FILE_PATTERN + OPEN_SUFFIX
    return sorted(path / name for name in names if any(map(Path(name).match, patterns)))


def verify(paths: Iterable[Path]) -> Verification:
    """Check files of the log, each by itself and in the order of their records.

    Raises OSError if one cannot be read. Symbolic links, other files that are not regular, and
    files that are no longer there are skipped.
    """
    result = Verification()
    runs: dict[str, list[_Span]] = {}
    for path in paths:
        file = open_regular(path)
        if file is None:
            continue
        with file:
            check = _FileCheck(path.name, result)
            check.read(file)
        if check.span is not None:
            runs.setdefault(check.run, []).append(check.span)
    for spans in runs.values():
        _compare(sorted(spans), result)
    return result


def open_regular(path: Path) -> BinaryIO | None:
    """Open an event file, even if it was closed meanwhile; None if it is not there, or not regular.

    Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    closed = path.with_suffix("") if path.name.endswith(OPEN_SUFFIX) else path
    for name in (path, closed):  # it may have been closed since it was listed
        try:
            fd = os.open(name, flags)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue
            raise
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return os.fdopen(fd, "rb")
        os.close(fd)
    return None


def _compare(spans: list[_Span], result: Verification) -> None:
    """Find gaps between the files of one run."""
    result.begun_late += spans[0].first > 0
    for before, after in pairwise(spans):
        if after.first > before.last + 1:
            what = _missing(before.last + 1, after.first - 1)
            why = f"{before.file} was cut off, a file is missing, or the proxy dropped them"
            result.add(after.file, 1, f"{what} before it: {why}")
        elif after.first <= before.last:
            result.add(after.file, 1, f"record {after.first} is also in {before.file}")


def _missing(first: int, last: int) -> str:
    return (
        f"record {first} is missing" if first == last else f"records {first} to {last} are missing"
    )


class _FileCheck:
    """Check of the lines of one file."""

    def __init__(self, name: str, result: Verification) -> None:
        self._name = name
        self._result = result
        self._line = 0
        self._chained = False
        self._numbered = False
        self._chain: str | None = ""
        """Chain value of the previous line; None if that line has lost it."""
        self.run = ""
        self.span: _Span | None = None

    def read(self, file: BinaryIO) -> None:
        """Check every line."""
        self._result.files += 1
        for line in self._lines(file):
            self._line += 1
            self._result.records += 1
            event = _parsed(line)
            self._chained = self._chained or _CHAIN.search(line) is not None
            intact = self._check_chain(line) if self._chained else None
            if not self._numbered and "log_sequence" in event:
                self._numbered = True
                if self._line > 1:
                    self._found("has a number, and the records before it have none")
            if self._numbered:
                self._check_number(event, intact=intact)
            elif not event:
                self._found("is no record: it was changed")
        if self._line:
            self._result.unchained_files += not self._chained
            self._result.unnumbered_files += not self._numbered

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        growing = self._name.endswith(OPEN_SUFFIX)
        while line := file.readline(MAX_LINE_BYTES):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == MAX_LINE_BYTES:
                too_long = f"is longer than {MAX_LINE_BYTES} bytes; the rest was not checked"
                self._result.add(self._name, self._line + 1, too_long)
                return
            elif not growing:
                self._result.add(self._name, self._line + 1, "is cut off")
        if self._line == 0 and not growing:
            self._result.add(self._name, None, "has no whole record: it was cut off")

    def _check_chain(self, line: bytes) -> bool:
        """Return whether the line and the one before it are as they were written."""
        found = _CHAIN.search(line)
        before, self._chain = self._chain, None
        if found is None:
            self._found("has no chain: it was changed or inserted")
            return False
        self._chain = found[1].decode()
        if before is None:
            return False
        intact = _digest(before, line[: found.start()] + b"}") == self._chain
        if not intact:
            self._found("does not match its chain: it, or what was before it, was changed")
        return intact

    def _check_number(self, event: dict[str, object], *, intact: bool | None) -> None:
        """`intact`: None if there is no chain."""
        number, run = event.get("log_sequence"), event.get("connection_id")
        if type(number) is not int or not isinstance(run, str):
            self._found("has no number: it was changed or inserted")
            return
        run = run.rpartition("-")[0]
        if self.span is None:
            self.run, self.span = run, _Span(number, number, self._name)
            return
        if run != self.run:
            self._found("is of another worker or start than the records before it")
            return
        expected = self.span.last + 1
        if number > expected:
            why = ", as the chain confirms: the proxy dropped them" if intact else ""
            self._found(f"{_missing(expected, number - 1)} before it{why}")
        elif number < expected:
            self._found(f"has the number {number}, but {expected} is next")
        self.span = self.span._replace(last=number)

    def _found(self, problem: str) -> None:
        self._result.add(self._name, self._line, problem)


def _parsed(line: bytes) -> dict[str, object]:
    """Return a record; empty if the line is not a JSON object."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
