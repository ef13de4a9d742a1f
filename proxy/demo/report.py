"""Report of a demo client: what it has seen so far, as one line of JSON."""

import json
from dataclasses import asdict, dataclass, field


@dataclass(slots=True, kw_only=True)
class Report:
    """Report of a client about its own traffic."""

    delivered: int = 0
    """Number of messages that the broker has acknowledged."""
    undelivered: int = 0
    """Number of messages that could not be delivered."""
    received: int = 0
    """Number of messages read back, each counted once."""
    out_of_order: int = 0
    """Number of messages that were read twice, or after a later one of their partition."""
    connections_lost: int = 0
    """Number of connections that the client did not close itself."""
    refused: int = 0
    """Number of authentications that the proxy refused."""
    errors: list[str] = field(default_factory=list)
    """The last five errors, as the client library words them."""

    def add_error(self, text: str) -> None:
        """Keep an error."""
        self.errors = [*self.errors[-4:], text]

    def send(self) -> None:
        """Write the report as one line to stdout."""
        print(json.dumps(asdict(self)), flush=True)


def read_report(line: str) -> Report:
    """Parse the line that `send` wrote."""
    return Report(**json.loads(line))
