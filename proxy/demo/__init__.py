"""Demo (`reauth-proxy demo`): the proxy's main job on real traffic, in about a minute.

Everything runs as a process of its own, so that each has its own log: librdkafka's mock cluster
(`broker`), the real `reauth-proxy serve`, and four real clients (`modern_client`, `old_client`).
`play` starts and ends them, `watch` reads what the proxy writes, `screen` shows it, `verdict`
judges what the clients saw.
"""

import importlib.util
import sys

MIN_SECONDS = 20.0
"""Shortest run in seconds, twice the session lifetime: enough for a re-authentication and for a
kill."""


def main(seconds: float = 60.0) -> int:
    """Run the demo, its clients for `seconds`; return the exit status."""
    if seconds < MIN_SECONDS:
        print(f"reauth-proxy: the demo needs at least {MIN_SECONDS:.0f} seconds", file=sys.stderr)
        return 2
    missing = [name for name in ("confluent_kafka", "kafka") if not importlib.util.find_spec(name)]
    if missing:
        print(
            f"reauth-proxy: the demo needs {' and '.join(missing)}:"
            " pip install 'kafka-reauth-proxy[demo]'",
            file=sys.stderr,
        )
        return 2
    from proxy.demo.run import play

    return play(seconds)
