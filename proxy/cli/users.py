"""`reauth-proxy users`: who may log in with SCRAM.

A password never stands on the command line, where every process could read it.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import (
    ConfigFile,
    Exit,
    Output,
    OutputOption,
    explained,
    fail,
    printable,
)
from sasl.credentials import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)
from sasl.salts import new_salt

if TYPE_CHECKING:
    from proxy.store import CredentialInfo, Store

MAX_PASSWORD_BYTES = 4_096
"""Far beyond any password; a wrong path must not become one."""

app = typer.Typer(help="Manage the users of SCRAM.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user, without User:.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the password from a file, - for stdin; without it, it is asked for.",
    ),
]
Iterations = Annotated[
    int, typer.Option(min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="How dear guessing is.")
]


@app.command()
def add(
    name: Name,
    config: ConfigFile,
    mechanism: Annotated[ScramMechanism, typer.Option(help="What the password is for.")],
    password_file: PasswordFile = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
) -> None:
    """Add a user, or replace its password for this mechanism."""
    if not name:
        raise typer.BadParameter("the name must not be empty")
    with _store(config) as store:
        password = _password(password_file)
        verifier = ScramCredential.from_password(mechanism, password, new_salt(), iterations)
        store.alter_credentials(upsert={(name, mechanism): verifier})
    typer.echo(f"{printable(name)} may log in with {mechanism.value}")


@app.command(name="list")
def list_users(config: ConfigFile, output: OutputOption = Output.TABLE) -> None:
    """List who may log in, and how."""
    with _store(config) as store:
        infos = store.credential_infos()
    if output is Output.JSON:
        typer.echo(json.dumps([_row(info) for info in infos], indent=2))
    else:
        _print_table(infos)


@app.command()
def remove(
    name: Name,
    config: ConfigFile,
    mechanism: Annotated[
        ScramMechanism | None, typer.Option(help="This one only; without it, all.")
    ] = None,
) -> None:
    """Remove a user. Sessions that are open stay until they re-authenticate."""
    wanted = tuple(ScramMechanism) if mechanism is None else (mechanism,)
    keys = frozenset((name, one) for one in wanted)
    with _store(config) as store:
        missing = store.alter_credentials(delete=keys, upsert={})
    if missing == keys:
        how = f" with {mechanism.value}" if mechanism else ""
        raise fail(f"there is no user {name}{how}", Exit.REFUSED)
    typer.echo(f"{printable(name)} is removed")


@contextmanager
def _store(config: Path) -> "Iterator[Store]":
    with explained(config):
        from proxy.config import load
        from proxy.store import open_store

        store = open_store(load(config).store.url)
        try:
            yield store
        finally:
            store.close()


def _password(file: Path | None) -> str:
    if file is not None:
        password = _read_password(file)
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise typer.BadParameter(
            "there is no terminal to ask for it: give --password-file, - is stdin"
        )
    if not password:
        raise fail("the password must not be empty", Exit.USAGE)
    return password


def _read_password(file: Path) -> str:
    """Return a file's text without the newline that editors and `echo` put at its end."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            data = source.read(MAX_PASSWORD_BYTES + 1)
    except OSError as error:
        raise fail(f"{file}: cannot be read: {error.strerror}", Exit.USAGE) from None
    if len(data) > MAX_PASSWORD_BYTES:
        raise fail(f"the password is longer than {MAX_PASSWORD_BYTES} bytes", Exit.USAGE)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise fail("the password is not UTF-8 text", Exit.USAGE) from None
    return text.removesuffix("\n").removesuffix("\r")


def _row(info: "CredentialInfo") -> dict[str, str | int]:
    return {
        "user": info.user,
        "mechanism": info.mechanism.value,
        "iterations": info.iterations,
    }


def _print_table(infos: "Sequence[CredentialInfo]") -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE)
    table.add_column("User", overflow="fold")
    table.add_column("Mechanism", no_wrap=True)
    table.add_column("Iterations", justify="right", no_wrap=True)
    for info in infos:
        # Text, not str: a name may look like rich's markup
        table.add_row(Text(printable(info.user)), info.mechanism.value, str(info.iterations))
    Console().print(table)
