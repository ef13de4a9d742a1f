"""Commands `reauth-proxy block`, `unblock` and `blocks`: the list of blocked clients."""

import math
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.cli.common import (
    DefaultConfigOption,
    Exit,
    explained,
    fail,
    loaded_config,
    note,
    operator,
    principal_name,
    printable,
    say,
    takes_groups,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_list
from proxy.cli.sessions import print_sessions, query, refuse_incomplete
from proxy.connection.blocks import BadBlocks, Block, moment
from proxy.ops.status.session_facts import Selector
from sasl.identity import GROUP_TYPE

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Options that a client must all meet to be blocked."""

    principal: Annotated[
        str | None, typer.Option(metavar="NAME", help="As User:alice or alice.")
    ] = None
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Members of a group.")] = None
    jti: Annotated[str | None, typer.Option(metavar="ID", help="The token with this `jti`.")] = None
    issuer: Annotated[str | None, typer.Option(metavar="URL", help="Tokens with this `iss`.")] = (
        None
    )
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Tokens with this `sub`.")] = (
        None
    )
    client_id: Annotated[str | None, typer.Option(metavar="ID", help="Clients with this id.")] = (
        None
    )
    software_name: Annotated[str | None, typer.Option(metavar="NAME", help="By KIP-511.")] = None
    software_version: Annotated[str | None, typer.Option(metavar="TEXT", help="By KIP-511.")] = None
    address: Annotated[str | None, typer.Option(metavar="CIDR", help="Clients of a network.")] = (
        None
    )
    issued_before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Let credentials pass that were issued then or later; ISO 8601, or `now`.",
        ),
    ] = None

    def block(self, now: float) -> Block:
        """Return the entry of these criteria. Raises BadParameter."""
        given = asdict(self)
        if self.principal is not None:
            given["principal"] = principal_name(self.principal)
        if self.group is not None:
            given["group"] = GROUP_TYPE + self.group.removeprefix(GROUP_TYPE)
        # Up, because `iat` is in whole seconds: a token of this second must be blocked
        before = None if self.issued_before is None else math.ceil(_time(self.issued_before, now))
        block = Block(id="new", **given | {"issued_before": before})
        try:
            block.check()
        except BadBlocks as bad:
            raise typer.BadParameter(str(bad).replace("_", "-")) from None
        return block


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFile:
    """Options that name a block list."""

    config: DefaultConfigOption = None
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="A shared list itself (block.file)."),
    ] = None

    def place(self) -> "Place":
        """Return the list's place. Raises BadParameter and Exit."""
        if self.file is not None and self.config is None:
            return Place(self.file.resolve(), None, is_shared=True)
        settings = loaded_config(
            self.config, "one of --config and --file", refused=self.file is not None
        )
        shared = settings.block.file is not None
        return Place(settings.block_file().resolve(), settings.admin_socket(), is_shared=shared)


@dataclass(frozen=True, slots=True)
class Place:
    """File of a block list, and the admin socket of a proxy that reads it."""

    file: Path
    socket: Path | None
    """None if it is not known."""
    is_shared: bool
    """False if one proxy alone reads the file."""

    def change(self, added: Sequence[Block], removed: Sequence[str] = ()) -> int:
        """Change the list, and return its version, which is the id of one added entry. Raises
        Exit."""
        from proxy.store.block_file import change_block_file

        with explained():
            return change_block_file(self.file, lambda _: (added, removed))

    def add(self, entries: Sequence[Block], reason: str, author: str | None = None) -> int:
        """Add entries by an author, by default the user who runs the command; see `change`."""
        by, at = author or _author(), int(time.time())
        return self.change(
            [replace(one, reason=reason, author=by, created_at=at) for one in entries]
        )

    def reach(self) -> str:
        """Return which proxies a change reaches."""
        if self.is_shared:
            return f"every proxy that reads {printable(str(self.file))} applies it"
        return "this proxy alone applies it: other proxies need a shared block.file"


WAIT_S: Final = 30.0
"""Longest wait of `blocks --wait` in seconds."""


@app.command()
@takes_groups
def block(
    *,
    criteria: Criteria,
    place: BlockFile,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for logs and the list.")] = "",
    author: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who; by default you, at this machine.")
    ] = None,
    begins: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Begin then; by default, now.")
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="End then; by default never. Times are ISO 8601, or from now, such as 24h.",
        ),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Keep open sessions for so long, such as 30s, so that a client can return with a"
            " newer credential.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List the sessions of this proxy that would end."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Block clients that meet every given option: sessions end, and logins fail.

    A block that ends with the tokens it is for needs --until; a token's own `exp` is the best one.
    """
    now, target = time.time(), place.place()
    entry = criteria.block(now)
    if dry_run:
        _list_ended(entry, target, output)
        return
    entry = replace(
        entry,
        starts_at=None if begins is None else _time(begins, now),
        ends_at=None if ends is None else _time(ends, now),
        margin_s=0.0 if margin is None else _seconds(margin),
    )
    version = target.add([entry], reason, author)
    say(f"{entry} is blocked, id {version}; {target.reach()}")


@app.command()
@takes_groups
def unblock(
    *,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", hidden=True)],
    place: BlockFile,
) -> None:
    """Remove blocks by their ids."""
    target = place.place()
    target.change([], list(dict.fromkeys(ids)))
    say(f"{', '.join(map(printable, ids))} is removed; {target.reach()}")


@app.command()
@takes_groups
def blocks(
    *,
    place: BlockFile,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="First wait until every proxy has applied the list, for up to 30 s. Exit status 1:"
            " some have not.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List blocks, including those that have ended within a day."""
    from proxy.store.block_file import read_block_file

    target = place.place()
    with explained():
        found = read_block_file(target.file)
    if wait:
        _wait(target.file, found.version)
    listing: Listing[Block] = Listing(
        items="blocks",
        headings=("Id", "Blocked", "Until", "Reason", "Author", "Created"),
        lines=lambda one: [
            (
                one.id,
                str(one),
                "-" if one.ends_at is None else moment(one.ends_at),
                one.reason or "-",
                one.author or "-",
                "-" if one.created_at is None else moment(one.created_at),
            )
        ],
        document=Block.document,
        name=lambda one: one.id,
        wide=("Created",),
        left_out=("Author", "Reason"),
    )  # fmt: skip
    print_list(listing, list(found.entries.values()), output)


