"""Commands `reauth-proxy sessions`: list and kill sessions over the admin socket."""

import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.cli.common import (
    DefaultConfigOption,
    Exit,
    fail,
    group,
    loaded_config,
    principal_name,
    say,
    takes_groups,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_list
from proxy.connection.blocks import Block
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts

QUERY_TIMEOUT_S: Final = 30.0
"""Limit of a query in seconds; longer than the proxy itself waits for its workers."""
WATCH_S: Final = 2.0
"""Seconds between two lists of `--watch`."""

app = group("List and kill the sessions of a running proxy on this machine.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Options that select sessions: those that every given option fits."""

    principal: Annotated[
        str | None,
        typer.Option(metavar="PRINCIPAL", help="Those of a principal, as User:alice or alice."),
    ] = None
    client_id: Annotated[str | None, typer.Option(metavar="ID", help="Those with a client id.")] = (
        None
    )
    connection: Annotated[
        str | None, typer.Option(metavar="ID", help="The one on a connection, as events name it.")
    ] = None

    def selector(self) -> Selector:
        """Return the selector of these sessions."""
        return Selector(
            principal=None if self.principal is None else principal_name(self.principal),
            client_id=self.client_id,
            connection_id=self.connection,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProxy:
    """Options that name a running proxy."""

    config: DefaultConfigOption = None
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="FILE", help="The proxy's admin socket itself."),
    ] = None

    def admin_socket(self) -> Path:
        """Return the proxy's admin socket. Raises BadParameter and Exit."""
        if self.socket is not None and self.config is None:
            return self.socket
        settings = loaded_config(
            self.config, "one of --config and --socket", refused=self.socket is not None
        )
        return settings.admin_socket()


class Sort(StrEnum):
    """Orders of sessions; numbers are in falling order, but `left` in rising order."""

    PRINCIPAL = "principal"
    AGE = "age"
    LEFT = "left"
    REQUESTS = "requests"
    REAUTHENTICATIONS = "reauthentications"
    BYTES = "bytes"

    def key(self, one: SessionFacts) -> tuple[float | str, ...]:
        """Return what to sort a session by."""
        principal, oldest = one.principal or "", -one.connected_s
        match self:
            case Sort.PRINCIPAL:
                return principal, oldest
            case Sort.AGE:
                return oldest, principal
            case Sort.LEFT:
                left = one.lifetime_left_s
                return float("inf") if left is None else left, principal, oldest
            case Sort.REQUESTS:
                return -one.requests, principal, oldest
            case Sort.REAUTHENTICATIONS:
                return -one.reauthentications, principal, oldest
            case Sort.BYTES:
                return -one.request_bytes - one.response_bytes, principal, oldest


@app.command(name="list")
@takes_groups
def list_sessions(
    *,
    selected: Selected,
    running: RunningProxy,
    sort: Annotated[
        Sort,
        typer.Option(
            metavar="ORDER", help="principal, age, left, requests, reauthentications or bytes."
        ),
    ] = Sort.PRINCIPAL,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="List again every two seconds, until Ctrl-C.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List sessions: all, or those that match every given option."""
    selector, path = selected.selector(), running.admin_socket()
    while True:
        found, silent = query("sessions", selector, path)
        if watch:
            _clear()
        print_sessions(sorted(found, key=sort.key), output)
        refuse_incomplete(silent)
        if not watch:
            return
        try:
            time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return


@app.command()
@takes_groups
def kill(
    *,
    selected: Selected,
    running: RunningProxy,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke",
            help="Also block credentials issued before now, at every proxy with the same"
            " block.file: clients need a newer token, or log in with their password again.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Close the connections that match every given option; most clients reconnect at once."""
    selector = selected.selector()
    if selector == EVERY_SESSION:
        raise typer.BadParameter("give --principal, --client-id or --connection")
    if revoke:
        from proxy.cli import blocks

        if selector.connection_id is not None or running.socket is not None:
            raise typer.BadParameter("--revoke needs --config, and cannot name a connection")
        entry = Block(principal=selector.principal, client_id=selector.client_id)
        blocks.revoke(running.config, [entry], "sessions kill --revoke")
    killed, silent = query("kill", selector, running.admin_socket())
    if killed or output is Output.JSON:
        print_sessions(sorted(killed, key=Sort.PRINCIPAL.key), output)
    refuse_incomplete(silent)
    if not killed:
        raise fail("there is no such session", Exit.REFUSED)
    if output in (Output.TABLE, Output.WIDE):
        say(f"{len(killed)} killed")


def _per_second(given: str) -> float:
    match = re.fullmatch(r"(\d{1,4}(?:\.\d{1,3})?)/s", given)
    if match is None or not float(match[1]):
        raise typer.BadParameter("must be a number of sessions per second, such as 4/s")
    return float(match[1])


@app.command()
@takes_groups
def drain(
    *,
    selected: Selected,
    running: RunningProxy,
    every: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    rate: Annotated[
        float,
        typer.Option(metavar="NUMBER/s", parser=_per_second, help="Sessions per second, as 4/s."),
    ] = "4/s",  # type: ignore[assignment] # parsed
) -> None:
    """End sessions one by one, each when its requests in flight are answered.

    Their clients connect again, and get the terms in force. Ctrl-C leaves the rest open.
    """
    selector, path, drained = selected.selector(), running.admin_socket(), 0
    if (selector == EVERY_SESSION) is not every:
        raise typer.BadParameter("give --all, or one of --principal, --client-id and --connection")
    found, silent = query("sessions", selector, path)
    refuse_incomplete(silent)
    random.shuffle(found)  # a client that loses all connections at once bootstraps again
    for number, one in enumerate(found):
        time.sleep(1 / rate if number else 0)
        ended, silent = query("drain", Selector(connection_id=one.connection_id), path)
        refuse_incomplete(silent)
        drained += len(ended)
    say(f"{drained} of {len(found)} drained")


def _clear() -> None:
    if sys.stdout.isatty():
        say("\x1b[H\x1b[2J")


def query(kind: str, selector: Selector, path: Path) -> tuple[list[SessionFacts], list[str]]:
    """Return sessions, and a sentence for each worker that did not answer."""
    from proxy.net.sockets import ask_privately

    query = {"kind": kind, "arguments": selector.arguments()}
    try:
        answer = ask_privately(path, query, QUERY_TIMEOUT_S)
    except TimeoutError:
        raise fail(f"{path}: the proxy does not answer", Exit.REFUSED) from None
    except OSError as error:
        raise fail(f"{path}: no proxy answers there: {error.strerror}", Exit.REFUSED) from None
    except ValueError:
        raise fail(f"{path}: the proxy's answer is incomplete: try again", Exit.REFUSED) from None
    if "error" in answer:
        raise fail(answer["error"], Exit.REFUSED)
    return [SessionFacts._make(row) for row in answer["sessions"]], answer["silent"]


def refuse_incomplete(silent: Sequence[str]) -> None:
    """End with a refusal if a worker did not answer."""
    if silent:
        raise fail("; ".join(silent), Exit.REFUSED)


def print_sessions(sessions: Sequence[SessionFacts], output: Output) -> None:
    """Print a list of sessions."""
    listing: Listing[SessionFacts] = Listing(
        items="sessions",
        headings=_HEADINGS,
        lines=lambda one: [_cells(one)],
        document=lambda one: one._asdict(),
        name=lambda one: one.connection_id,
        wide=("Host", "Listener", "Mechanism", "Idle", "In", "Out"),
        left_out=("Software", "Re-auth", "Requests", "Age", "Left"),
    )
    print_list(listing, sessions, output)


_HEADINGS: Final = (
    "Principal",
    "Software",
    "Age",
    "Left",
    "Requests",
    "Re-auth",
    "Client id",
    "Connection",
    "Host",
    "Listener",
    "Mechanism",
    "Idle",
    "In",
    "Out",
)


def _cells(one: SessionFacts) -> Sequence[str]:
    from proxy.ops.status.snapshot import software
    from proxy.ops.status.text import duration, number, size

    def short(seconds: float | None) -> str:
        return duration(seconds).replace("min", "m").replace(" ", "")

    return (
        one.principal or one.state,
        software(one),
        short(one.connected_s),
        short(one.lifetime_left_s),
        number(one.requests),
        number(one.reauthentications),
        one.client_id or "-",
        one.connection_id,
        one.client_host,
        one.listener,
        one.mechanism or "-",
        short(one.idle_s),
        size(one.request_bytes),
        size(one.response_bytes),
    )
