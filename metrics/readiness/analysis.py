"""Tables of the report from event rows: all queries, in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from metrics.events import EventKind
from metrics.readiness import (
    acl_use,
    authentications,
    events,
    expired_uses,
    rollout,
    sessions,
    usage,
    what_if,
)
from metrics.readiness.events import Problem, Row, words
from metrics.readiness.published import CLIENT_HASH
from metrics.report.tables import CLIENTS_SHOWN

if TYPE_CHECKING:
    from metrics.readiness.duckdb_engine import DuckEngine

MAX_ROWS = 5_000
"""Maximum number of clients, and of principals, on the page; the tables have all of them."""

BUSIEST = 20
"""Maximum number of minutes that are listed as storms."""

TIMELINE_DAYS = 60
"""Maximum number of days on which a client was seen that are drawn."""

CLOCKS_NAMED = 5
"""Maximum number of implausible stretches of time that the report lists."""

Progress = Callable[[str], None]


class Events(Protocol):
    """Events of one report, as named relations; a name is used only once.

    Queries of events are written in Spark's SQL; DuckDB gets the functions that it lacks as
    macros. The database of the report is always in DuckDB; its relation `nothing` has the fields
    of the log, and no rows.
    """

    def view(self, name: str, query: str) -> None:
        """Name a query of events; it runs again wherever it is used."""

    def keep(self, name: str, query: str) -> None:
        """Run a query of events once; its result becomes a relation of the report's database."""

    def give(self, name: str) -> None:
        """Make a relation of the report's database available to queries of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question to the events."""

    as_of_ms: int
    """The present time for the report, epoch ms."""
    lifetimes_ms: tuple[int, ...] = what_if.DEFAULT_LIFETIMES_MS
    principals: Sequence[str] = ()
    """Principals and groups to look up among all of them."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Bounds of the events' time, epoch ms: from `since_ms`, before `until_ms`; None: no bound."""
    acls: Path | None = None
    users: Path | None = None
    """Files with the ACLs and users to compare the use with, in JSON; None: not compared."""


