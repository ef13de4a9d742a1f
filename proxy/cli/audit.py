"""Commands `reauth-proxy audit`: is the event log whole and unchanged, and who used what?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import (
    Exit,
    fail,
    note,
    principal_name,
    takes_groups,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_document, print_list
from proxy.cli.why import EventLog

if TYPE_CHECKING:
    from metrics.integrity import Finding, Verification
    from metrics.usage import Amount, Use
    from metrics.usage_reader import Uses

app = typer.Typer(
    help="Check the event log, and show who used what.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def audit() -> None:
    """Check the event log, and show who used what."""


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
        print_list(_LISTING, found.findings, output)
    note(_summary(found))
    if found.findings:
        raise typer.Exit(Exit.REFUSED)


def _cells(one: "Finding") -> tuple[str, ...]:
    return one.file, "-" if one.line is None else str(one.line), one.problem


_LISTING: "Listing[Finding]" = Listing(
    items="problems",
    headings=("File", "Line", "Problem"),
    lines=lambda one: [_cells(one)],
    document=asdict,
    name=lambda one: one.file,
)


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
        str, typer.Option(metavar="TYPE", help="Another type: group, transactional_id, cluster.")
    ] = "topic",
    log: EventLog,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who used TOPIC, or another resource of this name, the most recent use first."""
    from metrics.usage_reader import read

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
    from metrics.usage_reader import read

    name = principal_name(principal)
    with log.lines() as lines:
        print_uses(read(lines, lambda use: use.principal == name), output)


def print_uses(found: "Uses", output: Output) -> None:
    """Print uses, and on stderr what is missing."""
    import time

    from proxy.ops.status.text import ago, number, size

    now_ms = time.time_ns() // 1_000_000

    def cells(row: "tuple[Use, Amount]") -> tuple[str, ...]:
        use, amount = row
        return (
            use.principal,
            use.operation,
            f"{use.resource_type} {use.name}",
            use.client_id or "-",
            use.host,
            number(amount.count),
            size(amount.bytes),
            ago(amount.first_ms, now_ms),
            ago(amount.last_ms, now_ms),
        )

    listing: Listing[tuple[Use, Amount]] = Listing(
        items="uses",
        headings=(
            "Principal",
            "Operation",
            "Resource",
            "Client id",
            "Host",
            "Requests",
            "Size",
            "First",
            "Last",
        ),
        lines=lambda row: [cells(row)],
        document=lambda row: row[0]._asdict() | asdict(row[1]),
        name=lambda row: row[0].principal,
        wide=("First",),
        left_out=("Size", "Host", "Client id"),
    )
    print_list(listing, [*found.rows.items()], output)
    if found.missing.count:
        note(f"{found.missing.count} more uses are counted without principal and resource")
    if found.unread:
        note(f"{found.unread} records cannot be read, or are of a newer version")
