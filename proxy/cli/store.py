"""Store opened by a command, perhaps while a proxy runs on it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import typer

from proxy.cli.common import printable
from proxy.net.sockets import ask_privately
from proxy.store import Store, open_store
from proxy.store.in_use import StoreInUse

PATIENCE: Final = 5.0
"""Seconds in which a proxy must have said which store it reads."""


@contextmanager
def opened_store(url: str, socket: Path) -> Iterator[Store]:
    """Yield the store, which is made if there is none. `socket`: of the proxy that may run with it.

    Raises StoreError if that proxy reads another one: what is changed here would not apply.
    """
    if (told := _in_use(socket)) is not None:
        told.refuse_others(Path(url.partition(":")[2]))
    with closing(open_store(url)) as store:
        yield store


def _in_use(socket: Path) -> StoreInUse | None:
    """Ask the proxy; None: none runs, or it does not say."""
    try:
        answer = ask_privately(socket, {"kind": "store"}, PATIENCE)
        return StoreInUse.read(answer.get("store"))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, ValueError):
        unknown = f"{socket}: the proxy does not say which store it reads"
        typer.echo(f"reauth-proxy: {printable(unknown)}", err=True)
        return None
