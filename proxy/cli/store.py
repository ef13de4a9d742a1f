"""Opening of the store by a command, also while a proxy uses it."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.cli.common import note
from proxy.net.sockets import ask_privately
from proxy.store import Store, open_store
from proxy.store.interface import StoreInUse

if TYPE_CHECKING:
    from proxy.config import Store as StoreSettings
    from proxy.store.zookeeper import Zookeeper

QUERY_TIMEOUT_S: Final = 5.0
"""Limit in seconds of the query to a proxy for the store that it reads."""


@contextmanager
def opened_store(url: str, socket: Path) -> Iterator[Store]:
    """Yield the store, which is created if there is none.

    `socket` is the admin socket of the proxy that may use it. Raises StoreError if that proxy reads
    another store: changes of this one would have no effect.
    """
    if (in_use := _in_use(socket)) is not None:
        in_use.refuse_others(Path(url.partition(":")[2]))
    with closing(open_store(url)) as store:
        yield store


def zookeeper(settings: "StoreSettings") -> "Zookeeper":
    """Return the users, ACLs and quotas in ZooKeeper itself."""
    from proxy.net.tls_contexts import open_zookeeper_tls
    from proxy.store.zookeeper import Zookeeper

    tls = open_zookeeper_tls(settings.zookeeper, time.time())
    return Zookeeper(settings, None if tls is None else lambda: tls.context)


def _in_use(socket: Path) -> StoreInUse | None:
    """Return the store that the running proxy reads; None if none runs, or it does not answer."""
    try:
        answer = ask_privately(socket, {"kind": "store"}, QUERY_TIMEOUT_S)
        return StoreInUse.read(answer.get("store"))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, ValueError):
        note(f"{socket}: the proxy does not answer which store it reads")
        return None
