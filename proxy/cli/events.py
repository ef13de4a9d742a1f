"""Commands `reauth-proxy events`: deliver the event log, and show what waits."""

import logging
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli import events_topic
from proxy.cli.common import (
    CONFIG_HELP,
    CONFIG_VARIABLE,
    Exit,
    config_by_default,
    explained,
    fail,
    say,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_list

if TYPE_CHECKING:
    from metrics.delivery.target import Target

DRAIN_SECONDS: Final = 10.0
"""Seconds after SIGTERM in which what is left is delivered."""

app = typer.Typer(
    help="Deliver the session events, and show what waits.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(events_topic.app, name="topic")


@app.callback()
def events() -> None:
    """Deliver the session events, and show what waits."""


@app.command()
def deliver(
    folder: Annotated[Path, typer.Option("--events", metavar="DIR", help="Folder of event files.")],
    to: Annotated[
        str,
        typer.Option(metavar="TARGET", help="kafka:TOPIC."),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is written later, until SIGTERM.")
    ] = False,
    kinds: Annotated[
        str, typer.Option(metavar="KINDS", help="all, or summary: the summary rows alone.")
    ] = "all",
    hide: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="A field whose values are left out, as client_host; repeatable."
        ),
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Brokers to begin with.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Properties of a Kafka client."),
    ] = None,
) -> None:
    """Deliver a folder's events: each at least once, from where the last run ended.

    Exit status 0: all are delivered; 1: some are left; 2: an error.
    """
    from metrics.delivery.selection import HIDEABLE, Kinds, Selection
    from metrics.delivery.target import missing_library, parse_target
    from metrics.event_files import recover_orphans
    from proxy.delivery.kafka_settings import of_options
    from proxy.delivery.loop import End, opened
    from proxy.delivery.topic import TopicSink

    try:
        target = parse_target(to)
    except ValueError as error:
        raise fail(f"--to: {error}", Exit.USAGE) from None
    if (problem := missing_library()) is not None:
        raise fail(problem, Exit.USAGE)
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
        say(f"{delivered.events} events delivered{_set_aside(delivered.set_aside)}")
        if loop.left or not whole:
            raise fail("not all events were delivered", Exit.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """Status of the delivery of a folder."""

    folder: str
    target: str
    waiting_bytes: int
    """Bytes that are not delivered."""
    oldest_waiting_ms: int | None
    """Time at or after which the oldest of them was written, epoch ms: its file was begun then, or
    last changed; None: none waits."""
    delivered_ms: int | None
    """When the position of the delivery to this target last changed, epoch ms; None: nothing was
    delivered to it."""


@app.command()
def status(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help=f"As the proxy runs with it. {CONFIG_HELP}"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="DIR", help="Instead: a folder of event files, with --to."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TARGET", help="Where its events are delivered to.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what waits for its delivery, since when at most, and when the position last changed.

    The position says how much of each file was delivered.
    """
    from metrics.delivery.target import parse_target

    if (folder is None) != (to is None) or (folder is not None and config is not None):
        raise typer.BadParameter("give --config, or --events and --to")
    if folder is None or to is None:
        folder, target = _configured(config or config_by_default())
    else:
        try:
            target = parse_target(to)
        except ValueError as error:
            raise fail(f"--to: {error}", Exit.USAGE) from None
    try:
        found = _status(folder, target)
    except OSError as error:
        raise fail(f"{folder} cannot be read: {error.strerror}", Exit.REFUSED) from None
    print_list(_listing(time.time_ns() // 1_000_000), [found], output)


def _configured(config: Path | None) -> "tuple[Path, Target]":
    """Return the folder and the target of a configuration. Raises BadParameter and Exit."""
    from proxy.config import load

    if config is None:
        raise typer.BadParameter(f"give --config or --events, or set {CONFIG_VARIABLE}")
    with explained(config):
        settings = load(config)
    folder, target = settings.events.directory, settings.events.deliver.to
    if folder is None or target is None:
        raise fail(f"{config}: events.deliver.to is not set: nothing is delivered", Exit.REFUSED)
    return folder, target


def _status(folder: Path, target: "Target") -> SpoolStatus:
    """Look at a folder, and change nothing in it. Raises OSError."""
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
    return SpoolStatus(
        folder=str(folder),
        target=str(target),
        waiting_bytes=waiting.bytes,
        oldest_waiting_ms=None if waiting.since is None else round(waiting.since * 1000),
        delivered_ms=delivered_ms,
    )


def _listing(now_ms: int) -> Listing[SpoolStatus]:
    from proxy.ops.status.text import ago, size

    def cells(one: SpoolStatus) -> Sequence[str]:
        oldest, delivered = one.oldest_waiting_ms, one.delivered_ms
        return (
            one.target,
            size(one.waiting_bytes),
            "-" if oldest is None else f"up to {ago(oldest, now_ms)}",
            "never" if delivered is None else ago(delivered, now_ms),
            one.folder,
        )

    return Listing(
        items="deliveries",
        headings=("Target", "Waiting", "Oldest", "Delivered", "Folder"),
        lines=lambda one: [cells(one)],
        document=asdict,
        name=lambda one: one.target,
        wide=("Folder",),
    )


def _set_aside(lines: int) -> str:
    return f", {lines} lines set aside" if lines else ""
