"""Tables of the report from event rows: all queries, in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrics.readiness import (
    authentications,
    events,
    expired_uses,
    sessions,
    trends,
    usage,
    what_if,
)
from metrics.readiness.engine import Engine, Events, Row, words
from metrics.readiness.events import Problem
from metrics.readiness.published import TABLES, comments, published

MAX_ROWS = 5_000
"""Maximum number of clients, and of principals, on the page; the tables have all of them."""

BUSIEST = 20
"""Maximum number of minutes that are listed as storms."""

CLOCKS_NAMED = 5
"""Maximum number of implausible stretches of time that the report lists."""

Progress = Callable[[str], None]


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


class Analysis:
    """One report's relations, derived from the relation `log` with the fields of the event log.

    The results for the page are in `rows`, and the counts of lines in `lines`.
    """

    def __init__(
        self,
        log: Events,
        engine: Engine,
        question: Question,
        progress: Progress,
        tables: str | None = None,
        run_id: str = "",
    ) -> None:
        """Run queries of events on `log`, and queries of their results on `engine`.

        `tables`: the folder or address below which the tables of the run `run_id` are published;
        None: they are not published.
        """
        self.rows: dict[str, list[Row]] = {}
        self.lines: dict[str, int] = {}
        self.files_aside: Mapping[Path, str] = {}
        """Files that were not read, with the reasons."""
        self._log = log
        self._engine = engine
        self._question = question
        self._tables = tables
        self._run_id = run_id
        self._progress = progress
        self._dated = "true"
        """SQL condition for events with a plausible date."""
        self._has_doubled = False
        """Whether there are duplicate events; the relation `once` has each of them once."""

    def run(self) -> None:
        """Run all queries."""
        self.clean()
        self.base()
        self._progress("applying lifetimes")
        self.lifetimes()
        self._progress("writing tables")
        self.tables()

    def clean(self) -> None:
        """Read the rows once, and set aside invalid, misdated and duplicate events.

        Most logs are clean and most connections are complete, so only the others are read again.
        """
        log, engine, asked = self._log, self._engine, self._question
        log.view("judged", self._judged("log"))
        shortest_ms = min(asked.lifetimes_ms) - 1
        log.keep("seen", usage.usage("judged", both_views=False, shortest_ms=shortest_ms))
        found = engine.rows(usage.by_problem("seen"))
        problems = {row["problem"]: row["events"] for row in found}
        self.rows["ahead"] = [row for row in found if row["problem"] == Problem.FUTURE]
        self.lines = {"lines": sum(problems.values())}
        self.lines |= {each.value: problems.get(each.value, 0) for each in Problem}
        self._dated = self._plausible()
        self._gather("seen_usage", "seen_connections")
        self._mend()

    def _judged(self, rows: str) -> str:
        """Return the query that classifies rows of the log as valid or not."""
        asked = self._question
        return events.within(
            f"({events.classified(rows)}) AS classified",
            as_of_ms=asked.as_of_ms,
            since_ms=asked.since_ms,
            until_ms=asked.until_ms,
        )

    def _valid(self, rows: str) -> str:
        """Return the query for the valid rows of the log."""
        judged = self._judged(rows)
        return f"SELECT * FROM ({judged}) AS judged WHERE problem IS NULL AND {self._dated}"

    def _events_of(self, connections: str) -> str:
        """Return the query for valid events of these connections, filtered before validation."""
        query = self._valid(f"({_of('log', connections)}) AS chosen")
        if not self._has_doubled:
            return query
        return f"{_not_of(f'({query})', 'doubled')} UNION ALL {_of('once', connections)}"

    def _plausible(self) -> str:
        """Set aside events with implausible dates; return the SQL condition for the rest."""
        engine = self._engine
        engine.view("seen_valid", "SELECT * FROM seen WHERE problem IS NULL")
        stretches = engine.rows(trends.dated("seen_valid"))
        wrong = [row for row in stretches if not row["plausible"]]
        self.lines[Problem.IMPLAUSIBLE.value] = sum(int(row["events"]) for row in wrong)
        self.rows["wrong_clocks"] = wrong[:CLOCKS_NAMED]
        if not wrong:
            engine.view("seen_usage", "SELECT * FROM seen_valid")
            return "true"
        (bulk,) = (row for row in stretches if row["plausible"])
        days = f"day BETWEEN {bulk['first_day']} AND {bulk['last_day']}"
        engine.view("seen_usage", f"SELECT * FROM seen_valid WHERE {days}")
        return trends.plausible(bulk["first_day"], bulk["last_day"])

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
            engine.keep("uses", expired_uses.NONE)
        engine.keep("use_intervals", expired_uses.intervals("uses"))
        engine.view("outcomes", expired_uses.outcomes("use_intervals"))
        engine.keep("named", sessions.named("identities"))
        if self._totals["throttled"]:
            log.keep("throttled", expired_uses.throttled("events"))
        else:
            engine.keep("throttled", expired_uses.NOT_THROTTLED)
        engine.keep("sessions", sessions.sessions("connections", "named", "outcomes", "throttled"))
        engine.keep("hasty", sessions.hasty("sessions"))
        engine.keep(
            "client_days",
            sessions.client_days("usage_rows", "sessions", "uses", "use_intervals", "hasty"),
        )
        engine.keep("clients", sessions.clients("sessions", "client_days", "hasty"))
        engine.keep("standing", sessions.by_their_clients("sessions", "clients"))
        engine.keep("observed", trends.observed("usage_rows", "sessions"))
        log.keep("authentication_counts", self._authentication_counts())

    def _uses(self) -> str:
        """Return the query for uses of sessions that may have expired."""
        log, since_ms = self._log, self._question.since_ms
        expiring = "SELECT connection_id FROM connections WHERE expiring"
        self._choose("expiring", f"{expiring} AND whole")
        chosen = f"SELECT * FROM ({self._events_of('expiring')}) AS chosen"
        log.view("expiring_events", f"{chosen} WHERE {expired_uses.shows_use()}")
        if not self._totals["parts"]:
            return expired_uses.uses("expiring_events", None, since_ms)
        self._choose("expiring_parts", f"{expiring} AND NOT whole")
        log.view("events_of_expiring_parts", self._events_of("expiring_parts"))
        return expired_uses.uses("expiring_events", "events_of_expiring_parts", since_ms)

    def _identities(self) -> None:
        """Identify each connection by its end, or by its last event if no end is recorded."""
        log, engine = self._log, self._engine
        log.keep("identities_seen", usage.identities("events"))
        engine.view("ended", sessions.ended("connections", "identities_seen"))
        engine.view("going_on", _not_of("connections", "ended"))
        engine.keep("unnamed", "SELECT connection_id, last_sequence FROM going_on")
        log.give("unnamed")
        if self._totals["unnamed"]:
            log.keep(
                "last_of_open", sessions.last_events(f"({self._events_of('unnamed')})", "unnamed")
            )
            engine.view("identities", "SELECT * FROM ended UNION ALL SELECT * FROM last_of_open")
        else:
            engine.view("identities", "SELECT * FROM ended")

    def _authentication_counts(self) -> str:
        """Count from events, and use summary rows only for connections with incomplete events."""
        totals, view, since_ms = self._totals, self._log.view, self._question.since_ms
        if not totals["incomplete"]:
            return authentications.counts("events")
        if totals["without_events"] == totals["connections"]:
            return authentications.counts_of_summaries("events", since_ms)
        incomplete = "SELECT connection_id FROM connections WHERE incomplete"
        self._choose("incomplete", incomplete)
        self._choose("without_events", f"{incomplete} AND without_events")
        self._choose("with_some", f"{incomplete} AND NOT without_events")
        view("events_of_none", self._events_of("without_events"))
        view("events_of_some", self._events_of("with_some"))
        view("events_of_all", _not_of("events", "incomplete"))
        counts = [authentications.counts_of_summaries("events_of_none", since_ms)]
        if totals["without_events"] < totals["incomplete"]:
            counts.append(authentications.counts_of_either_view("events_of_some", since_ms))
        if totals["incomplete"] < totals["connections"]:
            counts.append(authentications.counts("events_of_all"))
        return " UNION ALL ".join(counts)

    def lifetimes(self) -> None:
        """Apply each lifetime to the recorded events of the affected connections."""
        log, engine, lifetimes_ms = self._log, self._engine, self._question.lifetimes_ms
        engine.keep("concerned", what_if.concerned("standing", lifetimes_ms))
        # the event after a checkpoint repeats its data, so only the last checkpoint is needed
        wanted = f"""AS r WHERE {what_if.adds_to_intervals()} OR (r.connection_id, r.sequence) IN (
            SELECT connection_id, last_sequence FROM unnamed)"""
        if self._totals["incomplete"]:
            engine.view("listed_connections", "SELECT * FROM connections WHERE incomplete")
            self._choose("listed", _of("concerned", "listed_connections"))
            self._choose("complete", _not_of("concerned", "listed_connections"))
            log.view("partly", self._events_of("listed"))
            log.view("fully", f"SELECT * FROM ({self._events_of('complete')}) {wanted}")
            parts, rest = what_if.intervals("partly"), what_if.intervals_if_complete("fully")
            log.keep("intervals", f"{parts} UNION ALL {rest}")
        else:
            log.give("concerned")
            log.view("fully", f"SELECT * FROM ({self._events_of('concerned')}) {wanted}")
            log.keep("intervals", what_if.intervals_if_complete("fully"))
        engine.keep("kills", what_if.kills("intervals", lifetimes_ms))
        engine.keep("what_if", what_if.what_if("standing", "kills", "observed", lifetimes_ms))

    def tables(self) -> None:
        """Build the other tables, publish all of them, and keep the rows for the page."""
        log, keep = self._log, self._engine.keep
        keep("principals", sessions.principals("clients"))
        keep("regressed", sessions.regressed("clients", "client_days"))
        keep("storms", authentications.storms("authentication_counts"))
        keep("latencies", authentications.latencies("authentication_counts"))
        keep("failures", authentications.failures("authentication_counts"))
        keep("by_day", trends.by_day("client_days"))
        keep("short_tokens", trends.short_tokens("clients"))
        keep("session_lengths", trends.session_lengths("standing"))
        keep("kills_by_client", what_if.kills_by_client("kills", "standing"))
        absent = []
        self.rows |= {"denied_resources": [], "denied_count": [{"resources": 0}]}
        if self._totals["denied"]:
            log.keep("denials", sessions.denials("events"))
            keep("resources", sessions.denied_resources("denials"))
            # by place, so that one principal's many denials do not displace the others'
            self._show("denied_resources", "SELECT * FROM resources ORDER BY place, principal")
            self._show("denied_count", "SELECT count(*) AS resources FROM resources")
        else:
            absent.append("denials")
        self.rows |= {"breaks_at_kafka_4": [], "breaks_at_kafka_4_count": [{"clients": 0}]}
        if self._totals["with_dropped_versions"]:
            log.keep("dropped_uses", sessions.dropped_uses("events"))
            keep("dropped_versions", sessions.dropped_versions("dropped_uses"))
            keep("breaks_at_kafka_4", sessions.breaks_at_kafka_4("dropped_uses"))
            key = ", ".join(f"{name} NULLS FIRST" for name in sessions.CLIENT_KEY)
            order = f"ORDER BY connections DESC, {key}"
            self._show("breaks_at_kafka_4", f"SELECT * FROM breaks_at_kafka_4 {order}")
            count = "SELECT count(*) AS clients FROM breaks_at_kafka_4"
            self._show("breaks_at_kafka_4_count", count)
        else:
            absent.append("dropped_versions")
        if not self._groups():
            absent += ["groups", "client_groups"]
        if self._tables is not None:
            run = self._run_id, self._question.as_of_ms
            for name in TABLES:
                query = published(name, *run, is_empty=name in absent)
                self._engine.write(query, f"{self._tables}/{name}", comments(name))
        self._first_rows()

    def _groups(self) -> bool:
        """Add up clients per group; return False if no client was a member of a group."""
        log, engine = self._log, self._engine
        self.rows |= {"groups": [], "group_count": [{"groups": 0}]}
        if not self._totals["with_groups"]:
            return False
        grouped = usage.occurred(usage.Occurrence.GROUP)
        self._choose("in_groups", f"SELECT connection_id FROM connections WHERE {grouped}")
        log.view("events_in_groups", self._events_of("in_groups"))
        log.keep("memberships", sessions.memberships("events_in_groups"))
        engine.keep("client_groups", sessions.client_groups("memberships", "sessions"))
        engine.keep("members", sessions.members("client_groups", "clients"))
        engine.keep("groups", sessions.groups("members"))
        self._show("groups", f"SELECT * FROM groups ORDER BY {sessions.rank()}, principal")
        self._show("group_count", "SELECT count(*) AS groups FROM groups")
        return True

    def _first_rows(self) -> None:
        rank, show = sessions.rank(), self._show
        key = ", ".join(f"{name} NULLS FIRST" for name in sessions.CLIENT_KEY)
        show("clients", f"SELECT * FROM clients ORDER BY principal IS NULL, {rank}, {key}")
        show("regressed", f"SELECT * FROM regressed ORDER BY ready_until DESC, {key}")
        show("regressed_count", "SELECT count(*) AS clients FROM regressed")
        show("upgrades", sessions.breaking_software("clients"))
        show(
            "clients_by_verdict",
            f"""SELECT verdict, count(*) AS clients, count(principal) AS logged_in,
            {events.total("connections")} AS connections FROM clients GROUP BY verdict""",
        )
        show("observed", "SELECT * FROM observed")
        show("principals", f"SELECT * FROM principals ORDER BY {rank}, principal")
        show(
            "enforceable",
            "SELECT principal, listeners FROM principals WHERE enforceable ORDER BY principal",
        )
        show(
            "principals_by_verdict",
            "SELECT verdict, count(*) AS principals FROM principals GROUP BY verdict",
        )
        # names are user input: hexadecimal digits need no quoting
        names = [name.encode(errors="replace").hex().upper() for name in self._question.principals]
        if names:
            columns = "principal, clients, ready, enforceable"
            named = f"SELECT {columns} FROM principals"
            if self._totals["with_groups"]:
                named = f"{named} UNION ALL SELECT {columns} FROM groups"
            wanted = f"hex(principal) IN ({words(names)})"
            show("asked_for", f"SELECT * FROM ({named}) AS named WHERE {wanted}")
        order = {
            "what_if": "lifetime_ms",
            "latencies": "mechanism NULLS FIRST, kind",
            "by_day": "day",
            "short_tokens": f"outlived_ms DESC NULLS LAST, {key}",
            "session_lengths": "up_to_ms, standing",
            "failures": "count DESC, mechanism NULLS FIRST, failure_reason NULLS FIRST,"
            " reauthentication",
        }
        for name, columns in order.items():
            show(name, f"SELECT * FROM {name} ORDER BY {columns}")
        show("storm_profile", authentications.storm_profile("storms"))
        columns = "authentications DESC, minute_ms, mechanism NULLS FIRST"
        show("storms", f"SELECT * FROM storms ORDER BY {columns}", BUSIEST)

    def _show(self, name: str, query: str, most: int | None = None) -> None:
        self.rows[name] = self._engine.rows(f"{query} LIMIT {most or MAX_ROWS}")


def _of(rows: str, connections: str) -> str:
    """Return the query for the rows of these connections."""
    return f"""SELECT r.* FROM {rows} AS r SEMI JOIN {connections} AS n
        ON r.connection_id = n.connection_id"""


def _not_of(rows: str, connections: str) -> str:
    """Return the query for the rows of all other connections."""
    return f"""SELECT r.* FROM {rows} AS r ANTI JOIN {connections} AS n
        ON r.connection_id = n.connection_id"""
