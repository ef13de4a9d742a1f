"""Commands `reauth-proxy events`: list and deliver the event log, and show what waits."""

import logging
import shlex
import signal
import time
from contextlib import suppress
from functools import partial
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
    group,
    loaded_config,
    note,
    option,
    principal_name,
    require_extra,
    say,
    takes_groups,
)
from proxy.cli.listing import Output, OutputOption, print_list
from proxy.cli.why import EventFilter, EventLog, print_events
from proxy.errors import ProxyError

if TYPE_CHECKING:
    from metrics.delivery.selection import Target


PARTITIONS: Final = 6
"""Default number of partitions."""
RETENTION_MS: Final = 30 * 86_400_000
"""Default retention in milliseconds, 30 days: the report's trend is over 28."""

topic_app = group("Create the topic of the session events.")


@topic_app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)],
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    partitions: Annotated[
        int, option("N", "Number of partitions.", min=1, max=100_000)
    ] = PARTITIONS,
    replication_factor: Annotated[
        int, option("N", "Replicas of each; -1 for the default of the brokers.", min=-1, max=10_000)
    ] = -1,
    retention_ms: Annotated[
        int, option("MS", "Retention of events; -1 keeps them forever.", min=-1)
    ] = RETENTION_MS,
    writer: Annotated[
        str, option("PRINCIPAL", "The proxies, for the printed command.")
    ] = "User:PROXY",
    reader: Annotated[
        str, option("PRINCIPAL", "The report, for the printed command.")
    ] = "User:REPORT",
) -> None:
    """Create the topic, and print the commands that give the rights to write and to read it."""
    if replication_factor == 0:
        raise typer.BadParameter("--replication-factor: must be -1, or at least 1")
    from metrics.delivery.selection import parse_target
    from proxy.delivery.kafka_settings import of_options

    try:
        parse_target(f"kafka:{topic}")
    except ValueError as error:
        raise fail(str(error), Exit.USAGE) from None
    require_extra("kafka")
    from proxy.delivery.topic_admin import create_topic

    with explained(command_config):
        settings = of_options(bootstrap_server, command_config)
    try:
        create_topic(
            topic,
            settings,
            partitions=partitions,
            replication_factor=replication_factor,
            retention_ms=retention_ms,
        )
    except ProxyError as error:
        raise fail(f"kafka:{topic}: {error}", Exit.REFUSED) from None
    note(f"kafka:{topic} is created; these commands give the proxies and the report their rights:")
    for principal, operation in ((writer, "Write"), (reader, "Read")):
        words = ["kafka-acls.sh", "--bootstrap-server", settings["bootstrap.servers"]]
        if command_config is not None:
            words += ["--command-config", str(command_config)]
        words += ["--add", f"--allow-principal={principal_name(principal)}"]
        say(shlex.join([*words, f"--operation={operation}", f"--topic={topic}"]))


DRAIN_SECONDS: Final = 10.0
"""Seconds after SIGTERM in which the remaining events are delivered."""

app = group("Deliver the session events, and show the backlog.")
app.add_typer(topic_app, name="topic")


