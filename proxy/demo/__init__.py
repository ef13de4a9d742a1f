"""Demo (`reauth-proxy demo`): the proxy's main job on real traffic, in about a minute.

Each part is a process with a log of its own: librdkafka's mock cluster (`broker`), the real
`reauth-proxy serve`, and four real clients (`client`). `run` starts and ends them, `verdict` checks
what the clients and the event log report.
"""

import sys

from metrics.extras import missing

MIN_SECONDS = 20.0
"""Shortest run in seconds, twice the session lifetime: it has re-authentications and a kill."""


def main(seconds: float = 60.0) -> int:
    """Run the demo, its clients for `seconds`; return the exit status."""
    if seconds < MIN_SECONDS:
        print(f"reauth-proxy: the demo needs at least {MIN_SECONDS:.0f} seconds", file=sys.stderr)
        return 2
    if (problem := missing("demo")) is not None:
        print(f"reauth-proxy: the demo {problem}", file=sys.stderr)
        return 2
    from proxy.demo.run import play

    return play(seconds)
