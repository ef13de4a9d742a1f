"""Status line of a demo client: what it has seen so far, as one line of JSON."""

import json
import sys
import threading
from dataclasses import asdict, dataclass, field


@dataclass(slots=True, kw_only=True)
class Report:
    """Report of a client on its own traffic."""

    delivered: int = 0
    """Number of messages that the broker has acknowledged."""
    undelivered: int = 0
    """Number of messages that were given up."""
    received: int = 0
    """Number of messages read back, each counted once."""
    out_of_order: int = 0
    """Number of messages read twice, or after a later one of their partition."""
    connections_lost: int = 0
    """Number of connections that ended without the client's doing."""
    refused: int = 0
    """Number of authentications that the proxy refused."""
    errors: list[str] = field(default_factory=list)
    """The last few errors, in the client library's words."""

    def complain(self, words: str) -> None:
        """Keep what went wrong."""
        self.errors = [*self.errors[-4:], words]

    def send(self) -> None:
        """Write one line."""
        print(json.dumps(asdict(self)), flush=True)


def read_report(line: str) -> Report:
    """Parse the line that `send` wrote."""
    return Report(**json.loads(line))


def told_to_stop() -> threading.Event:
    """Return an event that is set when stdin ends: the demo is over, or gone."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop
