"""DuckDB in this process: the report's database, and its events if they fit on one machine.

DuckDB normally reads whole files, which is faster. Lines with many elements in a few bytes, or
without an end, exceed its memory limit and make it fail. Files of such lines are read in portions
that fit.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import MappingProxyType
from typing import IO, Any, Final, Self, cast

import duckdb

from metrics.readiness.errors import (
    BROKEN_FILE,
    GONE_FILE,
    LARGE_FILE,
    SLOW_FILE,
    BrokenFileError,
    Interrupted,
    ReportError,
)
from metrics.readiness.events import FIELDS, LISTS, MAX_ELEMENTS, Row, bounded, words
from metrics.readiness.folder import Folder

FILE_SECONDS: Final = 120.0
"""Time limit in seconds for reading a file of lines: a gigabyte takes about ten."""
MEMORY: Final = "900MB"
"""DuckDB's memory limit; beyond it, data goes to files below the scratch folder."""
MAX_LINE_BYTES: Final = 512 * 1024
"""Maximum size of an event's line in bytes: an event has at most three lists of groups, of 16,384
characters each, and 64 intervals."""
MAX_EXPANSION: Final = 200
"""Maximum expansion of a compressed file: events of one connection compress to a sixtieth,
a malicious file to a thousandth."""
PORTION_BYTES: Final = 128 * 1024 * 1024
"""Size of a portion in bytes."""
PORTION_COMMAS: Final = 1_500_000
"""Number of commas in a portion, as in about 30,000 events. It bounds the elements of lists: one of
three bytes, `{},`, takes over a hundred in DuckDB."""

_UNREADABLE: Final = b"{}\n"
"""Replacement for a line that cannot be an event; it is counted as unreadable."""

# Otherwise folders such as `kind=closed` would replace fields of the log.
_NO_HIVE = "hive_partitioning = false"
_LINES = f"format = 'newline_delimited', ignore_errors = true, {_NO_HIVE}"
_PATTERN = re.compile(r"[\[*?]")
"""Characters that turn a file name into a pattern."""

_INTERRUPTED = "Query interrupted"
"""Message of DuckDB's RuntimeError after a signal handler raised during a query."""

_TYPES = {"long": "BIGINT", "string": "VARCHAR", "array<string>": "VARCHAR[]", "boolean": "BOOLEAN"}

_MACROS = {
    "explode(items)": "unnest(items)",
    "size(items)": "len(items)",
    "slice(items, first, number)": "list_slice(items, first, first + number - 1)",
    "sort_array(items)": "list_sort(items)",
    "sequence(lowest, highest)": "generate_series(lowest, highest)",
    "shiftleft(value, bits)": "value << bits",
    "shiftright(value, bits)": "value >> bits",
    "named_struct(one, first, other, second)": "struct_pack(a := first, b := second)",
    "xxhash64(a, b, c, d, e, f)": """CAST(hash(a, b, c, d, e, f) >> 1 AS BIGINT),
        (a, b, c, d, e, f, g) AS CAST(hash(a, b, c, d, e, f, g) >> 1 AS BIGINT)""",
    "nvl(value, replacement)": "value",  # used only for hashes; DuckDB's hash distinguishes null
    "regexp_replace(text, pattern, other)": "system.main.regexp_replace(text, pattern, other, 'g')",
    "collect_list(value)": "coalesce(list(value) FILTER (WHERE value IS NOT NULL), [])",
    "collect_set(value)": "coalesce(list(DISTINCT value) FILTER (WHERE value IS NOT NULL), [])",
}
"""Spark functions that have another name or form in DuckDB."""


