"""HTTP handlers of the report; read-only.

The report's page is shown as its run wrote it, below a bar that says how old it is. Neither that
page nor anything else here has scripts, and a browser would run none.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from metrics import registry
from metrics.exposition import expose
from metrics.report.formats import duration, moment
from metrics.report.page import BODY_BEGINS
from metrics.snapshot import Snapshot
from proxy.ops.http_server import Handler, Request, Response
from proxy.report.place import PIECE_BYTES, MissingError, OpenFile, Place, UnusableReportError
from proxy.report.threads import ReadingThreads
from proxy.report.watcher import ReportState, Watcher
from proxy.report.whole import WholeReport, open_table

OLD_SECONDS: Final = 26 * 3600
"""Age in seconds from which on a report, and its newest event, are old: a day's, and two hours."""
TABLES: Final = "/tables/"
_AS_THEY_ARE: Final = "/=:+"
"""Characters of files' names that a path of a URL has, too (RFC 3986 section 3.3)."""

_STYLE: Final = files("proxy.report").joinpath("bar.css").read_text(encoding="utf-8")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "style-src 'unsafe-inline'",  # bars are as long as their style attributes say
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "sandbox allow-downloads allow-popups",
    )
)
_HEADERS: Final = {
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RETRY: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_RETRY_SECONDS: Final = "5"

ReportHandler = Callable[[Request, WholeReport, ReportState], Awaitable[Response]]


def make_pages(watcher: Watcher, place: Place) -> dict[str, Handler]:
    """Return the handlers by path; any other is answered with 404."""
    threads = ReadingThreads()

    def of_report(handler: ReportHandler) -> Handler:
        async def handle(request: Request) -> Response:
            state = watcher.state()
            if state.report is None:
                return _unavailable(str(state.problem))
            return await handler(request, state.report, state)

        return handle

    async def table(request: Request, report: WholeReport, _state: ReportState) -> Response:
        return await _table(place, threads, request, report)

    async def metrics(request: Request) -> Response:
        body, content_type = expose(_snapshot(watcher.state()), request.header("accept"))
        return Response(body=body, content_type=content_type)

    async def healthz(_request: Request) -> Response:
        return Response.text("ok\n")

    return {
        "/": of_report(_page),
        "/report.json": of_report(_json),
        "/tables.json": of_report(_tables),
        TABLES: of_report(table),
        "/metrics": metrics,
        "/healthz": healthz,
    }


class _Shared:
    """Body of parts in memory, which slow clients share."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self.size = sum(map(len, parts))

    async def read(self, offset: int) -> bytes:
        for part in self._parts:
            if offset < len(part):
                return part[offset : offset + PIECE_BYTES]
            offset -= len(part)
        return b""

    def close(self) -> None:
        pass


class _Table:
    """Body of a table's file, read in threads."""

    def __init__(self, file: OpenFile, threads: ReadingThreads) -> None:
        self._file = file
        self._threads = threads
        self.size = file.size

    async def read(self, offset: int) -> bytes:
        return await self._threads.call(partial(self._file.read, offset))

    def close(self) -> None:
        self._file.close()


async def _page(request: Request, report: WholeReport, state: ReportState) -> Response:
    bar = _bar(report, state.problem, time.time()).encode()
    head, body = report.page
    # of one report the bar alone changes
    tag = f'"{report.run_id}-{sha256(bar).hexdigest()[:16]}"'
    response = Response(
        body=_Shared(head, _STYLE.encode(), BODY_BEGINS.encode(), bar, body),
        content_type="text/html; charset=utf-8",
        headers=_HEADERS | {"ETag": tag},
    )
    return _precondition(request, response) or response


async def _json(request: Request, report: WholeReport, _state: ReportState) -> Response:
    response = Response(
        body=_Shared(report.json),
        content_type="application/json; charset=utf-8",
        headers=_HEADERS | {"ETag": _tag(report)},
    )
    return _precondition(request, response) or response


async def _tables(request: Request, report: WholeReport, _state: ReportState) -> Response:
    listed = [
        {"path": TABLES + quote(path, safe=_AS_THEY_ARE), "bytes": file.size}
        for path, file in report.tables.items()
    ]
    content = {"run_id": report.run_id, "files": listed}
    response = Response.json(content, headers=_HEADERS | {"ETag": _tag(report)})
    return _precondition(request, response) or response


async def _table(
    place: Place, threads: ReadingThreads, request: Request, report: WholeReport
) -> Response:
    path = request.path.removeprefix(TABLES)
    try:
        file = await threads.call(partial(open_table, place, report, path))
    except MissingError:
        return _plain("no such table; /tables.json lists them", 404)
    except UnusableReportError as error:
        return _unavailable(str(error))
    response = Response(
        body=_Table(file, threads),
        content_type="application/vnd.apache.parquet",
        headers=_HEADERS | {"ETag": _tag(report), "Content-Disposition": "attachment"},
    )
    if (answer := _precondition(request, response)) is not None:
        file.close()
        return answer
    return response


def _tag(report: WholeReport) -> str:
    return f'"{report.run_id}"'


def _precondition(request: Request, response: Response) -> Response | None:
    """Answer a request whose condition on the ETag decides it (RFC 9110 section 13.2.2)."""
    headers: Mapping[str, str] = response.headers
    tag = headers["ETag"]
    if (wanted := request.header("if-match")) and not _names(wanted, tag):
        return _plain("412: another run's report is here by now", 412)
    if _names(request.header("if-none-match"), tag):
        return Response(status=304, body=b"", content_type="", headers=headers)
    return None


def _names(condition: str, tag: str) -> bool:
    tags = [one.strip().removeprefix("W/") for one in condition.split(",")]
    return tag in tags or "*" in tags


def _plain(sentence: str, status: int, **headers: str) -> Response:
    return Response.text(f"{sentence}\n", status=status, **_RETRY, **headers)


def _unavailable(problem: str) -> Response:
    return _plain(problem, 503, **{"Retry-After": _RETRY_SECONDS})


def _bar(report: WholeReport, problem: str | None, wall: float) -> str:
    figures = report.figures
    sentences = [f"<b>Report of {moment(figures.as_of_ms)} UTC</b>, {_age(figures.as_of_ms, wall)}"]
    times = [figures.as_of_ms]
    if figures.newest_ms is not None:
        sentences.append(f"its newest event {_age(figures.newest_ms, wall)}")
        times.append(figures.newest_ms)
    is_old = wall - min(times) / 1000 > OLD_SECONDS
    warns = is_old or problem is not None
    warning = "<p><b>Mind: that is old.</b></p>" if is_old else ""
    if problem is not None:
        warning += f"<p><b>It is the last whole report.</b> Now: {escape(problem)}.</p>"
    return (
        f'<aside class="served{" warn" if warns else ""}" aria-label="Age of the report">'
        f"<p>{'; '.join(sentences)}.</p>{warning}"
        '<p class="links"><a href="/report.json">JSON</a> · <a href="/tables.json">tables</a> · '
        '<a href="/metrics">metrics</a></p></aside>'
    )


def _age(then_ms: int, wall: float) -> str:
    """Say how old something is, to the minute, so that a page stays as it is for that long."""
    minutes = int(wall - then_ms / 1000) // 60
    age = "less than a minute" if minutes < 1 else duration(minutes * 60_000)
    return f"{age} old".replace(" ", "\N{NO-BREAK SPACE}")


def _snapshot(state: ReportState) -> Snapshot:
    snapshot = Snapshot()
    snapshot.gauge(registry.READINESS_READ_SUCCESS, float(state.problem is None))
    if state.report is not None:
        state.report.figures.report(snapshot)
    return snapshot
