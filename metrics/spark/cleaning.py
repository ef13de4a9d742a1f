"""Cleaning of event rows: duplicates and invalid rows set aside and counted.

Most logs are clean, and most connections whole. That they are is seen in the one pass that is made
anyway (`usage_if_whole`); only what is not so is looked at again. Of summary rows alone nothing is
whole, and that is seen at the first row of any other kind, or at none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind
from metrics.spark import event_rows
from metrics.spark.analysis import IncompleteEvents, Keep
from metrics.spark.usage import is_kind, sequence_totals, sequences, usage, usage_if_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows as read, before cleaning."""

    classified: DataFrame
    counts: Mapping[str, int] | None = None
    """The number of lines, and of those with each problem, if they were counted: then no row has a
    problem. None: they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Valid events and their usage, with which the analysis begins."""

    events: DataFrame
    """The valid events of the past, each once."""
    usage: DataFrame
    incomplete: IncompleteEvents | None
    """The connections whose events are incomplete; None: there is none."""
    connections: int
    open_ms: int | None
    """The earliest last event of any open connection, epoch ms; None: no connection is open."""
    denied: bool
    """True if there is any event of a denial."""
    lines: Mapping[str, int]


def cleaned(rows: Rows, *, as_of_ms: int, keep: Keep) -> Cleaned:
    """Set aside what is not valid, of the future or a duplicate, and count it."""
    past = event_rows.valid_events(rows.classified).where(~event_rows.is_future(as_of_ms))
    only_summaries = rows.classified.where(~is_kind(EventKind.SUMMARY)).isEmpty()
    usage_rows = keep("usage", past.transform(usage if only_summaries else usage_if_whole))
    sequence_rows, totals = _sequences(usage_rows)
    seen = totals["events"]
    counts = dict(rows.counts) if rows.counts is not None else _counted(rows.classified, seen)
    at_reading = sum(counts[problem.value] for problem in event_rows.AT_READING)
    future = counts["lines"] - at_reading - seen
    spotless = future == 0 and (rows.counts is not None or at_reading == 0)
    events = event_rows.bounded(rows.classified) if spotless else past
    anew = None
    if totals["parts"] and not only_summaries:
        anew = keep("parts", sequence_rows.where(~f.col("whole")))
    if totals["suspects"]:
        suspects = (
            events if anew is None else event_rows.of_connections(events, anew.where("suspect"))
        )
        doubled = keep("doubled", suspects.transform(event_rows.with_duplicates))
        # most are suspect because an event is missing
        if not doubled.isEmpty():
            exact = keep("exact", event_rows.without_duplicates(events, doubled))
            events = event_rows.without_connections(events, doubled).unionByName(exact)
            anew = doubled if anew is None else anew
    if anew is not None:
        again = event_rows.of_connections(events, anew).transform(usage)
        usage_rows = keep(
            "all_usage", event_rows.without_connections(usage_rows, anew).unionByName(again)
        )
        sequence_rows, totals = _sequences(usage_rows)
    lines = counts | {
        event_rows.Problem.FUTURE.value: future,
        "duplicate": seen - totals["events"],
        "missing": totals["numbered"] - totals["events"],
    }
    return Cleaned(
        events=events,
        usage=usage_rows,
        incomplete=IncompleteEvents.among(sequence_rows, totals, keep)
        if totals["incomplete"]
        else None,
        connections=totals["connections"],
        open_ms=totals["open_ms"],
        denied=totals["denied"] > 0,
        lines=lines,
    )


def _sequences(usage_rows: DataFrame) -> tuple[DataFrame, Mapping[str, int]]:
    rows = usage_rows.transform(sequences)
    return rows, rows.transform(sequence_totals).collect()[0].asDict()


def _counted(classified: DataFrame, valid: int) -> dict[str, int]:
    """Count the lines, and those with each problem; if all were valid that is known already."""
    lines = classified.count()
    if lines == valid:
        return {"lines": lines} | {problem.value: 0 for problem in event_rows.AT_READING}
    return classified.agg(*event_rows.problem_counts()).collect()[0].asDict()
