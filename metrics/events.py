"""Session event log: rules, kinds of its lines, and limits.

Rules of the log:

- A line is one JSON object in ASCII, terminated by a newline; a field that is null is left out.
- Numbers are signed 64-bit integers; times are epoch milliseconds (UTC), durations have their unit
  in the name.
- Readers ignore unknown kinds and fields. A new kind or field does not increase `SCHEMA_VERSION`; a
  change of the meaning of an existing one does.
- `connection_id` and `sequence` together identify an event, so readers recognize duplicates.
- No secrets: no token, no password, no authentication bytes.

The fields are in `metrics.event_schema`, which only readers import.
"""

import secrets
from collections.abc import Iterator
from enum import StrEnum
from itertools import count

SCHEMA_VERSION = 1

MAX_TEXT_CHARS = 256
"""Maximum length of a text in characters. A longer one is truncated and ends with `…`."""

MAX_INT64 = 2**63 - 1

MAX_INTERVALS = 64
"""Maximum number of intervals in one summary row. A row covers about an hour, so the intervals that
are left out, the least used ones, were used for less than a minute each: see docs/events.md."""


class EventKind(StrEnum):
    """Kind of an event. More kinds may be added."""

    AUTHENTICATED = "authenticated"
    """The first authentication of a connection succeeded."""
    REAUTHENTICATED = "reauthenticated"
    """A later authentication of the connection succeeded."""
    FAILED = "failed"
    """An authentication failed; it was a re-authentication if `authentications` is above 0.
    One that came within a second of the last one (`illegal_state`) is written once for each
    session, which continues: Kafka also refuses it with error 34."""
    EXPIRED_KILLED = "expired-killed"
    """The connection was used past its session's end and is closed: in `enforce` (KIP-368), or past
    the end of its token in any mode (KAFKA-13848)."""
    WOULD_BE_KILLED = "would-be-killed"
    """`probe`: the connection was used past its session's end; once for each session."""
    NO_REAUTH = "no-reauth"
    """Follows `authenticated` if the client used SaslAuthenticate v0 or raw tokens, so that no
    lifetime can be announced to it (KIP-368, successful-authentication-no-reauth)."""
    DENIED = "denied"
    """`authorizer.mode: enforce`: ACLs denied something; written at most once a minute for the same
    principal, operation and resource, with the number of times."""
    WOULD_BE_DENIED = "would-be-denied"
    """`authorizer.mode: audit`: ACLs would have denied something, which was allowed."""
    MISROUTED = "misrouted"
    """The client connected to the wrong broker or cluster, and was sent REBOOTSTRAP_REQUIRED
    (KIP-1242)."""
    CLOSED = "closed"
    """The connection has ended, whichever side ended it."""
    CHECKPOINT = "checkpoint"
    """A long session is still open; written periodically in the absence of other events."""
    SUMMARY = "summary"
    """One row about a period of a connection: every hour, and at its close."""
    ADMINISTERED = "administered"
    """`events.usage`: the outcome of an administrative request, such as CreateTopics, for one
    resource; at most 200 for a request."""
    USED = "used"
    """`events.usage`: the uses of a resource by all connections of a client in five minutes, or the
    number of those that exceed the bound, without principal and resource. It has no fields of a
    connection; `connection_id` stands for the worker."""
    PROMOTED = "promoted"
    """`auto` or an operator enforced a principal, or shortened its sessions. Like `demoted`, it has
    no fields of a connection, and proxies with the same store may repeat it."""
    DEMOTED = "demoted"
    """`auto` or an operator ended the enforcement of a principal, which is probed from then on."""


class IntervalEnd(StrEnum):
    """Event that ended the interval between two authentications."""

    REAUTHENTICATED = "reauthenticated"
    """A re-authentication succeeded, which began the next interval."""
    FAILED = "failed"
    """A re-authentication failed, and the connection ended."""
    EXPIRED_KILLED = "expired-killed"
    """The connection was used past its session's end and was closed."""
    CLOSED = "closed"
    """The connection ended for another reason."""


def connection_ids() -> Iterator[str]:
    """Yield globally unique ids for the connections of one worker process.

    They begin with 64 random bits that differ for each start of a worker, so neither setting the
    clock back nor two proxies with the same name lead to duplicates.
    """
    run = secrets.token_hex(8)
    return (f"{run}-{number}" for number in count(1))
