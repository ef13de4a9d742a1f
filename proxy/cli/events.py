"""Commands `reauth-proxy events`: deliver the event log."""

import logging
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.cli.common import Exit, explained, fail, say

DRAIN_SECONDS: Final = 10.0
"""Seconds after SIGTERM in which what is left is delivered."""

app = typer.Typer(help="Deliver the session events.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def events() -> None:
    """Deliver the session events."""


@app.command()
def deliver(
    folder: Annotated[Path, typer.Option("--events", metavar="DIR", help="Folder of event files.")],
    to: Annotated[
        str,
        typer.Option(metavar="TARGET", help="kafka:TOPIC, file:///FOLDER or s3a://BUCKET/PREFIX."),
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
        str | None, typer.Option(metavar="HOST:PORT", help="For kafka:TOPIC.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For kafka:TOPIC: properties of a Kafka client."),
    ] = None,
) -> None:
    """Deliver a folder's events: each at least once, from where the last run ended.

    Exit status 0: all are delivered; 1: some are left; 2: an error.
    """
    from metrics.delivery.selection import HIDEABLE, Kinds, Selection
    from metrics.delivery.target import TargetKind, missing_library, parse_target
    from metrics.event_files import recover_orphans
    from proxy.delivery.kafka_settings import of_options
    from proxy.delivery.loop import End, opened
    from proxy.delivery.sinks import open_sink

    try:
        target = parse_target(to)
    except ValueError as error:
        raise fail(f"--to: {error}", Exit.USAGE) from None
    if (problem := missing_library(target)) is not None:
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
        if target.kind is TargetKind.KAFKA:
            settings()  # so that a mistake in them is an error, and not tried again
    sink = open_sink(target, settings, end.is_over)
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


def _set_aside(lines: int) -> str:
    return f", {lines} lines set aside" if lines else ""
