"""Commands `reauth-proxy sessions`: list and kill sessions over the admin socket."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from proxy.cli.common import Exit, Output, OutputOption, explained, fail, print_table
from proxy.cli.options import takes_groups
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts

QUERY_TIMEOUT_S: Final = 30.0
"""Limit of a query in seconds; longer than the proxy itself waits for its workers."""
WIDE_COLUMNS: Final = 130
"""Width of a terminal on which all columns fit, in characters."""
_UNBROKEN: Final = ("Connection", "Host", "Left", "Requests", "In", "Out")

app = typer.Typer(
    help="List and kill the sessions of a running proxy on this machine.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Options that select sessions: those that every given option fits."""

    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Those of a principal, as User:alice.")
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
            principal=self.principal, client_id=self.client_id, connection_id=self.connection
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProxy:
    """Options that name a running proxy."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="The configuration that the proxy runs with."
        ),
    ] = None
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="FILE", help="The proxy's admin socket itself."),
    ] = None

    def admin_socket(self) -> Path:
        """Return the proxy's admin socket. Raises BadParameter and Exit."""
        if (self.config is None) == (self.socket is None):
            raise typer.BadParameter("give one of --config and --socket")
        if self.socket is not None:
            return self.socket
        assert self.config is not None
        with explained(self.config):
            from proxy.config import load

            return load(self.config).admin_socket()


@app.command(name="list")
@takes_groups
def list_sessions(
    *, selected: Selected, running: RunningProxy, output: OutputOption = Output.TABLE
) -> None:
    """List sessions: all, or those that every given option fits."""
    selector = selected.selector()
    found, silent = _query("sessions", selector, running.admin_socket())
    _print(found, output)
    _refuse_incomplete(silent)
    if not found and selector != EVERY_SESSION:
        raise fail("there is no such session", Exit.REFUSED)


@app.command()
@takes_groups
def kill(*, selected: Selected, running: RunningProxy, output: OutputOption = Output.TABLE) -> None:
    """Close the connections that every given option fits; most clients connect again at once."""
    selector = selected.selector()
    if selector == EVERY_SESSION:
        raise typer.BadParameter("give --principal, --client-id or --connection")
    killed, silent = _query("kill", selector, running.admin_socket())
    _print(killed, output)
    _refuse_incomplete(silent)
    if not killed:
        raise fail("there is no such session", Exit.REFUSED)
    if output is Output.TABLE:
        typer.echo(f"{len(killed)} killed")


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
    rows = [SessionFacts._make(row) for row in answer["sessions"]]
    return sorted(rows, key=lambda one: (one.principal or "", -one.connected_s)), answer["silent"]


def _refuse_incomplete(silent: Sequence[str]) -> None:
    """End with a refusal if a worker did not answer."""
    if silent:
        raise fail("; ".join(silent), Exit.REFUSED)


def _print(sessions: Sequence[SessionFacts], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps([one._asdict() for one in sessions], indent=2))
    elif sessions:
        from rich.console import Console

        wide = Console().width >= WIDE_COLUMNS
        rows = [_row(one, wide=wide) for one in sessions]
        print_table([*rows[0]], [[*row.values()] for row in rows], unbroken=_UNBROKEN)


def _row(one: SessionFacts, *, wide: bool) -> dict[str, str]:
    from proxy.ops.status.snapshot import software
    from proxy.ops.status.text import duration, number, size

    row = {
        "Connection": one.connection_id,
        "Principal": one.principal or one.state,
        "Client id": one.client_id or "-",
        "Host": one.client_host,
        "Left": duration(one.lifetime_left_s),
    }
    if wide:
        row |= {
            "Software": software(one),
            "Mechanism": one.mechanism or "-",
            "Requests": number(one.requests),
            "In": size(one.request_bytes),
            "Out": size(one.response_bytes),
        }
    return row
