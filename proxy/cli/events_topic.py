"""Commands `reauth-proxy events topic`: make the topic of the events, and look at it."""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.common import Exit, explained, fail, note, principal_name, say
from proxy.cli.listing import Listing, Output, OutputOption, print_document, print_list
from proxy.errors import ProxyError

if TYPE_CHECKING:
    from proxy.delivery.topic import Settings
    from proxy.delivery.topic_admin import PartitionStatus, TopicAdmin

PARTITIONS: Final = 6
"""Default number of partitions."""
RETENTION_MS: Final = 30 * 86_400_000
"""Default retention in milliseconds, 30 days: the report's trend is over 28."""

app = typer.Typer(
    help="Make the topic of the session events, and look at it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)]
_BootstrapServer = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Brokers to begin with.")
]
_CommandConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Properties of a Kafka client.")
]


@app.callback()
def topic() -> None:
    """Make the topic of the session events, and look at it."""


@app.command()
def create(
    topic: _Topic,
    bootstrap_server: _BootstrapServer = None,
    command_config: _CommandConfig = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Number of partitions.")
    ] = PARTITIONS,
    replication_factor: Annotated[
        int,
        typer.Option(
            min=-1, max=10_000, metavar="N", help="Replicas of each; -1: as the brokers say."
        ),
    ] = -1,
    retention_ms: Annotated[
        int, typer.Option(min=-1, metavar="MS", help="Time for which events are kept; -1: ever.")
    ] = RETENTION_MS,
    writer: Annotated[
        str, typer.Option(metavar="PRINCIPAL", help="The proxies, for the printed command.")
    ] = "User:PROXY",
    reader: Annotated[
        str, typer.Option(metavar="PRINCIPAL", help="The report, for the printed command.")
    ] = "User:REPORT",
) -> None:
    """Create the topic, and print the commands that give the rights to write and to read it."""
    if replication_factor == 0:
        raise typer.BadParameter("--replication-factor: must be -1, or at least 1")
    with explained(command_config):
        settings = _settings(topic, bootstrap_server, command_config)
        admin = _admin(topic, settings)
    with _about(topic):
        admin.create(partitions, replication_factor, retention_ms)
    note(f"kafka:{topic} is made; these give the proxies, and the report, their rights:")
    for principal, operation in ((writer, "Write"), (reader, "Read")):
        words = ["kafka-acls.sh", "--bootstrap-server", settings["bootstrap.servers"]]
        if command_config is not None:
            words += ["--command-config", str(command_config)]
        words += ["--add", f"--allow-principal={principal_name(principal)}"]
        say(shlex.join([*words, f"--operation={operation}", f"--topic={topic}"]))


@app.command()
def status(
    topic: _Topic,
    bootstrap_server: _BootstrapServer = None,
    command_config: _CommandConfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the topic's partitions: leader, replicas in sync, messages, age of the newest."""
    with explained(command_config):
        settings = _settings(topic, bootstrap_server, command_config)
        admin = _admin(topic, settings)
    with _about(topic):
        found = admin.status()
    if output in (Output.JSON, Output.YAML):
        print_document(asdict(found), output)
        return
    print_list(_listing(time.time_ns() // 1_000_000), found.partitions, output)
    note(_kept(found.retention_ms))


def _settings(topic: str, servers: str | None, command_config: Path | None) -> "Settings":
    """Return librdkafka's settings. Raises ProxyError and Exit."""
    from metrics.delivery.target import missing_library, parse_target
    from proxy.delivery.kafka_settings import of_options

    try:
        parse_target(f"kafka:{topic}")
    except ValueError as error:
        raise fail(str(error), Exit.USAGE) from None
    if (problem := missing_library()) is not None:
        raise fail(problem, Exit.USAGE)
    return of_options(servers, command_config)


def _admin(topic: str, settings: "Settings") -> "TopicAdmin":
    """Return the AdminClient. Raises ProxyError."""
    from proxy.delivery.topic_admin import TopicAdmin

    return TopicAdmin(topic, settings)


@contextmanager
def _about(topic: str) -> Iterator[None]:
    """Name the topic in errors."""
    try:
        yield
    except ProxyError as error:
        raise fail(f"kafka:{topic}: {error}", Exit.REFUSED) from None


def _kept(retention_ms: int | None) -> str:
    from proxy.ops.status.text import duration

    if retention_ms is None:
        return "how long events are kept is not known: that takes DESCRIBE_CONFIGS on the topic"
    if retention_ms < 0:
        return "events are kept for ever"
    return f"events are kept for {duration(retention_ms / 1000)}"


def _listing(now_ms: int) -> "Listing[PartitionStatus]":
    from proxy.ops.status.text import ago, number

    def cells(one: "PartitionStatus") -> Sequence[str]:
        return (
            str(one.partition),
            "none" if one.leader is None else str(one.leader),
            f"{one.in_sync} of {one.replicas}",
            "-" if one.first is None or one.end is None else number(one.end - one.first),
            "-" if one.newest_ms is None else ago(one.newest_ms, now_ms),
            "-" if one.first is None else str(one.first),
            "-" if one.end is None else str(one.end),
        )

    return Listing(
        items="partitions",
        headings=("Partition", "Leader", "In sync", "Messages", "Newest", "First", "End"),
        lines=lambda one: [cells(one)],
        document=asdict,
        name=lambda one: str(one.partition),
        wide=("First", "End"),
    )
