"""Events of the log in one sentence each, and the setting that would have helped; pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from metrics.report.formats import duration

Event = Mapping[str, Any]

CLOSED: Final = {
    "client_closed": "the client closed it, or disappeared",
    "broker_closed": "the broker closed it",
    "broker_unreachable": "its broker could not be reached",
    "broker_unknown": "the gateway learned the brokers from this login, so the client reconnects",
    "idle": "no bytes for connections.max.idle.ms",
    "drained": "the proxy was stopped or replaced, or an operator drained it",
    "killed": "an operator closed it",
    "blocked": "an operator blocked the client: see reauth-proxy blocks",
    "revoked": "its user, password or signing key was removed",
    "certificate_expired": "the client's certificate expired",
    "max_age": "it was open for connections.max.age.ms",
    "authentication_timeout": "no login within sasl.authentication.timeout.ms",
    "evicted": "max.connections was reached before it had logged in",
}
"""Ends of connections that a close reason alone does not explain, by reason."""
_OF_TOKENS: Final = ("signature", "unknown_key", "expired", "not_yet", "wrong_", "claims", "groups")
"""Parts of the reasons of failures that the token explains."""


def in_words(event: Event) -> str:
    """Return what happened. Texts that clients chose are not escaped."""
    words = _WORDS.get(event["kind"])
    return str(event["kind"]) if words is None else words(event)


def advice(event: Event) -> str | None:
    """Return what would have kept the client connected; None if nothing at the proxy would."""
    match event["kind"], event.get("failure_reason"):
        case "expired-killed", _:
            return remedy(
                event.get("principal", ""),
                event.get("throttled_by"),
                enforced=event.get("enforcement") == "enforce",
                by_token=event.get("credential_lifetime_ms") == event.get("session_lifetime_ms"),
            )
        case "failed", "bad_credentials":
            return "the right password: or the user does not exist"
        case "failed", "refused_by_broker":
            return "credentials that the broker accepts: its log has the reason"
        case "failed", str(reason) if any(part in reason for part in _OF_TOKENS):
            return "another token: reauth-proxy token explain names the claim"
    return None


def remedy(principal: str, throttled_by: str | None, *, enforced: bool, by_token: bool) -> str:
    """Return the settings with which an expired session stays open: `throttled_by` is the quota of
    a throttle that was longer, `enforced` is true for the sessions of `enforce`, `by_token` for
    those that ended with their token."""
    if throttled_by is not None:
        return f"a higher {throttled_by}: the client could not re-authenticate while throttled"
    token = "reauth.enforce.token.expiry: false"  # noqa: S105 - no password
    if not enforced:
        return token
    override = f"{{principal: {json.dumps(principal)}, reauth.enforcement: probe}}"
    return f"reauth.overrides: [{override}]" + (f", and {token}" if by_token else "")


def _session(event: Event) -> str:
    lifetime = event.get("session_lifetime_ms")
    return f"for {duration(lifetime)}" if lifetime else "without an end"


def _failed(event: Event) -> str:
    what = "re-authentication" if event.get("authentications") else "login"
    return f"{what} failed: {event.get('failure_reason', 'unknown').replace('_', ' ')}"


def _expired(event: Event) -> str:
    lifetime, age = event.get("session_lifetime_ms", 0), event.get("since_auth_ms", 0)
    since = f" at {throttle}" if (throttle := event.get("throttled_by")) is not None else ""
    throttled = f", throttled for {duration(event.get('throttled_ms'))}{since}" if since else ""
    return (
        f"session of {duration(lifetime)} used {duration(max(0, age - lifetime))} after its end"
        f"{throttled}"
    )


def _use(event: Event) -> str:
    what = (event.get(name, "") for name in ("operation", "resource_type", "resource_name"))
    times = event.get("denials", event.get("requests", 1))
    return f"{' '.join(filter(None, what))}, {times} times"


def _administered(event: Event) -> str:
    code = event.get("error_code")
    outcome = "unknown outcome" if code is None else f"error {code}" if code else "done"
    return f"administered {event.get('resource_name', 'the request')}: {outcome}"


def _misrouted(event: Event) -> str:
    return (
        f"sent back: it meant node {event.get('meant_node_id')} of {event.get('meant_cluster_id')},"
        f" and reached {event.get('node_id')} of {event.get('cluster_id')}"
    )


def _decided(event: Event) -> str:
    verb = "enforced" if event["kind"] == "promoted" else "probed"
    return f"{verb} by {event.get('decided_by')}: {event.get('decision_reason')}"


def _closed(event: Event) -> str:
    reason = event.get("close_reason", "unknown")
    return f"closed: {CLOSED.get(reason, reason.replace('_', ' '))}"


_WORDS: Final[Mapping[str, Callable[[Event], str]]] = {
    "authenticated": lambda event: f"logged in {_session(event)}",
    "reauthenticated": lambda event: (
        f"re-authenticated after {duration(event.get('since_auth_ms'))}, {_session(event)}"
    ),
    "no-reauth": lambda _: "cannot re-authenticate: it uses no SaslAuthenticate, or v0",
    "failed": _failed,
    "expired-killed": lambda event: f"closed: {_expired(event)}",
    "would-be-killed": lambda event: f"enforce would close it: {_expired(event)}",
    "denied": lambda event: f"denied: {_use(event)}",
    "would-be-denied": lambda event: f"enforce would deny: {_use(event)}",
    "used": lambda event: f"used: {_use(event)}",
    "administered": _administered,
    "misrouted": _misrouted,
    "closed": _closed,
    "promoted": _decided,
    "demoted": _decided,
}
"""Sentences by kind; another kind stands for itself."""
