"""Mutations of messages, and the main loop of fuzzers with its options."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol


class Fuzzer(Protocol):
    """A fuzzer; a broken invariant raises an exception."""

    @property
    def inputs(self) -> Iterable[bytes]:
        """Inputs of the current round so far."""
        ...

    def round(self) -> object: ...


def main(fuzzer_of: Callable[[int], Fuzzer], description: str | None, verdict: str) -> NoReturn:
    """Run rounds for some seconds; on a failure print the inputs and exit with 1."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    fuzzer = fuzzer_of(given.seed)
    rounds = 0
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        rounds += 1
        try:
            fuzzer.round()
        except Exception as error:
            print(f"seed {given.seed}, round {rounds}: {error!r}", file=sys.stderr)  # noqa: T201
            for offered in fuzzer.inputs:
                print(offered.hex(), file=sys.stderr)  # noqa: T201
            sys.exit(1)
    print(f"{rounds} rounds, {verdict}")  # noqa: T201
    sys.exit(0)


WORDS = (
    *(b",", b"=", b"=2C", b"=3D", b"n,,", b"y,,", b"p=x,,", b"a=alice,", b"n=", b"r=", b"m=x,"),
    *(b"\x01", b"\x01\x01", b"auth=", b"Bearer ", b".", b"=="),
    *(b"\x00", b"\x7f", b"\x80", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b'"', b"{", b"}", b"[", b"]", b":", b"null", b"NaN", b"1e999", b"-1", b"\\ud800", b"true"),
    *(b'"exp"', b'"sub"', b'"alg"', b'"kid"', b'"crit":[],', b'"none"', b'"HS256"', b'"oct"'),
)


def mutate(rng: random.Random, message: bytes, words: Sequence[bytes] = WORDS) -> bytes:
    """Change, cut, repeat or insert, once or several times."""
    mutated = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(mutated))
        match rng.randint(0, 5):
            case 0 if at < len(mutated):
                mutated[at] = rng.randint(0, 255)
            case 1 if at < len(mutated):
                mutated[at] ^= 1 << rng.randint(0, 7)
            case 2:
                del mutated[at : at + rng.randint(1, 8)]
            case 3:
                mutated[at:at] = mutated[: at + rng.randint(1, 8)]
            case 4:
                del mutated[at:]
            case _:
                mutated[at:at] = rng.choice(words)
    return bytes(mutated)
