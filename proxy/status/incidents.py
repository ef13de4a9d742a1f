"""What went wrong lately in one worker: few lines, whoever floods it.

Laws: what repeats is one incident with a count; of each kind the latest are kept. A flood of one
kind does not push out the others, and inventing names fills no memory.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from metrics.event_lines import bounded_text
from metrics.events import EventKind, SessionEvent
from proxy.commands import CloseReason
from proxy.wire.apis import APIS

MOST_OF_A_KIND: Final = 50
MOST_PRINCIPALS: Final = 1_000
"""Of those with incidents, the latest."""

KINDS: Final = frozenset(
    {
        EventKind.FAILED,
        EventKind.EXPIRED_KILLED,
        EventKind.WOULD_BE_KILLED,
        EventKind.DENIED,
        EventKind.WOULD_BE_DENIED,
    }
)
CLOSES: Final = frozenset(
    {
        CloseReason.BROKER_UNREACHABLE,
        CloseReason.BROKER_FAULT,
        CloseReason.MALFORMED_FRAME,
        CloseReason.OVERSIZE_FRAME,
        CloseReason.UNSUPPORTED_API,
        CloseReason.INTERNAL_ERROR,
        CloseReason.KILLED,
    }
)
"""Ends of a connection that no other incident tells."""


class Incident(NamedTuple):
    """Something that went wrong, once or often."""

    kind: str
    """As in events."""
    what: str
    """The reason of a failure or close, what was denied, or by what an expired session was used."""
    listener: str
    principal: str | None
    client_id: str | None
    client_host: str
    mechanism: str | None
    times: int
    first_ms: int
    """Epoch milliseconds, as `last_ms`."""
    last_ms: int


class Tally(NamedTuple):
    """What a principal met with since the worker started."""

    times: int
    last_ms: int


_Key = tuple[str, str | None, str | None, str]


class Incidents:
    """The incidents of one worker."""

    def __init__(self) -> None:
        self._by_kind: dict[str, OrderedDict[_Key, Incident]] = {}
        self._by_principal: OrderedDict[str, dict[str, Tally]] = OrderedDict()

    def note(self, event: SessionEvent) -> None:
        """Take in what happened, if it is an incident."""
        if event.kind in KINDS or (event.kind is EventKind.CLOSED and event.close_reason in CLOSES):
            incident = _incident(event)
            self._keep(incident)
            if incident.principal is not None:
                self._count(incident.principal, incident)

    def recent(self) -> list[Incident]:
        """Return what is kept, the latest first."""
        every = [one for kept in self._by_kind.values() for one in kept.values()]
        return sorted(every, key=lambda one: one.last_ms, reverse=True)

    def of_principals(self) -> Mapping[str, Mapping[str, Tally]]:
        """Return by principal and kind what was counted."""
        return self._by_principal

    def _keep(self, new: Incident) -> None:
        kept = self._by_kind.setdefault(new.kind, OrderedDict())
        key: _Key = (new.what, new.principal, new.client_id, new.client_host)
        before = kept.get(key)
        if before is not None:
            new = new._replace(times=before.times + new.times, first_ms=before.first_ms)
        kept[key] = new
        kept.move_to_end(key)
        if len(kept) > MOST_OF_A_KIND:
            kept.popitem(last=False)

    def _count(self, principal: str, incident: Incident) -> None:
        counted = self._by_principal.setdefault(principal, {})
        before = counted.get(incident.kind)
        times = incident.times + (before.times if before else 0)
        counted[incident.kind] = Tally(times, incident.last_ms)
        self._by_principal.move_to_end(principal)
        if len(self._by_principal) > MOST_PRINCIPALS:
            self._by_principal.popitem(last=False)


def _incident(event: SessionEvent) -> Incident:
    return Incident(
        kind=event.kind.value,
        what=_what(event),
        listener=event.listener,
        principal=None if event.principal is None else bounded_text(event.principal),
        client_id=None if event.client_id is None else bounded_text(event.client_id),
        client_host=event.client_host,
        mechanism=event.mechanism,
        times=event.denials or 1,
        first_ms=event.timestamp_ms,
        last_ms=event.timestamp_ms,
    )


def _what(event: SessionEvent) -> str:
    match event.kind:
        case EventKind.FAILED:
            return str(event.failure_reason)
        case EventKind.CLOSED:
            return str(event.close_reason)
        case EventKind.DENIED | EventKind.WOULD_BE_DENIED:
            name = bounded_text(event.resource_name or "")
            return f"{event.operation} on {event.resource_type} {name}".rstrip()
        case _:
            return _api_name(event.api_key)


def _api_name(api_key: int | None) -> str:
    api = None if api_key is None else APIS.get(api_key)
    return f"API {api_key}" if api is None else api.name
