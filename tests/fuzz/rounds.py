"""What the fuzzers of exchanges share: their options, and rounds until time is over."""

import argparse
import sys
import time
from collections.abc import Iterable
from typing import Protocol


class Fuzzer(Protocol):
    """Plays one round after the other; a broken invariant is an exception."""

    @property
    def inputs(self) -> Iterable[bytes]:
        """What the round under way has offered so far."""
        ...

    def round(self) -> object: ...


def arg_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def run(fuzzer: Fuzzer, seconds: float, seed: int, verdict: str) -> int:
    """Play rounds for so many seconds; 1: one failed, and what it offered is printed."""
    rounds = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rounds += 1
        try:
            fuzzer.round()
        except Exception as error:
            print(f"seed {seed}, round {rounds}: {error!r}", file=sys.stderr)  # noqa: T201
            for offered in fuzzer.inputs:
                print(offered.hex(), file=sys.stderr)  # noqa: T201
            return 1
    print(f"{rounds} rounds, {verdict}")  # noqa: T201
    return 0
