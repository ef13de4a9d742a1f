"""Commands `reauth-proxy audit`: is the event log whole and unchanged, and who used what?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import Exit, fail, group, note, option, principal_name, takes_groups
from proxy.cli.listing import Output, OutputOption, print_document, print_list
from proxy.cli.why import EventLog

if TYPE_CHECKING:
    from metrics.integrity import Verification
    from metrics.usage import Uses

app = group("Check the event log, and show who used what.")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", hidden=True)],
    output: OutputOption = Output.TABLE,
) -> None:
    """List the places where the event files of PATH, a folder or a file, lack records or were
    changed.

    Exit status 0: none; 1: some; 2: they cannot be read.
    """
    from metrics.integrity import files_of_log, verify

    try:
        found = verify(files_of_log(path))
    except OSError as error:
        raise fail(f"{path} cannot be read: {error.strerror}", Exit.USAGE) from None
    if not found.files:
        raise fail(f"{path} has no event files", Exit.USAGE)
    if not print_document(asdict(found), output) and found.findings:
        print_list(
            found.findings,
            output,
            items="problems",
            columns={
                "File": lambda one: one.file,
                "Line": lambda one: "-" if one.line is None else str(one.line),
                "Problem": lambda one: one.problem,
            },
            document=asdict,
            name=lambda one: one.file,
        )
    note(_summary(found))
    if found.findings:
        raise typer.Exit(Exit.REFUSED)


def _summary(found: "Verification") -> str:
    problems = len(found.findings) + found.unlisted_findings
    parts = [f"{found.records} records in {found.files} files, {problems} problems"]
    if found.unchained_files:
        parts.append(f"{found.unchained_files} files have no chain: a changed record is not seen")
    if found.unnumbered_files:
        parts.append(f"{found.unnumbered_files} have no numbers: a removed record is not seen")
    if found.begun_late:
        parts.append(f"the first records of {found.begun_late} starts of a worker are not there")
    return "; ".join(parts)


@app.command()
@takes_groups
def who(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)],
    resource_type: Annotated[
        str, option("TYPE", "Another type: group, transactional_id, cluster.")
    ] = "topic",
    log: EventLog,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who used TOPIC, or another resource of this name, the most recent use first."""
    from metrics.usage import read

    resource = resource_type.upper(), topic
    with log.lines() as lines:
        print_uses(read(lines, lambda use: (use.resource_type, use.name) == resource), output)


@app.command()
@takes_groups
def what(
    *,
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", hidden=True)],
    log: EventLog,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what PRINCIPAL used, the most recent use first."""
    from metrics.usage import read

    name = principal_name(principal)
    with log.lines() as lines:
        print_uses(read(lines, lambda use: use.principal == name), output)


def print_uses(found: "Uses", output: Output) -> None:
    """Print uses, and on stderr what is missing."""
    import time

    from metrics.report.formats import number
    from proxy.ops.status.text import ago, size

    now_ms = time.time_ns() // 1_000_000

    print_list(
        found.rows.items(),
        output,
        items="uses",
        columns={
            "Principal": lambda row: row[0].principal,
            "Operation": lambda row: row[0].operation,
            "Resource": lambda row: f"{row[0].resource_type} {row[0].name}",
            "Client id": lambda row: row[0].client_id or "-",
            "Host": lambda row: row[0].host,
            "Requests": lambda row: number(row[1].count),
            "Size": lambda row: size(row[1].bytes),
            "First": lambda row: ago(row[1].first_ms, now_ms),
            "Last": lambda row: ago(row[1].last_ms, now_ms),
        },
        document=lambda row: row[0]._asdict() | asdict(row[1]),
        name=lambda row: row[0].principal,
        wide=("First",),
        left_out=("Size", "Host", "Client id"),
    )
    if found.missing.count:
        note(f"{found.missing.count} more uses are counted without principal and resource")
    if found.unread:
        note(f"{found.unread} records cannot be read, or are of a newer version")
