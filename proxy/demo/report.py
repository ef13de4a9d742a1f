"""Status line of a demo client: what it has seen so far, as one line of JSON."""

import json
import sys
import threading
from dataclasses import asdict, dataclass, field


@dataclass(slots=True, kw_only=True)
class Report:
    """The client's own view; nobody else's."""

    delivered: int = 0
    """Messages that the broker has acknowledged."""
    undelivered: int = 0
    """Messages given up."""
    received: int = 0
    """Messages read back, each counted once."""
    out_of_order: int = 0
    """Messages read twice, or behind a later one of their partition."""
    connections_lost: int = 0
    """Connections that ended without the client wanting it."""
    refused: int = 0
    """Authentications that the proxy refused."""
    errors: list[str] = field(default_factory=list)
    """The last few things that went wrong, in the client library's words."""

    def complain(self, words: str) -> None:
        """Keep what went wrong."""
        self.errors = [*self.errors[-4:], words]

    def tell(self) -> None:
        """Write one line."""
        print(json.dumps(asdict(self)), flush=True)


def read_report(line: str) -> Report:
    """Read the line that `tell` wrote."""
    return Report(**json.loads(line))


def told_to_stop() -> threading.Event:
    """Return an event that is set when stdin ends: the demo is over, or gone."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop
