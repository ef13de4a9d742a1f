"""Generator of session events of any size, from a seed, by clients whose behaviour is known.

    python -m benchmarks.events.generate --connections 2000 --days 3 --out events
    python -m benchmarks.events.generate --events 20000000 --connections 50000 \\
        --format parquet --out events

Writes event files as the proxy does (or Parquet), and beside them `truth.json`: client id → the
verdict that its behaviour deserves. Connections beyond `TEMPLATES` are copies of simulated ones,
moved in time by whole minutes and given to other clients of the same behaviour.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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
"""2026-06-01, where the generated days begin."""

TEMPLATES = 400
"""Connections that are simulated; more are copied from them."""

DAY = 86_400.0
_SHORT_SECONDS = (20.0, 1200.0)
_SHOWS_ITSELF = 2.2 * 3600
"""Beyond two of the lifetimes that clients are told."""
_EVENTS_A_DAY = 125
"""Of a connection that stays: checkpoints, summaries and re-authentications."""
_LINES_A_FILE = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What to make."""

    connections: int
    principals: int
    clients: int
    days: float
    seed: int
    events: int | None = None
    """About so many, by how long connections stay; None: a third of them stays for days."""
    skew_seconds: float = 0.0
    """Clocks of the proxies are wrong by up to so much."""
    bad: bool = False
    """Add a duplicate, a truncated line, an unknown version and kind, and an event to come."""


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
    """Tell the events of `size.connections` connections, one connection after the other."""
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
    """How long a connection stays; one of each client long enough to show what it does."""
    longest = size.days * DAY * 0.97
    if size.events is not None:
        mean = size.events / size.connections / _EVENTS_A_DAY * DAY
        return min(longest, max(mean * rng.uniform(0.5, 1.5), _SHOWS_ITSELF))
    stays = must_stay or rng.random() < 1 / 3
    return longest if stays else rng.uniform(*_SHORT_SECONDS)


def truth(clients: list[SimulatedClient]) -> dict[str, Behaviour]:
    """Client id → the verdict it deserves."""
    return {client.client_id: client.behaviour for client in clients}


def bad_lines(line: str, as_of_ms: int) -> list[str]:
    """Make, from a good line, one of each kind that a reader has to set aside."""
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
    """Write closed event files of bounded size; return how many lines."""
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
    clients = clients_of(size)
    copies = max(1, -(-size.connections // TEMPLATES))
    small = copies == 1 and not parquet
    if small:
        lines = list(simulated(size, clients))
        if size.bad:
            lines += bad_lines(lines[0], round((EPOCH + size.days * DAY) * 1000))
        written = write_lines(iter(lines), out)
        known = {name: verdict.value for name, verdict in truth(clients).items()}
    else:
        from benchmarks.events.copies import multiply

        written, known = multiply(size, out, parquet=parquet)
    (out / "truth.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return written


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
        skew_seconds=options.skew_seconds,
        bad=options.bad,
    )
    written = generate(size, options.out, parquet=options.format == "parquet")
    sys.stdout.write(f"{written} events in {options.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
