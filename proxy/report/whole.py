"""Whole report: page, JSON and tables of one run, or none of them.

Each run has a folder below `runs`, and report.json names the last one. A copy of a report may lack
them: then page, JSON and tables bear the run's name, and a mixture of two is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metrics.readiness.output import RUN_NAME, RUNS, TABLES
from metrics.report.page import BODY_BEGINS, run_mark
from metrics.report.write import JSON_NAME, PAGE_NAME
from proxy.report.figures import Figures, figures_of
from proxy.report.place import MissingError, OpenFile, Place, TableFile, UnusableReportError

MAX_JSON_BYTES: Final = 64 << 20
"""Largest report.json, in bytes: it names up to 5,000 clients, principals and denied resources
each."""
MAX_PAGE_BYTES: Final = 32 << 20
"""Largest page, in bytes."""
_MAX_NAME_BYTES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeReport:
    """Report as it was when it was read; the files of its tables are still where they were."""

    figures: Figures
    json: bytes
    page: tuple[bytes, bytes]
    """The page before `BODY_BEGINS`, and after it."""
    folder: str
    """Path of the tables."""
    tables: Mapping[str, TableFile]
    """The tables' files, by path below `folder`."""

    @property
    def run_id(self) -> str:
        """The run that it is of."""
        return self.figures.run_id


def read_whole(place: Place) -> WholeReport:
    """Read the report. Raises UnusableReportError; MissingError: there is none."""
    content = place.read(JSON_NAME, MAX_JSON_BYTES)
    try:
        return _read_rest(place, content)
    except MissingError as error:  # there is one, but not whole
        raise UnusableReportError(str(error)) from None


def _read_rest(place: Place, content: bytes) -> WholeReport:
    figures = figures_of(content)
    of_run = f"{RUNS}/{figures.run_id}"
    try:  # where runs have folders of their own
        page, folder = place.read(f"{of_run}/{PAGE_NAME}", MAX_PAGE_BYTES), f"{of_run}/{TABLES}"
    except MissingError:
        page, folder = place.read(PAGE_NAME, MAX_PAGE_BYTES), TABLES
    report = WholeReport(
        figures=figures,
        json=content,
        page=_halves(page, figures.run_id),
        folder=folder,
        tables=place.tables(folder),
    )
    _check_tables(place, report)
    return report


def open_table(place: Place, report: WholeReport, path: str) -> OpenFile:
    """Open a file of a table. Raises UnusableReportError, also if the report has been replaced;
    MissingError: it has no such file."""
    listed = report.tables.get(path)
    if listed is None:
        raise MissingError(f"there is no {path}")
    file = None
    try:
        file = place.open(f"{report.folder}/{path}", listed)
        _check_tables(place, report)
    except UnusableReportError as error:
        if file is not None:
            file.close()
        raise UnusableReportError(str(error)) from None  # not MissingError: it was there
    return file


def _check_tables(place: Place, report: WholeReport) -> None:
    """Refuse tables that are another run's by now: a run renames their folder as a whole."""
    if report.folder == TABLES:
        name = place.read(f"{TABLES}/{RUN_NAME}", _MAX_NAME_BYTES)
        if name.strip() != report.run_id.encode():
            raise _mixed(TABLES)


def _halves(page: bytes, run_id: str) -> tuple[bytes, bytes]:
    """Cut a page at `BODY_BEGINS`, if it is whole."""
    head, begin, body = page.partition(BODY_BEGINS.encode())
    if not begin or not page.startswith(b"<!doctype html>") or not page.endswith(b"</html>\n"):
        raise UnusableReportError(f"{PAGE_NAME} is not that of a readiness report, or cut off")
    if run_mark(run_id).encode() not in body:
        raise _mixed(PAGE_NAME)
    return head, body


def _mixed(path: str) -> UnusableReportError:
    return UnusableReportError(
        f"{path} and {JSON_NAME} are not of the same run: one replaces them now, or was stopped"
    )
