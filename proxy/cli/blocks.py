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
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.common import (
    DefaultConfigOption,
    Exit,
    explained,
    fail,
    loaded_config,
    note,
    operator,
    option,
    principal_name,
    printable,
    say,
    takes_groups,
)
from proxy.cli.listing import Output, OutputOption, print_list
from proxy.cli.sessions import print_sessions, query, refuse_incomplete
from proxy.connection.blocks import BadBlocks, Block, moment
from proxy.ops.status.session_facts import Selector
from sasl.identity import GROUP_TYPE

if TYPE_CHECKING:
    from proxy.store.block_file import BlockFile

app = typer.Typer(rich_markup_mode=None)

WAIT_S: Final = 30.0
"""Longest wait of `blocks --wait` in seconds."""


def _time(text: str) -> int:
    """Return the Unix time of an ISO 8601 time, of `now`, or of a time from now.

    It is rounded up: `iat` has whole seconds, and a token of this second must be blocked. Raises
    BadParameter.
    """
    with suppress(ValueError):
        given = datetime.fromisoformat(text)
        return math.ceil((given if given.tzinfo else given.astimezone()).timestamp())
    return math.ceil(time.time() + (0 if text == "now" else _seconds(text)))


def _seconds(text: str) -> float:
    from metrics.report.requirements import duration_ms

    try:
        return duration_ms(text) / 1000
    except ValueError:
        problem = f"{text!a} is neither an ISO 8601 time nor a time such as 30s, 24h or 7d"
        raise typer.BadParameter(problem) from None


def _group(name: str) -> str:
    return GROUP_TYPE + name.removeprefix(GROUP_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Options that a client must all meet to be blocked."""

    principal: Annotated[
        str | None, option("NAME", "As User:alice or alice.", parser=principal_name)
    ] = None
    group: Annotated[str | None, option("NAME", "Members of a group.", parser=_group)] = None
    jti: Annotated[str | None, option("ID", "The token with this `jti`.")] = None
    issuer: Annotated[str | None, option("URL", "Tokens with this `iss`.")] = None
    subject: Annotated[str | None, option("NAME", "Tokens with this `sub`.")] = None
    client_id: Annotated[str | None, option("ID", "Clients with this id.")] = None
    software_name: Annotated[str | None, option("NAME", "By KIP-511.")] = None
    software_version: Annotated[str | None, option("TEXT", "By KIP-511.")] = None
    address: Annotated[str | None, option("CIDR", "Clients of a network.")] = None
    issued_before: Annotated[
        int | None,
        option("TIME", "Let credentials pass that were issued then or later.", parser=_time),
    ] = None


@app.command()
@takes_groups
def block(
    *,
    criteria: Criteria,
    config: DefaultConfigOption = None,
    reason: Annotated[str, option("TEXT", "Why, for logs and the list.")] = "",
    begins: Annotated[
        int | None, option("TIME", "Begin then; by default, now.", "--from", parser=_time)
    ] = None,
    ends: Annotated[
        int | None, option("TIME", "End then; by default, never.", "--until", parser=_time)
    ] = None,
    margin: Annotated[
        float | None,
        option(
            "TIME",
            "Keep open sessions for so long, such as 30s, so that a client can return with a newer"
            " credential.",
            parser=_seconds,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the sessions of this proxy that would end.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Block clients that meet every given option: sessions end, and logins fail.

    A block that ends with the tokens it is for needs --until; a token's own `exp` is the best one.
    Times are ISO 8601, `now`, or from now, such as 24h.
    """
    try:
        entry = Block(
            **asdict(criteria),
            starts_at=begins,
            ends_at=ends,
            margin_s=margin or 0.0,
            reason=reason,
        )
    except BadBlocks as bad:
        raise typer.BadParameter(str(bad).replace("_", "-")) from None
    if dry_run:
        _list_ended(replace(entry, starts_at=None, ends_at=None, margin_s=0.0), config, output)
    else:
        _add([entry], config)


@app.command()
@takes_groups
def unblock(
    *,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", hidden=True)],
    config: DefaultConfigOption = None,
) -> None:
    """Remove blocks by their ids."""
    file = _file(config)
    with explained():
        file.change(lambda _: ([], set(ids)))
    say(f"{', '.join(map(printable, ids))} is removed; {_reach(file)}")


@app.command()
@takes_groups
def blocks(
    *,
    config: DefaultConfigOption = None,
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
    file = _file(config)
    with explained():
        found = file.read()
    if wait:
        _wait(file, found.version)
    print_list(
        found.entries.values(),
        output,
        items="blocks",
        columns={
            "Id": lambda one: one.id,
            "Blocked": str,
            "Until": lambda one: "-" if one.ends_at is None else moment(one.ends_at),
            "Reason": lambda one: one.reason or "-",
            "Author": lambda one: one.author or "-",
            "Created": lambda one: "-" if one.created_at is None else moment(one.created_at),
        },
        document=Block.document,
        name=lambda one: one.id,
        wide=("Created",),
        left_out=("Author", "Reason"),
    )


def revoke(config: Path | None, entries: Sequence[Block], reason: str) -> None:
    """Block the clients of `entries` with credentials that were issued before now.

    Raises BadParameter and Exit.
    """
    now = _time("now")
    _add([replace(one, issued_before=now, reason=reason) for one in entries], config)


def _add(entries: Sequence[Block], config: Path | None) -> None:
    """Add entries to the list by the user who runs the command, at this machine."""
    file = _file(config)
    author = f"{os.environ.get('SUDO_USER') or operator()}@{socket.gethostname()}"
    added = [replace(one, author=author, created_at=int(time.time())) for one in entries]
    with explained():
        version = file.change(lambda _: (added, ()))
    say(f"{' and '.join(map(str, added))} is blocked, id {version}; {_reach(file)}")


def _file(config: Path | None) -> "BlockFile":
    from proxy.store.block_file import BlockFile

    return BlockFile(loaded_config(config, "--config"))


def _reach(file: "BlockFile") -> str:
    """Return which proxies a change reaches."""
    if file.is_shared:
        return f"every proxy that reads {printable(str(file.path))} applies it"
    return "this proxy alone applies it: other proxies need a shared block.file"


def _wait(file: "BlockFile", version: int) -> None:
    """Return when all workers that read a list have applied a version. Raises Exit."""
    ends = time.monotonic() + WAIT_S
    while late := _late(file, version):
        if time.monotonic() >= ends:
            problem = f"{file.path}: version {version} is not applied: {', '.join(late)}"
            raise fail(problem, Exit.REFUSED)
        time.sleep(0.2)


def _late(file: "BlockFile", version: int) -> list[str]:
    """Return the workers that have not applied a version, and were not silent for a day."""
    from proxy.store.block_file import KEPT_S

    since, late = time.time() - KEPT_S, []
    heartbeats = sorted(file.heartbeats.glob("*"))
    for one in heartbeats:
        with suppress(FileNotFoundError):  # the worker has ended
            # empty while it is being written
            if int(one.read_text() or -1) < version and one.stat().st_mtime > since:
                late.append(one.name)
    return late if heartbeats else ["no proxy reads the list"]


def _list_ended(entry: Block, config: Path | None, output: Output) -> None:
    """List the sessions of the running proxy that an entry would end."""
    settings = loaded_config(config, "--config")
    found, silent = query("sessions", Selector(block=entry.line()), settings.admin_socket())
    print_sessions(found, output)
    refuse_incomplete(silent)
    if settings.block.file is not None:
        note("sessions of other proxies are not listed")
