"""HTTP handlers of the status page and `/sessions.json`; read-only.

Rule: however many requests come, the workers are queried once in `MIN_PICTURE_SECONDS`. A query
selects here, from the sessions of all workers.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from proxy.errors import ProxyError
from proxy.ops.status.json_document import DEFAULT_LIMIT, MOST, document
from proxy.ops.status.page import POLICY, render
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts
from proxy.ops.status.snapshot import About, Picture, WorkerFacts

MIN_PICTURE_SECONDS: Final = 2.0

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEYS: Final = {
    "principal": "principal",
    "client-id": "client_id",
    "connection": "connection_id",
}
"""Names of query parameters, and the part of a selector that each sets."""


class StatusSources(Protocol):
    """Sources of the page's data."""

    async def status(self) -> Mapping[int, Mapping[str, Any] | ProxyError]:
        """Everything about each worker but its sessions; an error: why it does not answer."""
        ...

    async def sessions(self, selector: Selector) -> Mapping[int, list[SessionFacts] | ProxyError]:
        """Sessions of each worker."""
        ...


async def take_picture(workers: StatusSources) -> Picture:
    """Ask all workers; who does not answer is in the picture as not ready."""
    status, sessions = await asyncio.gather(workers.status(), workers.sessions(EVERY_SESSION))
    states: dict[int, WorkerFacts] = {}
    found: list[SessionFacts] = []
    for worker, answer in status.items():
        theirs = sessions[worker]
        if isinstance(answer, ProxyError):
            states[worker] = WorkerFacts(reasons=[str(answer)])
        elif isinstance(theirs, ProxyError):
            states[worker] = WorkerFacts(reasons=[str(theirs)])
        else:
            states[worker] = WorkerFacts.from_json(answer)
            found += theirs
    return Picture(taken_ms=round(time.time() * 1000), workers=states, sessions=found)


class StatusPage:
    """Status page for browsers and programs, from one picture at a time."""

    def __init__(self, workers: StatusSources, about: About) -> None:
        self._workers = workers
        self._about = about
        self._round = asyncio.Lock()
        self._picture: Picture | None = None
        self._taken_at = 0.0
        self._whole: str | None = None
        """The page of all sessions, rendered once for all readers of a picture; None: not rendered
        yet."""

    async def page(self, request: web.Request) -> web.Response:
        """Serve `/`."""
        selector = _selector(request)
        picture = await self._latest()
        if selector != EVERY_SESSION:
            return self._html(render(picture.of(selector), selector, self._about))
        if self._whole is None:
            self._whole = render(picture, selector, self._about)
        return self._html(self._whole)

    async def sessions(self, request: web.Request) -> web.Response:
        """Serve `/sessions.json`."""
        limit = _limit(request)
        selector = _selector(request, "limit")
        picture = (await self._latest()).of(selector)
        answer = document(picture, selector, self._about, limit)
        return web.json_response(answer, headers=_HEADERS)

    def _html(self, page: str) -> web.Response:
        return web.Response(text=page, content_type="text/html", headers=_HEADERS)

    async def _latest(self) -> Picture:
        async with self._round:
            now = asyncio.get_running_loop().time()
            if self._picture is None or now - self._taken_at >= MIN_PICTURE_SECONDS:
                self._picture = await take_picture(self._workers)
                self._taken_at = asyncio.get_running_loop().time()
                self._whole = None
            return self._picture


def _selector(request: web.Request, *others: str) -> Selector:
    """Read the query; an empty value, which a form sends for an empty field, is no choice."""
    query = request.query
    if query.keys() - _KEYS.keys() - set(others) or len(query) != len(set(query)):
        known = ", ".join((*_KEYS, *others))
        raise web.HTTPBadRequest(text=f"a query is made of {known}, each at most once\n")
    return Selector(**{part: query[key] for key, part in _KEYS.items() if query.get(key)})


def _limit(request: web.Request) -> int:
    given = request.query.get("limit", str(DEFAULT_LIMIT))
    if not (given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MOST):
        raise web.HTTPBadRequest(text=f"limit must be a number from 1 to {MOST}\n")
    return int(given)
