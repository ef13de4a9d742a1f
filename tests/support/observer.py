"""Observers of connections that record what they log and count."""

from types import SimpleNamespace
from typing import Any

from metrics.history import Cadence, Timeline, UnauthenticatedEventLimit
from metrics.tally import Tally
from proxy.acl.authorizer import Denial
from proxy.acl.model import Operation, ResourceType
from proxy.ops.observer import SessionObserver
from sasl.identity import Identity
from sasl.states import Authenticated, Enforcement
from tests.support.sasl import NOW

DENIAL = Denial(
    principal="User:alice",
    host="192.0.2.1",
    operation=Operation.WRITE,
    resource_type=ResourceType.TOPIC,
    name="orders",
    would_be=False,
    rule=None,
)


def authenticated(**changes: Any) -> Authenticated:
    """The session of a minute that a login began."""
    given: dict[str, Any] = {
        "identity": Identity("User:alice"),
        "mechanism": "SCRAM-SHA-256",
        "handshake_version": 1,
        "authenticate_version": 2,
        "enforcement": Enforcement.ENFORCE,
        "authenticated_at": NOW,
        "latency": 0.01,
        "session_lifetime_ms": 60_000,
        "credential_lifetime_ms": None,
        "deadline": NOW + 60,
        "killed_after": NOW + 60,
        "reauthentications": 0,
    }
    return Authenticated(**given | changes)


def observer_of(*, note: Any = lambda _incident: None, **given: Any) -> SessionObserver:
    """Return an observer of listener `clients` that drops everything it has no `given` place for.

    `note` takes incidents; the other names are those of the listener's and worker's attributes.
    """
    shell: Any = SimpleNamespace(
        **{
            "proxy_id": "proxy",
            "number": 0,
            "name": "clients",
            "enforcement": lambda: Enforcement.ENFORCE,
            "timeline": Timeline(wall=NOW, now=NOW),
            "cadence": Cadence(),
            "tally": Tally(run="r"),
            "event_limit": UnauthenticatedEventLimit(workers=1),
            "incidents": SimpleNamespace(note=note),
            "emit": lambda _line: None,
            "upstream_failed": lambda _broker, _problem, _words: None,
            "may_have_changed": lambda _broker, _now: None,
            "is_automatic": lambda _identity: False,
            "inform": lambda _cause, _text, **_more: None,
            **given,
        }
    )
    return SessionObserver(shell, shell)
