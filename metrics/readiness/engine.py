"""The two parts of a report: queries of events, and the database for all that follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Row = dict[str, Any]


class Events(Protocol):
    """Events of one report; relations are known by name, and a name is used once.

    Queries of events are in Spark's SQL; DuckDB knows those of its functions that it lacks as
    macros.
    """

    def view(self, name: str, query: str) -> None:
        """Give a query of events a name; it is worked out wherever it is used."""

    def keep(self, name: str, query: str) -> None:
        """Work a query of events out once; the result is a relation of the report's database."""

    def give(self, name: str) -> None:
        """Let queries of events use a relation of the report's database."""


class Engine(Protocol):
    """Database of one report; relations are known by name, and a name is used once."""

    def view(self, name: str, query: str) -> None:
        """Give a query a name; it is worked out wherever it is used."""

    def keep(self, name: str, query: str) -> None:
        """Work a query out once, and give the result a name."""

    def rows(self, query: str) -> list[Row]:
        """Answer a query."""

    def write(self, query: str, folder: str | Path, comments: Mapping[str, str] = ...) -> None:
        """Write the answer to a query as Parquet files into a new folder.

        `comments`: the meaning of each column, kept as JSON in the files' metadata as `columns`.
        """


def values(name: str, numbers: tuple[int, ...]) -> str:
    """Give a table of one column of numbers."""
    rows = ", ".join(f"(CAST({number} AS BIGINT))" for number in numbers)
    return f"(VALUES {rows}) AS given({name})"


def words(texts: object) -> str:
    """Give constants of this package as a list of SQL strings; not for what a log says."""
    assert isinstance(texts, (tuple, list))
    return ", ".join(f"'{text}'" for text in texts)
