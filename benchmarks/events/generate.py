"""Generator of session events of any size, from a seed, by clients whose behaviour is known.

    python -m benchmarks.events.generate --connections 2000 --days 3 --out events
    python -m benchmarks.events.generate --events 20000000 --connections 50000 \\
        --format parquet --out events

It writes event files as the proxy does (or Parquet), and beside them `truth.json`: the verdict that
each client's behaviour deserves, by client id. Connections beyond `TEMPLATES` are copies of
simulated ones, moved in time by whole minutes and given to other clients of the same behaviour.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.events.clients import (
    SHARES,
    Behaviour,
    SimulatedClient,
    Stay,
    events_of,
    make_client,
)
from metrics.event_files import file_stem

EPOCH = 1_780_272_000
"""Unix time at which the generated days begin: 2026-06-01."""

TEMPLATES = 400
"""Largest number of connections that are simulated; more are copied from them."""

DAY = 86_400.0
_SHORT_SECONDS = (20.0, 1200.0)
"""Bounds of the duration of a short connection in seconds."""
_SHOWS_ITSELF = 2.2 * 3600
"""Duration of a connection in seconds that shows a client's behaviour: more than two of the session
lifetimes that are announced."""
_EVENTS_A_DAY = 125
"""Number of a long connection's events in a day: checkpoints, summaries and re-authentications."""
_LINES_A_FILE = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of the events to generate."""

    connections: int
    principals: int
    clients: int
    days: float
    seed: int
    events: int | None = None
    """The approximate number of events, which sets how long connections last; None: a third of them
    last for days."""
    skew_seconds: float = 0.0
    """The largest error of the proxies' clocks, in seconds."""
    short: bool = False
    """True makes all connections last less than a minute, like those of cron jobs."""
    bad: bool = False
    """True adds a duplicate, a truncated line, an unknown version and kind, and an event of the
    future."""


def clients_of(size: Size) -> list[SimulatedClient]:
    """Draw the clients; every behaviour occurs as soon as there are five."""
    rng = random.Random(size.seed)
    kinds = list(SHARES)
    drawn = kinds + rng.choices(kinds, list(SHARES.values()), k=max(0, size.clients - len(kinds)))
    return [
        make_client(
            number, behaviour, principals=size.principals, skew_seconds=size.skew_seconds, rng=rng
        )
        for number, behaviour in enumerate(drawn[: size.clients])
    ]


def simulated(size: Size, clients: list[SimulatedClient]) -> Iterator[str]:
    """Yield the events of `size.connections` connections, one connection after the other."""
    rng = random.Random(size.seed + 1)
    for number in range(size.connections):
        client = clients[number % len(clients)]
        seconds = _seconds(size, rng, must_stay=number < len(clients))
        begin = rng.uniform(0, max(0.0, size.days * DAY - seconds))
        stay = Stay(
            connection_id=f"{size.seed:016x}-{number + 1}",
            begin=round(begin),
            seconds=seconds,
            wall=float(EPOCH),
        )
        yield from events_of(client, stay, rng)


def _seconds(size: Size, rng: random.Random, *, must_stay: bool) -> float:
    """Return how long a connection lasts: one of each client long enough to show its behaviour."""
    if size.short:
        return rng.uniform(1.0, 55.0)
    longest = size.days * DAY * 0.97
    if size.events is not None:
        mean = size.events / size.connections / _EVENTS_A_DAY * DAY
        return min(longest, max(mean * rng.uniform(0.5, 1.5), _SHOWS_ITSELF))
    stays = must_stay or rng.random() < 1 / 3
    return longest if stays else rng.uniform(*_SHORT_SECONDS)


def truth(clients: list[SimulatedClient]) -> dict[str, Behaviour]:
    """Return the verdict that each client deserves, by client id."""
    return {client.client_id: client.behaviour for client in clients}


def bad_lines(line: str, as_of_ms: int) -> list[str]:
    """Make from a valid line one of each kind that a reader has to set aside."""
    event = json.loads(line)
    tomorrow = {"timestamp_ms": as_of_ms + 86_400_000, "connection_id": "from-the-future"}
    changed = [{"schema_version": 2}, {"kind": "levitated"}, tomorrow, {"sequence": -1}]
    return [
        line,
        line[: len(line) // 2],
        "null",
        *(json.dumps(event | {"connection_id": "odd"} | change) for change in changed),
    ]


def write_lines(lines: Iterator[str], out: Path) -> int:
    """Write closed event files of bounded size; return the number of lines."""
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    file = None
    try:
        for line in lines:
            if written % _LINES_A_FILE == 0:
                if file is not None:
                    file.close()
                stem = file_stem("generated", 0, EPOCH + written // _LINES_A_FILE)
                file = (out / f"{stem}-0.jsonl").open("w", encoding="ascii")
            assert file is not None
            file.write(line + "\n")
            written += 1
    finally:
        if file is not None:
            file.close()
    return written


def generate(size: Size, out: Path, *, parquet: bool) -> int:
    """Write the events and truth.json under `out`; return the number of events."""
    if size.connections <= TEMPLATES and not parquet:
        clients = clients_of(size)
        lines = list(simulated(size, clients))
        if size.bad:
            lines += bad_lines(lines[0], round((EPOCH + size.days * DAY) * 1000))
        written = write_lines(iter(lines), out)
        known = {name: verdict.value for name, verdict in truth(clients).items()}
    else:
        written, known = _generate_copies(size, out, parquet=parquet)
    (out / "truth.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return written


def _generate_copies(size: Size, out: Path, *, parquet: bool) -> tuple[int, dict[str, str]]:
    """Simulate at most `TEMPLATES` connections, and have Spark copy them."""
    from benchmarks.events.copies import write_copies  # Spark, which few need

    base = replace(
        size,
        connections=min(size.connections, TEMPLATES),
        clients=min(size.clients, TEMPLATES),
        events=None if size.events is None else size.events * TEMPLATES // size.connections,
    )
    clients = clients_of(base)
    groups = max(1, size.clients // base.clients)
    with tempfile.TemporaryDirectory() as directory:
        write_lines(simulated(base, clients), Path(directory))
        written = write_copies(
            Path(directory),
            out,
            copies=max(1, -(-size.connections // base.connections)),
            groups=groups,
            clients=base.clients,
            parquet=parquet,
        )
    known = {
        f"client-{client.number + group * base.clients}": client.behaviour.value
        for client in clients
        for group in range(groups)
    }
    return written, known


def arg_parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.events.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--events", type=int, help="about so many (default: as they come)")
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--principals", type=int, default=20)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--short", action="store_true", help="connections of less than a minute")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl")
    parser.add_argument("--skew-seconds", type=float, default=0.0, help="of the proxies' clocks")
    parser.add_argument("--bad", action="store_true", help="add lines that must be set aside")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Generate events as the options say."""
    options = arg_parser().parse_args(argv)
    size = Size(
        connections=options.connections,
        principals=options.principals,
        clients=min(options.clients, options.connections),
        days=options.days,
        seed=options.seed,
        events=options.events,
        short=options.short,
        skew_seconds=options.skew_seconds,
        bad=options.bad,
    )
    written = generate(size, options.out, parquet=options.format == "parquet")
    sys.stdout.write(f"{written} events in {options.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