@contextmanager
def duckdb_errors() -> Iterator[None]:
    """Raise a one-line ReportError for a DuckDB error, and Interrupted after a signal."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise Interrupted from None
        raise
    except duckdb.Error as error:
        raise ReportError(str(error).splitlines()[0]) from error


class DuckEngine:
    """A database in memory that spills to temporary files below `scratch`."""

    def __init__(self, scratch: Path | None = None) -> None:
        self.folder = Folder((), parquet=False)
        """The files of the last `read`, even if it failed."""
        self._scratch = scratch
        spill = {} if scratch is None else {"memory_limit": MEMORY, "temp_directory": str(scratch)}
        self._database = duckdb.connect(config={"preserve_insertion_order": False, **spill})
        self._database.execute("SET TimeZone = 'UTC'")  # of times in CSV files
        for head, body in _MACROS.items():
            self._database.execute(f"CREATE MACRO {head} AS {body}")
        fields = ", ".join(f"{name} {_type(kind)}" for name, kind in FIELDS.items())
        self._database.execute(f"CREATE TABLE nothing ({fields}, problem VARCHAR)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and discard its data."""
        self._database.close()

    def read(self, folder: Folder) -> None:
        """Name the rows of these files `log`; lines are parsed once and stored as Parquet."""
        self.folder = folder
        if folder.parquet:
            self._read_parquet(_list(folder.files))
        elif self._scratch is None:
            self.keep("log", _rows_of(folder.files))
        else:
            scratch = self._scratch
            made = self.pack(folder.files, lambda number: scratch / f"log-{number}.parquet")
            self.view("log", f"SELECT * FROM read_parquet({_list(made)})")

    def pack(self, files: Sequence[Path], name: Callable[[int], Path]) -> list[Path]:
        """Convert files of lines to Parquet; return the files that were written.

        `name` maps their numbers, from 0, to paths; existing files are replaced. There is nearly
        always just one. Raises BrokenFileError, and DuckDB's errors for files that `broken`
        returns.
        """
        try:
            with self._within(FILE_SECONDS * len(files)):
                self._copy(_rows_of(files), name(0))
            return [name(0)]
        except duckdb.OutOfMemoryException:
            pass
        except duckdb.InvalidInputException as error:
            if "maximum_object_size" not in str(error):
                raise
        made = []
        place = name(0).with_suffix(".portion.jsonl")
        for number in portions(files, place):
            self._copy(_rows_of([place]), name(number))
            made.append(name(number))
        return made

    def elements(self, files: Sequence[Path]) -> int:
        """Return the number of list elements in Parquet files; an empty list counts as one element.

        For a list of structs, the field with the most values counts."""
        (row,) = self.rows(
            f"""SELECT coalesce(sum(most), 0) AS elements FROM (
                SELECT max(elements) AS most FROM (
                    SELECT split_part(path_in_schema, ', ', 1) AS list, path_in_schema,
                        sum(num_values) AS elements
                    FROM parquet_metadata({_list(files)}) GROUP BY ALL
                ) WHERE list IN ({words(LISTS)}) GROUP BY list
            )"""
        )
        return int(row["elements"])

    def merge(self, files: Sequence[Path], target: Path) -> None:
        """Merge the rows of Parquet files into one file."""
        self._copy(f"SELECT * FROM {_parquet(files)}", target)

    def _copy(self, query: str, target: Path) -> None:
        self._database.execute(f"COPY ({query}) TO {_quoted(target)} (FORMAT parquet)")

    def broken(self) -> dict[Path, str]:
        """Read each file of the folder separately; return the unreadable ones, with the reasons.

        Raises ReportError if a file no longer exists.
        """
        found = {}
        for file in self.folder.files:
            if not file.exists():
                raise ReportError(f"{file}: {GONE_FILE}")
            if self.folder.parquet:
                query = f"SELECT max(hash(COLUMNS(*))) FROM {_parquet([file])}"
            else:
                columns = "columns = {kind: 'VARCHAR'}"
                query = f"SELECT count(*) FROM read_json({_list([file])}, {_LINES}, {columns})"
            try:
                with self._within(FILE_SECONDS):
                    self._database.execute(query)
            except duckdb.InterruptException:
                found[file] = SLOW_FILE
            except duckdb.OutOfMemoryException:
                pass  # read in portions
            except duckdb.Error as error:
                if "maximum_object_size" not in str(error):
                    found[file] = BROKEN_FILE
        return found

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Interrupt a query after this time, which makes it raise InterruptException."""
        timer = Timer(seconds, self._database.interrupt)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _read_parquet(self, names: str) -> None:
        # By name, a union opens all files for each query, and keeps their metadata in memory
        alike = self.rows(
            f"""SELECT list(file_name) AS files FROM (
                SELECT file_name, list((name, duckdb_type, num_children)) AS columns
                FROM parquet_schema({names}) GROUP BY file_name) GROUP BY columns"""
        )
        parts = []
        for row in alike:
            source = _parquet(row["files"])
            found = {each["column_name"] for each in self.rows(f"DESCRIBE FROM {source}")}
            columns = ", ".join(
                f"CAST({name if name in found else 'NULL'} AS {_type(kind)}) AS {name}"
                for name, kind in FIELDS.items()
            )
            parts.append(f"SELECT {columns} FROM {source}")
        self.view("log", " UNION ALL ".join(parts))

    def view_parquet(self, name: str, folder: Path) -> None:
        """Name the rows of a folder of Parquet files."""
        # not a pattern for DuckDB, which would expand brackets in the folder's name
        files = sorted(folder.glob("*.parquet"))
        self.view(name, f"SELECT * FROM {_parquet(files)}")

    def view(self, name: str, query: str) -> None:
        """Name a query."""
        self._database.execute(f"CREATE VIEW {name} AS {query}")

    def keep(self, name: str, query: str) -> None:
        """Run a query once and name its result."""
        self._database.execute(f"CREATE TABLE {name} AS {query}")

    def give(self, name: str) -> None:
        """Do nothing: queries of events already see the relation, which is in the same database."""

    def rows(self, query: str) -> list[Row]:
        """Return the rows of a query."""
        answer = self._database.execute(query)
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def write_csv(self, query: str, file: str | Path) -> None:
        """Write the result of a query as a CSV file with a header."""
        self._database.execute(f"COPY ({query}) TO {_quoted(file)} (FORMAT csv, HEADER)")

    def write(
        self, query: str, folder: str | Path, comments: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write the result of a query as a Parquet file."""
        Path(folder).mkdir(parents=True)
        path = _quoted(Path(folder) / "part-00000.parquet")
        said = _quoted(json.dumps(dict(comments)))
        self._database.execute(
            f"COPY ({query}) TO {path} (FORMAT parquet, KV_METADATA {{columns: {said}}})"
        )


