"""Demo (`reauth-proxy demo`): the proxy's main job on real traffic, in about a minute.

Each part is a process with a log of its own: librdkafka's mock cluster (`broker`), the real
`reauth-proxy serve`, and four real clients (`client`). `run` starts and ends them, `verdict` checks
what the clients and the event log report.
"""

MIN_SECONDS = 20.0
"""Shortest run in seconds, twice the session lifetime: it has re-authentications and a kill."""
