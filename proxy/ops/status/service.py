"""HTTP handlers of the status page and `/sessions.json`; read-only.

Rule: however many requests come, the workers are queried once in `MIN_REFRESH_SECONDS`. Sessions
are selected here, from those of all workers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from proxy.ops.http_server import BadRequestError, Request, Response
from proxy.ops.status import snapshot
from proxy.ops.status.page import POLICY, render
from proxy.ops.status.session_facts import EVERY_SESSION, Condition, Selector, SessionFacts
from proxy.ops.status.snapshot import About, Overview, PrincipalSummary, WorkerFacts
from proxy.ops.worker_queries import ControlError, WorkerPool

DEFAULT_LIMIT: Final = 100
"""Number of sessions, and of principals, in a document without a limit in its request."""
MAX_LIMIT: Final = 1_000
"""Largest number of sessions, and of principals, in one document."""


def document(overview: Overview, selector: Selector, about: About, limit: int) -> dict[str, Any]:
    """Return at most `limit` principals and sessions, and the numbers of those left out."""
    by_principal = snapshot.by_principal(overview)
    sessions = sorted(overview.sessions, key=lambda one: -one.connected_s)
    return {
        "taken_ms": overview.taken_ms,
        **asdict(about),
        "ready": overview.ready(),
        "workers": [
            {"worker": worker, "reasons": facts.reasons}
            for worker, facts in sorted(overview.workers.items())
        ],
        "listeners": [asdict(one) for one in snapshot.listeners(overview)],
        "conditions": [one._asdict() for one in snapshot.conditions(overview)],
        "states": snapshot.states(overview.sessions),
        "counts": asdict(snapshot.counts(overview.sessions)),
        "carried": asdict(snapshot.carried(overview.sessions)),
        "rates": asdict(snapshot.rates(overview)),
        "incidents": [
            one._asdict() for one in snapshot.incidents(overview, selector.principal)[:limit]
        ],
        "principals": [_group(snapshot.summarize(each)) for each in by_principal[:limit]],
        "principals_more": max(0, len(by_principal) - limit),
        "sessions": [one._asdict() for one in sessions[:limit]],
        "sessions_more": max(0, len(sessions) - limit),
    }


def _group(group: PrincipalSummary) -> dict[str, Any]:
    troubles = {kind: tally._asdict() for kind, tally in group.troubles.items()}
    return {**asdict(group), "troubles": troubles}


MIN_REFRESH_SECONDS: Final = 2.0
"""Shortest time in seconds between two queries of the workers."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEYS: Final = {"principal": "principal", "client-id": "client_id", "connection": "connection_id"}
"""Part of a selector that each query parameter sets."""


Conditions = Callable[[float], Sequence[Condition]]
"""Function that returns the conditions outside workers at a Unix time in seconds."""


async def query_overview(workers: WorkerPool, conditions: Conditions = lambda _: ()) -> Overview:
    """Query all workers; one that does not answer is in the overview as not ready."""
    status, sessions = await asyncio.gather(workers.status(), workers.sessions(EVERY_SESSION))
    states: dict[int, WorkerFacts] = {}
    found: list[SessionFacts] = []
    for worker, answer in status.items():
        rows = sessions[worker]
        if isinstance(answer, ControlError):
            states[worker] = WorkerFacts(reasons=[str(answer)])
        elif isinstance(rows, ControlError):
            states[worker] = WorkerFacts(reasons=[str(rows)])
        else:
            states[worker] = WorkerFacts.from_json(answer)
            found += rows
    wall = time.time()
    return Overview(
        taken_ms=round(wall * 1000), workers=states, sessions=found, conditions=conditions(wall)
    )


class StatusPage:
    """Handlers of the status page and `/sessions.json`, which share the latest overview."""

    def __init__(
        self, workers: WorkerPool, about: About, conditions: Conditions = lambda _: ()
    ) -> None:
        self._workers = workers
        self._conditions = conditions
        self._about = about
        self._round = asyncio.Lock()
        self._overview: Overview | None = None
        self._taken_at = 0.0
        self._whole: str | None = None
        """The page of all sessions, rendered once for each overview; None if not rendered yet."""

    async def page(self, request: Request) -> Response:
        """Serve `/`."""
        selector = _selector(request)
        overview = await self._latest()
        if selector != EVERY_SESSION:
            return self._html(render(overview.of(selector), selector, self._about))
        if self._whole is None:
            self._whole = render(overview, selector, self._about)
        return self._html(self._whole)

    async def sessions(self, request: Request) -> Response:
        """Serve `/sessions.json`."""
        limit = _limit(request)
        selector = _selector(request, "limit")
        overview = (await self._latest()).of(selector)
        answer = document(overview, selector, self._about, limit)
        return Response.json(answer, headers=_HEADERS)

    def _html(self, page: str) -> Response:
        return Response(
            body=page.encode(), content_type="text/html; charset=utf-8", headers=_HEADERS
        )

    async def _latest(self) -> Overview:
        async with self._round:
            now = asyncio.get_running_loop().time()
            if self._overview is None or now - self._taken_at >= MIN_REFRESH_SECONDS:
                self._overview = await query_overview(self._workers, self._conditions)
                self._taken_at = asyncio.get_running_loop().time()
                self._whole = None
            return self._overview


def _selector(request: Request, *others: str) -> Selector:
    """Return the selector of a request; a form sends an empty value for an empty field."""
    query = dict(request.query)
    if query.keys() - _KEYS.keys() - set(others) or len(request.query) != len(query):
        known = ", ".join((*_KEYS, *others))
        raise BadRequestError(f"a query is made of {known}, each at most once")
    return Selector(**{part: query[key] for key, part in _KEYS.items() if query.get(key)})


def _limit(request: Request) -> int:
    given = dict(request.query).get("limit", str(DEFAULT_LIMIT))
    if not (
        given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MAX_LIMIT
    ):
        raise BadRequestError(f"limit must be a number from 1 to {MAX_LIMIT}")
    return int(given)
