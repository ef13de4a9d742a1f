"""`/sessions.json`: the facts of the status page for programs, of bounded size."""

from dataclasses import asdict
from typing import Any, Final

from proxy.ops.status import snapshot as pictures
from proxy.ops.status.session_facts import Selector
from proxy.ops.status.snapshot import About, Group, Picture

DEFAULT_LIMIT: Final = 100
MOST: Final = 1_000
"""Largest number of sessions, and of principals, in one document."""


def document(picture: Picture, selector: Selector, about: About, limit: int) -> dict[str, Any]:
    """Return at most `limit` principals and sessions, and how many there are beside them."""
    crowds = pictures.by_principal(picture)
    sessions = sorted(picture.sessions, key=lambda one: -one.connected_s)
    return {
        "taken_ms": picture.taken_ms,
        **asdict(about),
        "ready": picture.ready(),
        "workers": [
            {"worker": worker, "reasons": facts.reasons}
            for worker, facts in sorted(picture.workers.items())
        ],
        "listeners": [asdict(one) for one in pictures.listeners(picture)],
        "states": pictures.states(picture.sessions),
        "counts": asdict(pictures.counts(picture.sessions)),
        "carried": asdict(pictures.carried(picture.sessions)),
        "incidents": [
            one._asdict() for one in pictures.incidents(picture, selector.principal)[:limit]
        ],
        "principals": [_group(pictures.summed_up(crowd)) for crowd in crowds[:limit]],
        "principals_more": max(0, len(crowds) - limit),
        "sessions": [one._asdict() for one in sessions[:limit]],
        "sessions_more": max(0, len(sessions) - limit),
    }


def _group(group: Group) -> dict[str, Any]:
    troubles = {kind: tally._asdict() for kind, tally in group.troubles.items()}
    return {**asdict(group), "troubles": troubles}