class Analysis:
    """One report's relations, derived from the relation `log` with the fields of the event log.

    The results for the page are in `rows`, and the counts of lines in `lines`.
    """

    def __init__(
        self, log: Events, engine: "DuckEngine", question: Question, progress: Progress
    ) -> None:
        """Run queries of events on `log`, and queries of their results on `engine`."""
        self.rows: dict[str, list[Row]] = {}
        self.lines: dict[str, int] = {}
        self.files_aside: Mapping[Path, str] = {}
        """Files that were not read, with the reasons."""
        self._log = log
        self._engine = engine
        self._question = question
        self._bounds: dict[str, Any] = {
            "as_of_ms": question.as_of_ms,
            "since_ms": question.since_ms,
            "until_ms": question.until_ms,
        }
        self._progress = progress
        self._dated = "true"
        """SQL condition for events with a plausible date."""
        self._is_valid = False
        """Whether each row of the log is valid, apart from its time."""
        self._has_doubled = False
        """Whether there are duplicate events; the relation `once` has each of them once."""

    def run(self) -> None:
        """Run all queries."""
        self.clean()
        self.base()
        self._progress("applying lifetimes")
        self.lifetimes()
        self.tables()

    def clean(self) -> None:
        """Read the rows once, and set aside invalid, misdated and duplicate events.

        Most logs are clean and most connections are complete, so only the others are read again.
        """
        log, engine, asked = self._log, self._engine, self._question
        log.view("judged", events.classified("log", **self._bounds))
        query = usage.usage("judged", both_views=False, lifetimes_ms=asked.lifetimes_ms)
        log.keep("seen", query)
        found = engine.rows(usage.by_problem("seen"))
        problems = {row["problem"]: row["events"] for row in found}
        records = {kind: problems.pop(kind, 0) for kind in events.NOT_OF_SESSIONS}
        self._is_valid = problems.keys() <= {None, Problem.FUTURE, Problem.OUTSIDE}
        self.rows["ahead"] = [row for row in found if row["problem"] == Problem.FUTURE]
        self.lines = {"lines": sum(problems.values())}
        self.lines |= {each.value: problems.get(each.value, 0) for each in Problem}
        self._set_aside_misdated()
        self._gather("seen_usage", "seen_connections")
        self._mend()
        decisions = records[EventKind.PROMOTED] + records[EventKind.DEMOTED]
        self._totals |= {"uses": records[EventKind.USED], "decisions": decisions}

    def _valid(self, rows: str) -> str:
        """Return the query for the valid rows of the log."""
        if self._is_valid:
            valid = events.within_bounds(rows, **self._bounds)
            return f"SELECT * FROM ({valid}) AS valid WHERE {self._dated}"
        judged = events.classified(rows, **self._bounds)
        return f"SELECT * FROM ({judged}) AS judged WHERE problem IS NULL AND {self._dated}"

    def _events_of(self, connections: str) -> str:
        """Return the query for valid events of these connections, filtered before validation."""
        query = self._valid(f"({_of('log', connections)}) AS chosen")
        if not self._has_doubled:
            return query
        return f"{_not_of(f'({query})', 'doubled')} UNION ALL {_of('once', connections)}"

    def _set_aside_misdated(self) -> None:
        """Set aside events with implausible dates."""
        engine, days = self._engine, "true"
        engine.view("seen_valid", "SELECT * FROM seen WHERE problem IS NULL")
        stretches = engine.rows(usage.dated("seen_valid"))
        wrong = [row for row in stretches if not row["plausible"]]
        self.lines[Problem.IMPLAUSIBLE.value] = sum(int(row["events"]) for row in wrong)
        self.rows["wrong_clocks"] = wrong[:CLOCKS_NAMED]
        if wrong:
            (bulk,) = (row for row in stretches if row["plausible"])
            plausible = f"BETWEEN {bulk['first_day']} AND {bulk['last_day']}"
            days = f"day {plausible}"
            self._dated = f"{events.day_of('timestamp_ms')} {plausible}"
        engine.view("seen_usage", f"SELECT * FROM seen_valid WHERE {days}")

    def _gather(self, usage_rows: str, name: str) -> dict[str, Any]:
        """Add up usage per connection; return the totals."""
        self._engine.keep(name, usage.by_connection(usage_rows, self._question.since_ms))
        (self._totals,) = self._engine.rows(usage.totals(name))
        return self._totals

    def _mend(self) -> None:
        """Read connections with missing or duplicate events again."""
        log, engine, totals = self._log, self._engine, self._totals
        seen, valid = totals["events"], self._valid("log")
        if totals["suspects"]:
            self._choose("suspects", "SELECT connection_id FROM seen_connections WHERE suspect")
            log.view("suspected", self._events_of("suspects"))
            log.keep("doubled", usage.with_duplicates("suspected"))
            if engine.rows("SELECT 1 AS one FROM doubled LIMIT 1"):
                log.give("doubled")
                log.view("twice", self._events_of("doubled"))
                log.keep("exact", usage.without_duplicates("twice"))
                log.give("exact")
                self._has_doubled = True
                log.view("once", f"SELECT {', '.join(events.FIELDS)}, problem FROM exact")
                valid = f"{_not_of(f'({valid})', 'doubled')} UNION ALL SELECT * FROM once"
        log.view("events", valid)
        if totals["parts"]:
            self._choose("parts", "SELECT connection_id FROM seen_connections WHERE NOT whole")
            log.view("in_parts", self._events_of("parts"))
            log.keep("again", usage.usage("in_parts", both_views=True))
            whole = _not_of("seen_usage", "parts")
            engine.view("usage_rows", f"{whole} UNION ALL BY NAME SELECT * FROM again")
            self._gather("usage_rows", "connections")
        else:
            engine.view("usage_rows", "SELECT * FROM seen_usage")
            engine.view("connections", "SELECT * FROM seen_connections")
        self.lines["duplicate"] = seen - self._totals["events"]
        self.lines["missing"] = self._totals["numbered"] - self._totals["events"]

    def _choose(self, name: str, query: str) -> None:
        """Name a query of connections, and make it available to queries of events."""
        self._engine.view(name, query)
        self._log.give(name)

    def base(self) -> None:
        """Build the relations behind most tables: sessions, and clients with their verdicts."""
        log, engine = self._log, self._engine
        self._identities()
        if self._totals["expiring"]:
            log.keep("uses", self._uses())
        else:
            engine.keep("uses", expired_uses.uses("nothing", "nothing", None))
        engine.keep("use_intervals", expired_uses.intervals("uses"))
        engine.view("outcomes", expired_uses.outcomes("use_intervals"))
        engine.keep("named", sessions.named("identities"))
        if self._totals["throttled"]:
            late = usage.occurred(usage.Occurrence.THROTTLED)
            self._choose("throttled_late", f"SELECT connection_id FROM connections WHERE {late}")
            log.view("throttled_events", self._events_of("throttled_late"))
        self._keep_if("throttled", "throttled", expired_uses.throttled, "throttled_events")
        engine.keep("sessions", sessions.sessions("connections", "named", "outcomes", "throttled"))
        engine.keep("hasty", sessions.hasty("sessions"))
        engine.keep(
            "client_days",
            sessions.client_days("usage_rows", "sessions", "uses", "use_intervals", "hasty"),
        )
        engine.keep("clients", sessions.clients("sessions", "client_days", "hasty"))
        engine.keep("standing", sessions.by_their_clients("sessions", "clients"))
        engine.keep("observed", usage.observed("usage_rows", "sessions"))
        log.keep("authentication_counts", self._authentication_counts())

    def _uses(self) -> str:
        """Return the query for uses of sessions that may have expired."""
        log, since_ms = self._log, self._question.since_ms
        expiring = "SELECT connection_id FROM connections WHERE expiring"
        self._choose("expiring", f"{expiring} AND whole")
        chosen = f"SELECT * FROM ({self._events_of('expiring')}) AS chosen"
        log.view("expiring_events", f"{chosen} WHERE {expired_uses.shows_use()}")
        self._choose("expiring_parts", f"{expiring} AND NOT whole")
        log.view("events_of_expiring_parts", self._events_of("expiring_parts"))
        return expired_uses.uses("expiring_events", "events_of_expiring_parts", since_ms)

    def _identities(self) -> None:
        """Identify each connection by its end, or by its last event if no end is recorded."""
        log, engine = self._log, self._engine
        left_out = bool(self._totals["left_out"])
        log.keep("identities_seen", usage.identities("events", of_clients=left_out))
        engine.view("ended", sessions.ended("connections", "identities_seen"))
        engine.view("going_on", _not_of("connections", "ended"))
        engine.keep("unnamed", "SELECT connection_id, last_sequence FROM going_on")
        log.give("unnamed")
        last, source = sessions.last_events, f"({self._events_of('unnamed')})"
        self._keep_if("unnamed", "last_of_open", lambda rows: last(rows, "unnamed"), source)
        engine.view("identities", "SELECT * FROM ended UNION ALL SELECT * FROM last_of_open")

    def _authentication_counts(self) -> str:
        """Count from events, and use summary rows only for connections with incomplete events."""
        if not self._totals["incomplete"]:
            return authentications.counts("events")
        self._choose("incomplete", "SELECT connection_id FROM connections WHERE incomplete")
        self._log.view("incomplete_events", self._events_of("incomplete"))
        self._log.view("complete_events", _not_of("events", "incomplete"))
        both = authentications.counts_of_both_views("incomplete_events", self._question.since_ms)
        return f"{both} UNION ALL {authentications.counts('complete_events')}"

    def lifetimes(self) -> None:
        """Apply each lifetime to the recorded events of the affected connections."""
        log, engine, lifetimes_ms = self._log, self._engine, self._question.lifetimes_ms
        engine.keep("concerned", what_if.concerned("standing", lifetimes_ms))
        log.give("concerned")
        self._totals |= engine.rows("SELECT count(*) AS concerned FROM concerned")[0]
        source = f"({self._events_of('concerned')})"
        self._keep_if("concerned", "intervals", what_if.intervals, source)
        added = what_if.kills_of_added("standing", lifetimes_ms)
        engine.keep("kills", f"{what_if.kills('intervals', lifetimes_ms)} UNION ALL {added}")
        engine.keep("what_if", what_if.what_if("standing", "kills", "observed", lifetimes_ms))

    def tables(self) -> None:
        """Build the other tables, and keep the rows for the page."""
        keep, members = self._engine.keep, usage.memberships
        keep("principals", sessions.by_principal("clients"))
        keep("regressed", sessions.regressed("clients", "client_days"))
        keep("storms", authentications.storms("authentication_counts"))
        keep("latencies", authentications.latencies("authentication_counts"))
        keep("failures", authentications.failures("authentication_counts"))
        keep("by_day", sessions.by_day("client_days"))
        keep("short_tokens", sessions.short_tokens("clients"))
        keep("session_lengths", sessions.session_lengths("standing"))
        keep("kills_by_client", what_if.kills_by_client("kills", "standing"))
        self._keep_if("denied", "denials", sessions.denials)
        keep("resources", sessions.denied_resources("denials"))
        self._keep_if("with_dropped_versions", "dropped_uses", sessions.dropped_uses)
        keep("dropped_versions", sessions.dropped_versions("dropped_uses"))
        keep("breaks_at_kafka_4", sessions.breaks_at_kafka_4("dropped_uses"))
        self._keep_if("with_groups", "memberships", lambda rows: members(rows, "unnamed"))
        keep("client_groups", sessions.client_groups("memberships", "sessions"))
        keep("groups", sessions.groups("client_groups", "clients"))
        self._rollout()
        self._audit()
        self._first_rows()

    def _rollout(self) -> None:
        """Judge principals by the rules of `reauth.enforcement: auto`, on each day."""
        log, gaps = self._log, "(SELECT * FROM events WHERE false)"
        records = acl_use.records("log", EventKind.PROMOTED, EventKind.DEMOTED, **self._bounds)
        self._keep_if("decisions", "decisions", rollout.decisions, f"({records})")
        log.give("decisions")
        self._choose("late", "SELECT connection_id, number FROM use_intervals WHERE NOT in_time")
        if self._totals["suspects"]:
            gaps = "gaps"
            log.view(gaps, rollout.gaps("suspected"))
        log.keep("resets", rollout.resets("events", gaps, "decisions"))
        log.give("resets")
        log.keep("renewals", rollout.renewals("events", "late", "resets"))
        self._engine.keep("evidence", rollout.evidence("resets", "renewals"))
        self._engine.keep("rollout", rollout.stages("evidence", "decisions", "clients"))

    def _audit(self) -> None:
        """Add up the use of resources, each record once, and compare it with the ACLs."""
        engine, asked = self._engine, self._question
        records = f"({acl_use.records('log', EventKind.USED, **self._bounds)})"
        self._keep_if("uses", "use_doubled", usage.with_duplicates, records)
        if engine.rows("FROM use_doubled LIMIT 1"):
            records = f"({usage.without_duplicates(records)})"
        self._keep_if("uses", "used_by_day", acl_use.by_day, records)
        for name, query in acl_use.queries(asked.acls, asked.users).items():
            engine.keep(name, query)

    def _keep_if(
        self, total: str, name: str, query: Callable[[str], str], source: str = "events"
    ) -> None:
        """Run a query of events only if `total` is not 0; otherwise its result is empty."""
        if self._totals[total]:
            self._log.keep(name, query(source))
        else:
            self._engine.keep(name, query("nothing"))

    def _first_rows(self) -> None:
        """Keep the rows for the page."""
        rank = sessions.rank()
        key = ", ".join(f"{name} NULLS FIRST" for name in usage.CLIENT_KEY)
        worst_first = f"ORDER BY principal IS NULL, {rank}, {key}"
        # names are user input: hexadecimal digits need no quoting
        names = [name.encode(errors="replace").hex().upper() for name in self._question.principals]
        queries = {
            "clients": f"SELECT *, {CLIENT_HASH} AS client_key FROM clients {worst_first}",
            "timelines": f"""SELECT {CLIENT_HASH} AS client_key,
                list((d.day, d.state) ORDER BY d.day DESC)[:{TIMELINE_DAYS}] AS days
                FROM client_days AS d
                SEMI JOIN (FROM clients {worst_first} LIMIT {min(CLIENTS_SHOWN, MAX_ROWS)}) AS c
                ON {sessions.same_client("d", "c")} GROUP BY ALL""",
            "regressed": f"FROM regressed ORDER BY ready_until DESC, {key}",
            "regressed_count": "SELECT count(*) AS clients FROM regressed",
            "upgrades": sessions.breaking_software("clients"),
            "clients_by_verdict": f"""SELECT verdict, count(*) AS clients,
                count(principal) AS logged_in, {events.total("connections")} AS connections
                FROM clients GROUP BY verdict""",
            "observed": "FROM observed",
            "principals": f"FROM principals ORDER BY {rank}, principal",
            "enforceable": """SELECT principal, listeners FROM principals WHERE enforceable
                ORDER BY principal""",
            "principals_by_verdict": """SELECT verdict, count(*) AS principals FROM principals
                GROUP BY verdict""",
            "groups": f"FROM groups ORDER BY {rank}, principal",
            "group_count": "SELECT count(*) AS groups FROM groups",
            "asked_for": f"""SELECT principal, clients, ready, enforceable
                FROM (FROM principals UNION ALL BY NAME FROM groups)
                WHERE list_contains([{words(names)}], hex(principal))""",
            # by place, so that one principal's many denials do not displace the others'
            "denied_resources": "FROM resources ORDER BY place, principal",
            "denied_count": "SELECT count(*) AS resources FROM resources",
            "breaks_at_kafka_4": f"FROM breaks_at_kafka_4 ORDER BY connections DESC, {key}",
            "breaks_at_kafka_4_count": "SELECT count(*) AS clients FROM breaks_at_kafka_4",
            "what_if": "FROM what_if ORDER BY lifetime_ms",
            "latencies": "FROM latencies ORDER BY mechanism NULLS FIRST, kind",
            "by_day": "FROM by_day ORDER BY day",
            "short_tokens": f"FROM short_tokens ORDER BY outlived_ms DESC NULLS LAST, {key}",
            "session_lengths": "FROM session_lengths ORDER BY up_to_ms, standing",
            "failures": """FROM failures ORDER BY count DESC, mechanism NULLS FIRST,
                failure_reason NULLS FIRST, reauthentication""",
            "funnel": rollout.funnel("rollout"),
            "rollout": """SELECT * EXCLUDE (day) FROM rollout
                WHERE day = (SELECT max(day) FROM rollout) ORDER BY clients, principal""",
            "needed_acls": "FROM needed_acls ORDER BY ALL",
            "unused_acls": "FROM acl_use WHERE requests = 0 ORDER BY ALL",
            "wider_acls": "FROM acl_use WHERE is_wider ORDER BY ALL",
            "authorizer_verdicts": "FROM authorizer_verdicts ORDER BY verdict, principal",
            "unseen_principals": "FROM unseen_principals ORDER BY principal",
            "storm_profile": authentications.storm_profile("storms"),
            "storms": """FROM storms ORDER BY authentications DESC, minute_ms,
                mechanism NULLS FIRST""",
        }
        for name, query in queries.items():
            most = BUSIEST if name == "storms" else MAX_ROWS
            self.rows[name] = self._engine.rows(f"{query} LIMIT {most}")


def _of(rows: str, connections: str) -> str:
    """Return the query for the rows of these connections."""
    return f"""SELECT r.* FROM {rows} AS r SEMI JOIN {connections} AS n
        ON r.connection_id = n.connection_id"""


def _not_of(rows: str, connections: str) -> str:
    """Return the query for the rows of all other connections."""
    return f"""SELECT r.* FROM {rows} AS r ANTI JOIN {connections} AS n
        ON r.connection_id = n.connection_id"""