def portions(files: Sequence[Path], place: Path) -> Iterator[int]:
    """Write the lines of files to `place`, one portion at a time; yield each portion's number.

    The next portion overwrites `place`, which is removed at the end. Raises BrokenFileError,
    ReportError and OSError.
    """
    lines = _lines(files)
    try:
        number = 0
        while _write_portion(lines, place):
            yield number
            number += 1
    finally:
        place.unlink(missing_ok=True)


def _write_portion(lines: Iterator[bytes], place: Path) -> int:
    """Write the lines of one portion; return its size in bytes."""
    size = commas = 0
    with place.open("wb") as file:
        for line in lines:
            size += file.write(line)
            commas += line.count(b",")
            if size >= PORTION_BYTES or commas >= PORTION_COMMAS:
                break
    return size


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files, with `_UNREADABLE` in place of those that cannot be events."""
    for path in files:
        try:
            with _opened(path) as file:
                left = MAX_EXPANSION * path.stat().st_size + PORTION_BYTES
                while line := file.readline(MAX_LINE_BYTES):
                    left -= len(line)
                    if left < 0:
                        raise BrokenFileError(path, LARGE_FILE)
                    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                        left -= _skip_line(file, left)
                        yield _UNREADABLE
                    elif line.count(b",") > MAX_ELEMENTS:
                        yield _UNREADABLE
                    else:
                        yield line if line.endswith(b"\n") else line + b"\n"
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BrokenFileError(path, BROKEN_FILE) from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".zst":
        raise ReportError(
            f"{path}: its lines exceed the memory limit; unpack it, so that they are set aside"
        )
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip_line(file: IO[bytes], most: int) -> int:
    """Read to the end of a line, or at least `most` bytes; return the number of bytes read."""
    size = 0
    while size < most and (rest := file.readline(MAX_LINE_BYTES)):
        size += len(rest)
        if rest.endswith(b"\n"):
            break
    return size


def _rows_of(files: Sequence[Path]) -> str:
    """Return the query for the rows of files of lines; an oversized list makes a row unreadable."""
    columns = ", ".join(f"{name}: '{_type(kind)}'" for name, kind in FIELDS.items())
    replaced = ", ".join(f"{text} AS {name}" for name, text in bounded().items())
    source = f"read_json({_list(files)}, {_LINES}, columns = {{{columns}}})"
    return f"SELECT * REPLACE ({replaced}) FROM {source}"


def _type(kind: str) -> str:
    """Return DuckDB's name for a type of the log."""
    if kind in _TYPES:
        return _TYPES[kind]
    members = kind.removeprefix("array<struct<").removesuffix(">>").replace(":", " ")
    return f"STRUCT({members.replace('string', 'VARCHAR')})[]"


def _parquet(files: Sequence[Path]) -> str:
    return f"read_parquet({_list(files)}, {_NO_HIVE})"


def _list(files: Sequence[Path]) -> str:
    """Return a list of files as SQL, with pattern characters in their names escaped."""
    names = (_PATTERN.sub(r"[\g<0>]", str(file)) for file in files)
    return f"[{', '.join(map(_quoted, names))}]"


def _quoted(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"
