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
    option,
    principal_name,
    say,
    takes_groups,
)
from proxy.cli.listing import Output, OutputOption, print_list
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
        str | None, option("PRINCIPAL", "Those of a principal, as User:alice or alice.")
    ] = None
    client_id: Annotated[str | None, option("ID", "Those with a client id.")] = None
    connection: Annotated[
        str | None, option("ID", "The one on a connection, as events name it.")
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
    socket: Annotated[Path | None, option("FILE", "The proxy's admin socket itself.")] = None

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

    def key(self, one: SessionFacts) -> tuple[float, str, float]:
        """Return what to sort a session by; equal ones are in the order of principals and age."""
        left = one.lifetime_left_s
        first = {
            Sort.PRINCIPAL: 0,
            Sort.AGE: -one.connected_s,
            Sort.LEFT: float("inf") if left is None else left,
            Sort.REQUESTS: -one.requests,
            Sort.REAUTHENTICATIONS: -one.reauthentications,
            Sort.BYTES: -one.request_bytes - one.response_bytes,
        }
        return first[self], one.principal or "", -one.connected_s


@app.command(name="list")
@takes_groups
def list_sessions(
    *,
    selected: Selected,
    running: RunningProxy,
    sort: Annotated[
        Sort, option("ORDER", "principal, age, left, requests, reauthentications or bytes.")
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
        if watch and sys.stdout.isatty():
            say("\x1b[H\x1b[2J")
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
        raise fail("no session matches", Exit.REFUSED)
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
        float, option("NUMBER/s", "Sessions per second, as 4/s.", parser=_per_second)
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
    from metrics.report.formats import number
    from proxy.ops.status.snapshot import software
    from proxy.ops.status.text import duration, size

    def short(seconds: float | None) -> str:
        return duration(seconds).replace("min", "m").replace(" ", "")

    print_list(
        sessions,
        output,
        items="sessions",
        columns={
            "Principal": lambda one: one.principal or one.state,
            "Software": software,
            "Age": lambda one: short(one.connected_s),
            "Left": lambda one: short(one.lifetime_left_s),
            "Requests": lambda one: number(one.requests),
            "Re-auth": lambda one: number(one.reauthentications),
            "Client id": lambda one: one.client_id or "-",
            "Connection": lambda one: one.connection_id,
            "Host": lambda one: one.client_host,
            "Listener": lambda one: one.listener,
            "Mechanism": lambda one: one.mechanism or "-",
            "Idle": lambda one: short(one.idle_s),
            "In": lambda one: size(one.request_bytes),
            "Out": lambda one: size(one.response_bytes),
        },
        document=lambda one: one._asdict(),
        name=lambda one: one.connection_id,
        wide=("Host", "Listener", "Mechanism", "Idle", "In", "Out"),
        left_out=("Software", "Re-auth", "Requests", "Age", "Left"),
    )
