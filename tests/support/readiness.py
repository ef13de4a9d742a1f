"""Logs of session events and their analysis."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from metrics.event_schema import ApiVersion, SessionEvent
from metrics.events import MAX_INT64, EventKind
from metrics.readiness.analysis import Analysis, Question
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.events import LISTS, MAX_ELEMENTS, Problem
from metrics.readiness.folder import Folder
from metrics.readiness.what_if import DEFAULT_LIFETIMES_MS
from tests.support.metrics import EPOCH_MS, event, to_json_line

MINUTE_MS = 60_000
FAR_AHEAD_MS = 10**14
"""Current time, after all events."""
AUTHENTICATED = {
    "authenticated_ms": EPOCH_MS,
    "since_auth_ms": 0,
    "session_lifetime_ms": 0,
    "announced_lifetime_ms": 0,
    "principal": "User:alice",
    "mechanism": "SCRAM-SHA-256",
    "handshake_version": 1,
    "authenticate_version": 2,
    "client_id": "app",
}

Row = dict[str, Any]


def login(**more: Any) -> SessionEvent:
    """A first authentication of a client with SaslAuthenticate v2."""
    return event(
        **{"kind": EventKind.AUTHENTICATED, "auth_latency_us": 1000, **AUTHENTICATED} | more
    )


def later(kind: EventKind, minutes: float, **more: Any) -> SessionEvent:
    """An event of a session, some minutes after its login."""
    ms = round(minutes * MINUTE_MS)
    fields = {"kind": kind, "timestamp_ms": EPOCH_MS + ms, "since_auth_ms": ms, "sequence": 1}
    return event(**AUTHENTICATED | fields | more)


def use(operation: str, kind: str, name: str, **more: Any) -> SessionEvent:
    """Ten requests that used a resource."""
    fields = {
        "kind": EventKind.USED,
        "connection_id": "worker-1",
        "sequence": 1,
        "principal": "User:alice",
        "client_id": "app",
        "operation": operation,
        "resource_type": kind,
        "resource_name": name,
        "requests": 10,
        "period_start_ms": EPOCH_MS,
        "last_request_ms": EPOCH_MS,
    }
    return event(**fields | more)


USES = [
    use("READ", "TOPIC", "a"),
    use("READ", "TOPIC", "a"),  # delivered twice
    use("READ", "TOPIC", "a", sequence=2, requests=5, last_request_ms=EPOCH_MS - 7),
    use("READ", "TOPIC", "a", sequence=3, timestamp_ms=EPOCH_MS + 86_400_000),
    use("READ", "TOPIC", "a", sequence=4, client_id="other"),
    use("READ", "TOPIC", "a", sequence=5, requests=-1),
    replace(use("", "", "", sequence=6), principal=None, resource_name=None, operation=None),
]
"""Records of use: a duplicate, an invalid one, and one of uses beyond the bound."""

GOOD = to_json_line(login())


def changed(**fields: object) -> str:
    return json.dumps(json.loads(GOOD) | fields)


_ELEMENTS = {
    "groups": "Group:a",
    "dropped_versions": {"api": "Fetch", "version": 0},
    "reauth_latencies": {"bucket": 1, "count": 1},
    "intervals": {"number": 1},
}

LINES = [
    (GOOD, None),
    (changed(a_later_field={"x": 1}), None),
    (GOOD[:40], Problem.UNREADABLE),
    ("null", Problem.UNREADABLE),
    ("[]", Problem.UNREADABLE),
    ("{}", Problem.UNREADABLE),
    ("\x00\x00", Problem.UNREADABLE),
    (changed(sequence="three"), Problem.UNREADABLE),
    (changed(sequence=2**70), Problem.UNREADABLE),
    (changed(connection_id=None), Problem.UNREADABLE),
    (changed(schema_version=2), Problem.UNKNOWN_VERSION),
    ('{"schema_version":2,"anything":"else"}', Problem.UNKNOWN_VERSION),
    (changed(kind="levitated"), Problem.UNKNOWN_KIND),
    (changed(sequence=-1), Problem.IMPOSSIBLE),
    (changed(timestamp_ms=MAX_INT64), Problem.IMPOSSIBLE),
    (changed(last_request_ms=-5), Problem.IMPOSSIBLE),
    (changed(since_auth_ms=-MAX_INT64), Problem.IMPOSSIBLE),
    *(
        (changed(**{name: [_ELEMENTS[name]] * (MAX_ELEMENTS + beyond)}), problem)
        for name in LISTS
        for beyond, problem in ((0, None), (1, Problem.UNREADABLE))
    ),
]
"""Lines of a log and why they are set aside; None for valid ones."""

TOLD = {"session_lifetime_ms": 15 * MINUTE_MS, "announced_lifetime_ms": 15 * MINUTE_MS}

STANDINGS = [
    ("no lifetime", [login()], "unproven"),
    ("a lifetime, not yet over", [login(**TOLD)], "unproven"),
    ("SaslAuthenticate v0", [login(authenticate_version=0)], "not_capable"),
    ("raw tokens", [login(authenticate_version=None)], "not_capable"),
    (
        "re-authenticated",
        [login(**TOLD), later(EventKind.REAUTHENTICATED, 13, authentications=2, **TOLD)],
        "ready",
    ),
    ("killed", [login(**TOLD), later(EventKind.EXPIRED_KILLED, 16, **TOLD)], "failing"),
    ("would be", [login(**TOLD), later(EventKind.WOULD_BE_KILLED, 16, **TOLD)], "failing"),
    ("failed again", [login(**TOLD), later(EventKind.FAILED, 14, **TOLD)], "failing"),
    (
        "killed without an announced lifetime",
        [
            login(authenticate_version=0),
            later(EventKind.EXPIRED_KILLED, 16, authenticate_version=0),
        ],
        "not_capable",
    ),
    ("never logged in", [event(kind=EventKind.FAILED, authentications=0)], "unknown"),
    ("an unknown mechanism", [login(mechanism="X-NEW")], "unproven"),
    ("no mechanism", [event(kind=EventKind.CLOSED, authentications=0)], "unknown"),
]
"""Connections: name, events, and verdict."""


_PRODUCE_2, _PRODUCE_1, _FETCH_0 = (
    ApiVersion(api="Produce", version=2),
    ApiVersion(api="Produce", version=1),
    ApiVersion(api="Fetch", version=0),
)


def _without_sasl(**more: Any) -> SessionEvent:
    fields: dict[str, Any] = {
        "mechanism": None,
        "handshake_version": None,
        "authenticate_version": None,
        "authenticated_ms": None,
        "since_auth_ms": None,
        "session_lifetime_ms": None,
        "announced_lifetime_ms": None,
        "authentications": 0,
        "principal": "User:ANONYMOUS",
        "sequence": 0,
        "connection_id": "c-without",
    }
    return later(EventKind.CLOSED, 5, **fields | more)


USES_OF_DROPPED = [
    login(),
    later(EventKind.CHECKPOINT, 1, dropped_versions=(_PRODUCE_2,)),
    later(EventKind.CLOSED, 2, sequence=2, dropped_versions=(_PRODUCE_2, _FETCH_0)),
    login(connection_id="c-2"),
    later(EventKind.CLOSED, 3, connection_id="c-2", client_host="10.0.0.8",
          dropped_versions=(_PRODUCE_2,)),
    login(connection_id="c-3", principal="User:new"),
    later(EventKind.CLOSED, 3, connection_id="c-3", principal="User:new"),
    _without_sasl(dropped_versions=(_PRODUCE_1,)),
]  # fmt: skip
"""Connections of User:alice, of a client without SASL, and of one that uses no old version."""


_A, _B, _C = "Group:a", "Group:b", "Group:c"

IN_GROUPS = [
    login(groups=(_A, _B)),
    later(EventKind.REAUTHENTICATED, 13, authentications=2, groups=(_A, _C)),
    login(connection_id="c-2"),
    login(connection_id="c-3", principal="User:bob", authenticate_version=0, groups=(_A,)),
    later(EventKind.CLOSED, 3, connection_id="c-3", principal="User:bob", authenticate_version=0),
    login(connection_id="c-4", principal="User:carol", groups=(_B,)),
    later(EventKind.REAUTHENTICATED, 9, connection_id="c-4", principal="User:carol",
          authentications=2),
]  # fmt: skip
"""User:alice, who changed groups; User:bob, who cannot re-authenticate; and
User:carol, who left her only group."""


def duckdb_log(given: Iterable[SessionEvent | str]) -> DuckEngine:
    """A DuckDB engine that has read these lines."""
    lines = [each if isinstance(each, str) else to_json_line(each) for each in given]
    engine = DuckEngine()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "events-p-0-1.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines))
        engine.read(Folder([file], parquet=False))
    return engine


class Answers:
    """Results of the analysis of a log, which runs as far as a test asks."""

    def __init__(self, engine: DuckEngine, analysis: Analysis) -> None:
        self.engine = engine
        self._analysis = analysis
        self._steps = [analysis.clean, analysis.base, analysis.lifetimes, analysis.tables]

    @property
    def lines(self) -> dict[str, int]:
        self._step_to(3)
        return self._analysis.lines

    @property
    def shown(self) -> dict[str, list[Row]]:
        self._step_to(0)
        return self._analysis.rows

    def _step_to(self, left: int) -> None:
        while len(self._steps) > left:
            self._steps.pop(0)()

    def table(self, name: str, order: str = "1") -> list[Row]:
        return self.query(f"SELECT * FROM {name} ORDER BY {order}")

    def only(self, name: str) -> Row:
        (row,) = self.table(name)
        return row

    def query(self, query: str) -> list[Row]:
        while True:
            try:
                return self.engine.rows(query)
            except duckdb.CatalogException:  # a relation of a later step
                if not self._steps:
                    raise
                self._step_to(len(self._steps) - 1)


def answers(
    given: Iterable[SessionEvent | str],
    *,
    lifetimes_ms: tuple[int, ...] = DEFAULT_LIFETIMES_MS,
    as_of_ms: int = FAR_AHEAD_MS,
    **more: Any,
) -> Answers:
    """Query a log on DuckDB; `test_engines` compares it with Spark.

    Queries of so few rows take longer to optimize than to run; `test_job` runs optimized ones.
    """
    engine = duckdb_log(given)
    engine.rows("PRAGMA disable_optimizer")
    question = Question(as_of_ms=as_of_ms, lifetimes_ms=lifetimes_ms, **more)
    return Answers(engine, Analysis(engine, engine, question, lambda _: None))


def comparable(value: Any) -> Any:
    """Round numbers to nine digits, because sums of doubles depend on their order."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return tuple((name, comparable(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return str(value)


SEEN_FILES = {"a.jsonl", "_day=1/b.jsonl", "below/c_.jsonl"}
HIDDEN_FILES = {"_d.jsonl", ".e.jsonl", "_temporary/f.jsonl", "below/.g/h.jsonl", ".i.jsonl.open"}


def hidden_among_others(folder: Path) -> None:
    """Write files with one event each, named like its connection; some are hidden."""
    for name in SEEN_FILES | HIDDEN_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(to_json_line(login(connection_id=name)) + "\n")