def revoke(config: Path | None, entries: Sequence[Block], reason: str) -> None:
    """Block the clients of `entries` with credentials that were issued before now.

    Raises BadParameter and Exit.
    """
    target, before = BlockFile(config=config).place(), math.ceil(time.time())
    revoked = [replace(one, issued_before=before) for one in entries]
    target.add(revoked, reason)
    say(f"{' and '.join(map(str, revoked))} is blocked; {target.reach()}")


def _wait(file: Path, version: int) -> None:
    """Return when all workers that read a list have applied a version. Raises Exit."""
    ends = time.monotonic() + WAIT_S
    while (late := _late(file, version)) != []:
        if time.monotonic() >= ends:
            who = "no proxy reads the list" if late is None else f"silent: {', '.join(late)}"
            raise fail(f"{file}: version {version} is not applied everywhere: {who}", Exit.REFUSED)
        time.sleep(0.2)


def _late(file: Path, version: int) -> list[str] | None:
    """Return the workers that have not applied a version; None if no worker has ever read the list.

    A worker that has been silent for a day does not count.
    """
    from proxy.store.block_file import KEPT_S, heartbeats_of

    since, late, has_any = time.time() - KEPT_S, [], False
    try:
        for one in heartbeats_of(file).iterdir():
            has_any = True
            if int(one.read_text() or -1) < version and one.stat().st_mtime > since:
                late.append(one.name)
    except (OSError, ValueError):  # it is being written or removed
        return late or ["?"] if has_any else None
    return sorted(late) if has_any else None


def _list_ended(entry: Block, target: Place, output: Output) -> None:
    """List the sessions of the running proxy that an entry would end."""
    if target.socket is None:
        raise typer.BadParameter("--dry-run needs --config: it asks the proxy of this machine")
    found, silent = query("sessions", Selector(block=entry.line()), target.socket)
    print_sessions(found, output)
    refuse_incomplete(silent)
    if target.is_shared:
        note("sessions of other proxies are not listed")


def _author() -> str:
    """Return the user who runs the command, at this machine."""
    return f"{os.environ.get('SUDO_USER') or operator()}@{socket.gethostname()}"


def _time(text: str, now: float) -> float:
    """Return the Unix time of an ISO 8601 time, of `now`, or of a time from now. Raises
    BadParameter."""
    if text == "now":
        return now
    with suppress(ValueError):
        given = datetime.fromisoformat(text)
        return (given if given.tzinfo else given.astimezone()).timestamp()
    return now + _seconds(text)


def _seconds(text: str) -> float:
    from metrics.report.requirements import duration_ms

    try:
        return duration_ms(text) / 1000
    except ValueError:
        problem = f"{text!a} is neither an ISO 8601 time nor a time such as 30s, 24h or 7d"
        raise typer.BadParameter(problem) from None
