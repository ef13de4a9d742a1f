"""Commands `reauth-proxy sessions`: list and kill sessions over the admin socket."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.common import Exit, Output, OutputOption, explained, fail, printable
from proxy.ops.status.session_facts import EVERY_SESSION, Selector, SessionFacts

if TYPE_CHECKING:
    from rich.table import Table

PATIENCE: Final = 30.0
"""Seconds; longer than the proxy itself waits for its workers."""
WIDE_COLUMNS: Final = 130
"""Width of a terminal on which all columns fit, in characters."""
_UNBROKEN: Final = ("Connection", "Host", "Left", "Requests", "In", "Out")

app = typer.Typer(
    help="List and kill the sessions of a running proxy on this machine.", no_args_is_help=True
)

Principal = Annotated[
    str | None, typer.Option(metavar="PRINCIPAL", help="Those of a principal, as User:alice.")
]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="Those with a client id.")]
Connection = Annotated[
    str | None, typer.Option(metavar="ID", help="The one on a connection, as events name it.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration that the proxy runs with."),
]
SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", metavar="FILE", help="The proxy's admin socket itself."),
]


@app.command(name="list")
def list_sessions(
    principal: Principal = None,
    client_id: ClientId = None,
    connection: Connection = None,
    config: ConfigOption = None,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List sessions: all, or those that every given option fits."""
    selector = Selector(principal=principal, client_id=client_id, connection_id=connection)
    found, silent = _ask("sessions", selector, _socket(config, socket))
    _print(found, output)
    _complain(silent)
    if not found and selector != EVERY_SESSION:
        raise fail("there is no such session", Exit.REFUSED)


@app.command()
def kill(
    principal: Principal = None,
    client_id: ClientId = None,
    connection: Connection = None,
    config: ConfigOption = None,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Close the connections that every given option fits; most clients connect again at once."""
    selector = Selector(principal=principal, client_id=client_id, connection_id=connection)
    if selector == EVERY_SESSION:
        raise typer.BadParameter("give --principal, --client-id or --connection")
    killed, silent = _ask("kill", selector, _socket(config, socket))
    _print(killed, output)
    _complain(silent)
    if not killed:
        raise fail("there is no such session", Exit.REFUSED)
    if output is Output.TABLE:
        typer.echo(f"{len(killed)} killed")


def _socket(config: Path | None, socket: Path | None) -> Path:
    if (config is None) == (socket is None):
        raise typer.BadParameter("give one of --config and --socket")
    if socket is not None:
        return socket
    assert config is not None
    with explained(config):
        from proxy.config import load

        return load(config).admin_socket()


def _ask(kind: str, selector: Selector, path: Path) -> tuple[list[SessionFacts], list[str]]:
    """Return sessions, and which workers did not say whether they have any."""
    from proxy.net.sockets import ask_privately

    question = {"kind": kind, "arguments": selector.arguments()}
    try:
        answer = ask_privately(path, question, PATIENCE)
    except TimeoutError:
        raise fail(f"{path}: the proxy does not answer", Exit.REFUSED) from None
    except OSError as error:
        raise fail(f"{path}: no proxy answers there: {error.strerror}", Exit.REFUSED) from None
    except ValueError:
        raise fail(f"{path}: the proxy's answer broke off", Exit.REFUSED) from None
    if "error" in answer:
        raise fail(answer["error"], Exit.REFUSED)
    rows = [SessionFacts._make(row) for row in answer["sessions"]]
    return sorted(rows, key=lambda one: (one.principal or "", -one.connected_s)), answer["silent"]


def _complain(silent: Sequence[str]) -> None:
    """End with a refusal if not all sessions could be looked at."""
    if silent:
        raise fail("; ".join(silent), Exit.REFUSED)


def _print(sessions: Sequence[SessionFacts], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps([one._asdict() for one in sessions], indent=2))
    elif sessions:
        from rich.console import Console

        console = Console()
        wide = console.width >= WIDE_COLUMNS
        console.print(_table([_row(one, wide=wide) for one in sessions]))


def _table(rows: Sequence[dict[str, str]]) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE)
    for heading in rows[0]:
        table.add_column(heading, overflow="fold", no_wrap=heading in _UNBROKEN)
    for row in rows:
        # Text, not str: a name may look like rich's markup
        table.add_row(*(Text(printable(value)) for value in row.values()))
    return table


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
