"""Commands `reauth-proxy sessions`: list and kill sessions over the admin socket."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.cli.common import (
    CONFIG_VARIABLE,
    DefaultConfigOption,
    Exit,
    config_by_default,
    explained,
    fail,
    principal_name,
    say,
    takes_groups,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_list
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts

QUERY_TIMEOUT_S: Final = 30.0
"""Limit of a query in seconds; longer than the proxy itself waits for its workers."""
WATCH_S: Final = 2.0
"""Seconds between two lists of `--watch`."""

app = typer.Typer(
    help="List and kill the sessions of a running proxy on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
        config = self.config or config_by_default()
        if config is None or self.socket is not None:
            raise typer.BadParameter(f"give one of --config and --socket, or set {CONFIG_VARIABLE}")
        with explained(config):
            from proxy.config import load

            return load(config).admin_socket()


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
        found, silent = _query("sessions", selector, path)
        if watch:
            _clear()
        _print(sorted(found, key=sort.key), output)
        _refuse_incomplete(silent)
        if not watch:
            return
        try:
            time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return


@app.command()
@takes_groups
def kill(*, selected: Selected, running: RunningProxy, output: OutputOption = Output.TABLE) -> None:
    """Close the connections that match every given option; most clients reconnect at once."""
    selector = selected.selector()
    if selector == EVERY_SESSION:
        raise typer.BadParameter("give --principal, --client-id or --connection")
    killed, silent = _query("kill", selector, running.admin_socket())
    if killed or output is Output.JSON:
        _print(sorted(killed, key=Sort.PRINCIPAL.key), output)
    _refuse_incomplete(silent)
    if not killed:
        raise fail("there is no such session", Exit.REFUSED)
    if output in (Output.TABLE, Output.WIDE):
        say(f"{len(killed)} killed")


def _clear() -> None:
    if sys.stdout.isatty():
        say("\x1b[H\x1b[2J")


def _query(kind: str, selector: Selector, path: Path) -> tuple[list[SessionFacts], list[str]]:
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


def _refuse_incomplete(silent: Sequence[str]) -> None:
    """End with a refusal if a worker did not answer."""
    if silent:
        raise fail("; ".join(silent), Exit.REFUSED)


def _print(sessions: Sequence[SessionFacts], output: Output) -> None:
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
