"""The two engines of a report: one for queries of events, and a database for their results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Row = dict[str, Any]


class Events(Protocol):
    """Events of one report, as named relations; a name is used only once.

    Queries of events are written in Spark's SQL; DuckDB gets the functions that it lacks as
    macros.
    """

    def view(self, name: str, query: str) -> None:
        """Name a query of events; it runs again wherever it is used."""

    def keep(self, name: str, query: str) -> None:
        """Run a query of events once; its result becomes a relation of the report's database."""

    def give(self, name: str) -> None:
        """Make a relation of the report's database available to queries of events."""


class Engine(Protocol):
    """Database of one report, with named relations; a name is used only once."""

    def view(self, name: str, query: str) -> None:
        """Name a query; it runs again wherever it is used."""

    def keep(self, name: str, query: str) -> None:
        """Run a query once and name its result."""

    def rows(self, query: str) -> list[Row]:
        """Return the rows of a query."""

    def write(self, query: str, folder: str | Path, comments: Mapping[str, str] = ...) -> None:
        """Write the result of a query as Parquet files into a new folder.

        `comments`: the meaning of each column, stored as JSON under `columns` in the metadata.
        """


def values(name: str, numbers: tuple[int, ...]) -> str:
    """Return a table of one column of numbers, as SQL."""
    rows = ", ".join(f"(CAST({number} AS BIGINT))" for number in numbers)
    return f"(VALUES {rows}) AS given({name})"


def words(texts: object) -> str:
    """Return constants as a list of SQL strings. Unsafe for text from a log: it is not escaped."""
    assert isinstance(texts, (tuple, list))
    return ", ".join(f"'{text}'" for text in texts)
