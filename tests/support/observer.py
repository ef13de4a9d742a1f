"""Observers of connections, with what they would log and count kept for a test."""

from typing import Any

from metrics.event_rate_limit import UnauthenticatedEventLimit
from metrics.history import Cadence, Timeline
from metrics.tally import Tally
from proxy.ops.observer import SessionObserver
from sasl.states import Enforcement
from tests.support.sasl import NOW


def observer_of(**given: Any) -> SessionObserver:
    """Return an observer that drops what it is not `given` a place for."""
    return SessionObserver(
        **{
            "proxy_id": "proxy",
            "worker": 0,
            "listener": "clients",
            "enforcement": lambda: Enforcement.ENFORCE,
            "timeline": Timeline(wall=NOW, now=NOW),
            "cadence": Cadence(),
            "tally": Tally(run="r"),
            "event_limit": UnauthenticatedEventLimit(workers=1),
            "emit": lambda _line: None,
            "note": lambda _incident: None,
            "upstream_failed": lambda _broker, _problem, _words: None,
            "may_have_changed": lambda _broker, _now: None,
            "inform": lambda _cause, _text: None,
            **given,
        }
    )
