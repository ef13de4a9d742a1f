"""Command `reauth-proxy why`: the ends of a client's connections, each with its cause in words."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from proxy.cli.common import (
    BootstrapServer,
    CommandConfig,
    DefaultConfigOption,
    Exit,
    config_by_default,
    explained,
    fail,
    loaded_config,
    note,
    option,
    principal_name,
    require_extra,
    takes_groups,
)
from proxy.cli.listing import Output, OutputOption, print_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metrics.event_reader import Wanted

_Row = dict[str, Any]
_OF_FAILURE: Final = ("words", "principal", "claimed_principal", "client_id", "client_host")
"""Fields of equal failures of logins."""

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """Options that name an event log."""

    events: Annotated[
        str | None,
        option(
            "PATH",
            "A folder of event files, a file, or kafka:TOPIC; by default the configuration's"
            " events.directory.",
        ),
    ] = None
    config: DefaultConfigOption = None
    bootstrap_server: BootstrapServer = None
    command_config: CommandConfig = None

    @contextmanager
    def lines(self, since: int | None = None) -> "Iterator[Iterable[bytes]]":
        """Yield the lines of the log since a time, epoch ms. Raises BadParameter and Exit."""
        from metrics.event_reader import lines_of_files
        from metrics.readiness.errors import ReportError

        given = self.events
        topic = given.removeprefix("kafka:") if given and given.startswith("kafka:") else None
        try:
            if topic is None:
                yield lines_of_files(self._folder(), since)
                return
            from proxy.delivery.kafka_settings import of_options

            with explained(self.command_config):
                settings = of_options(self.bootstrap_server, self.command_config)
            require_extra("kafka", "a topic")
            from metrics.readiness.topic import TopicReader

            with closing(TopicReader(topic, settings)) as reader:
                batches = reader.read({}, since)
                yield (line for batch in batches for line in batch.splitlines(keepends=True))
        except OSError as error:
            raise fail(f"{error.filename} cannot be read: {error.strerror}", Exit.USAGE) from None
        except ReportError as error:
            raise fail(str(error), Exit.USAGE) from None

    def _folder(self) -> Path:
        if self.events is not None:
            return Path(self.events)
        folder = loaded_config(self.config, "--events or --config").events.directory
        if folder is None:
            file = self.config or config_by_default()
            problem = "events.directory is not set: nothing is recorded"
            raise fail(f"{file}: {problem}", Exit.REFUSED)
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Options that select events."""

    client_id: Annotated[str | None, option("ID", "Only this client id.", show_default=False)] = (
        None
    )
    principal: Annotated[
        str | None, option("PRINCIPAL", "Only this principal, authenticated or claimed.")
    ] = None
    since: Annotated[str, option("TIME", "90s, 15m or 4h ago, or a time (UTC).")] = "1h"

    def wanted(self, *, kinds: frozenset[str] | None = None, endings: bool = False) -> "Wanted":
        """Return the selection; see `Wanted`. Raises BadParameter."""
        from metrics.event_reader import Wanted

        return Wanted(
            client_id=self.client_id,
            principal=None if self.principal is None else principal_name(self.principal),
            kinds=kinds,
            since_ms=since_ms(self.since),
            endings=endings,
        )


@app.command()
@takes_groups
def why(*, chosen: EventFilter, log: EventLog, output: OutputOption = Output.TABLE) -> None:
    """Show why the connections of a client ended, and what would have kept it connected.

    Equal failures of logins are one line, at the time of the last.
    """
    if chosen.client_id is None and chosen.principal is None:
        raise typer.BadParameter("give --client-id or --principal")
    print_events(chosen.wanted(endings=True), log, output, joined=True)


def since_ms(text: str) -> int:
    """Return the time that an option means, epoch ms. Raises BadParameter."""
    from metrics.readiness.job import time_ms
    from metrics.report.requirements import duration_ms

    with suppress(ValueError):
        return time.time_ns() // 1_000_000 - duration_ms(text)
    with suppress(ValueError):
        return time_ms(text)
    raise typer.BadParameter(f"--since: {text!r} is not 90s, 4h or a time")


def _joined(rows: "Iterable[_Row]") -> "list[_Row]":
    """Return the last of equal failures of logins, with their number and first time."""
    from metrics.report.formats import number
    from proxy.ops.status.text import moment

    found: dict[object, _Row] = {}
    for at, row in enumerate(rows):
        key = tuple(map(row.get, _OF_FAILURE)) if row["kind"] == "failed" else at
        first = found.pop(key, {"first_ms": row["timestamp_ms"], "times": 0})
        found[key] = row | {"first_ms": first["first_ms"], "times": first["times"] + 1}
    for row in found.values():
        if row["times"] > 1:
            row["words"] += f", {number(row['times'])} times since {moment(row['first_ms'])}"
    return [*found.values()]


def print_events(wanted: "Wanted", log: EventLog, output: Output, *, joined: bool = False) -> None:
    """Print the events in words; `joined`: equal failures of logins as one. Raises BadParameter and
    Exit."""
    from metrics.event_reader import MAX_EVENTS, select
    from metrics.event_words import advice, in_words
    from proxy.ops.status.text import moment

    with log.lines(wanted.since_ms) as lines:
        found = select(lines, wanted)
    rows = [one | {"words": in_words(one), "would_help": advice(one)} for one in found.events]

    print_list(
        _joined(rows) if joined else rows,
        output,
        items="events",
        columns={
            "Time": lambda event: moment(event["timestamp_ms"]),
            "Principal": lambda event: (
                event.get("principal") or event.get("claimed_principal") or "-"
            ),
            "Client id": lambda event: event.get("client_id") or "-",
            "Host": lambda event: event.get("client_host") or "-",
            "Event": itemgetter("words"),
            "Would help": lambda event: event["would_help"] or "-",
        },
        document=dict,
        name=lambda event: str(event.get("connection_id", "-")),
        wide=("Would help",),
        left_out=("Host",),
    )
    if output is Output.TABLE:
        for one in dict.fromkeys(row["would_help"] for row in rows if row["would_help"]):
            note(f"would help: {one}")
    if found.more:
        note(f"only the latest {MAX_EVENTS} are listed, {found.more} are left out")
    if found.unread:
        note(f"{found.unread} lines are not events of this schema")
