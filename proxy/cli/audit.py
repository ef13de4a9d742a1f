"""Commands `reauth-proxy audit`: is the event log whole and unchanged?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import Exit, fail, note
from proxy.cli.listing import Listing, Output, OutputOption, print_document, print_list

if TYPE_CHECKING:
    from metrics.integrity import Finding, Verification

app = typer.Typer(
    help="Check the event log.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def audit() -> None:
    """Check the event log."""


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
