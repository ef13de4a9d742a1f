"""`/sessions.json`: the facts of the status page for programs, of bounded size."""

from dataclasses import asdict
from typing import Any, Final

from proxy.ops.status import snapshot
from proxy.ops.status.session_facts import Selector
from proxy.ops.status.snapshot import About, Overview, PrincipalSummary

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