@app.command()
def deliver(
    folder: Annotated[Path, option("DIR", "Folder of event files.", "--events")],
    to: Annotated[str, option("TARGET", "kafka:TOPIC.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep delivering new events until SIGTERM.")
    ] = False,
    kinds: Annotated[str, option("KINDS", "all, or summary: the summary rows alone.")] = "all",
    hide: Annotated[
        list[str] | None,
        option("FIELD", "A field whose values are left out, as client_host; repeatable."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Deliver a folder's events: each at least once, from where the last run ended.

    Exit status 0: all are delivered; 1: some are left; 2: an error.
    """
    from metrics.delivery.selection import HIDEABLE, Kinds, Selection
    from metrics.event_files import recover_orphans
    from proxy.delivery.kafka_settings import of_options
    from proxy.delivery.loop import End, opened
    from proxy.delivery.topic import TopicSink

    target = _target(to)
    require_extra("kafka")
    if kinds not in list(Kinds):
        raise fail(f"--kinds: must be {' or '.join(Kinds)}", Exit.USAGE)
    hidden = frozenset(hide or [])
    if not hidden <= set(HIDEABLE):
        raise fail(f"--hide: must be of {', '.join(HIDEABLE)}", Exit.USAGE)
    selection = Selection(kinds=Kinds(kinds), hide=hidden)
    end = End(DRAIN_SECONDS)
    with explained(command_config):
        settings = partial(of_options, bootstrap_server, command_config)
        settings()  # so that a mistake in them is an error, and not tried again
    sink = TopicSink(target.topic, settings, end.is_over)
    logging.basicConfig(level=logging.INFO, format="reauth-proxy: %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.ask())
    with explained(), opened(folder, target, sink, selection, end) as loop:
        recover_orphans(folder)
        whole = True
        if follow:
            loop.run()
        else:
            whole = loop.attempt()
        delivered = loop.delivered
        aside = f", {delivered.set_aside} lines set aside" if delivered.set_aside else ""
        say(f"{delivered.events} events delivered{aside}")
        if loop.left or not whole:
            raise fail("not all events were delivered", Exit.REFUSED)


@app.command(name="list")
@takes_groups
def list_(
    *,
    kind: Annotated[
        list[str] | None, option("KIND", "Only this kind, as failed; repeatable.")
    ] = None,
    chosen: EventFilter,
    log: EventLog,
    output: OutputOption = Output.TABLE,
) -> None:
    """List events, one line each, in words.

    Kinds that repeat others, summary, checkpoint and used, are listed only with --kind.
    """
    from metrics.events import EventKind

    if unknown := {*(kind or ())} - {*EventKind}:
        raise typer.BadParameter(f"--kind: {min(unknown)!r} is not one of {', '.join(EventKind)}")
    print_events(chosen.wanted(kinds=frozenset(kind) if kind else None), log, output)


@app.command()
def status(
    config: DefaultConfigOption = None,
    folder: Annotated[
        Path | None, option("DIR", "Instead: a folder of event files, with --to.", "--events")
    ] = None,
    to: Annotated[str | None, option("TARGET", "Where its events are delivered to.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how much waits for delivery, for how long at most, and when the position last changed.

    The position records how much of each file was delivered.
    """
    if (folder is None) != (to is None) or (folder is not None and config is not None):
        raise typer.BadParameter("give --config, or --events and --to")
    if folder is None or to is None:
        folder, target = _configured(config)
    else:
        target = _target(to)
    try:
        found = _status(folder, target)
    except OSError as error:
        raise fail(f"{folder} cannot be read: {error.strerror}", Exit.REFUSED) from None
    from proxy.ops.status.text import ago, size

    now_ms = time.time_ns() // 1_000_000
    oldest, delivered = found["oldest_waiting_ms"], found["delivered_ms"]
    print_list(
        [found],
        output,
        items="deliveries",
        columns={
            "Target": itemgetter("target"),
            "Waiting": lambda one: size(one["waiting_bytes"]),
            "Oldest": lambda _: "-" if oldest is None else f"up to {ago(oldest, now_ms)}",
            "Delivered": lambda _: "never" if delivered is None else ago(delivered, now_ms),
            "Folder": itemgetter("folder"),
        },
        document=dict,
        name=itemgetter("target"),
        wide=("Folder",),
    )


def _target(to: str) -> "Target":
    """Return the target that --to names. Raises Exit."""
    from metrics.delivery.selection import parse_target

    try:
        return parse_target(to)
    except ValueError as error:
        raise fail(f"--to: {error}", Exit.USAGE) from None


def _configured(config: Path | None) -> "tuple[Path, Target]":
    """Return the folder and the target of a configuration. Raises BadParameter and Exit."""
    events = loaded_config(config, "--config or --events").events
    folder, target = events.directory, events.deliver.to
    if folder is None or target is None:
        file, problem = config or config_by_default(), "events.deliver.to is not set"
        raise fail(f"{file}: {problem}: nothing is delivered", Exit.REFUSED)
    return folder, target


def _status(folder: Path, target: "Target") -> dict[str, Any]:
    """Return the status of the delivery of a folder, and change nothing in it. Raises OSError.

    Times are epoch ms: `oldest_waiting_ms` is when the file of the oldest waiting event was begun
    or last changed, None if none waits; `delivered_ms` is when the position of the delivery last
    changed, None if nothing was delivered to the target.
    """
    from metrics.delivery.deliverer import waiting_in
    from metrics.delivery.position import NAME, Position
    from metrics.delivery.spool import Spool

    spool = Spool(folder)
    try:
        position = Position.load(spool.fd, str(target))
        waiting = waiting_in(spool.files(), position)
    finally:
        spool.close()
    delivered_ms = None
    if position.is_saved and position.names():
        with suppress(FileNotFoundError):
            delivered_ms = round((folder / NAME).lstat().st_mtime * 1000)
    return {
        "folder": str(folder),
        "target": str(target),
        "waiting_bytes": waiting.bytes,
        "oldest_waiting_ms": None if waiting.since is None else round(waiting.since * 1000),
        "delivered_ms": delivered_ms,
    }
