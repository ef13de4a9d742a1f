"""Cost of a login by a token that names groups, compared with one without groups.

    python -m benchmarks.group_logins [--compiled]

One proxy, at which clients log in with the one and the other token by turns; CPU microseconds of a
login, from connect to close, and the median of the rounds' ratios. Needs what `benchmarks.bench`
does.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.bench import fake_broker, make_lab
from benchmarks.figures import check_no_errors, cpu_us_each, idle_cpu_per_second
from benchmarks.load import Generator
from benchmarks.programs import compile_all
from benchmarks.targets import OAUTHBEARER, USER, Lab, Target, proxy
from tests.support.sasl import Issuer

GROUPS = 20
ROUNDS = 21
SECONDS = 0.5
"""Length of a round of one token in seconds."""
_AT_ONCE = 8
"""Number of concurrent logins."""


def generators(programs: dict[str, Path], lab: Lab, issuer: Issuer) -> list[Generator]:
    """Return clients whose token names no groups, and some whose token names many."""
    found = []
    for count in (0, GROUPS):
        file = lab.directory / f"token-{count}"
        names = [f"department-{number:02}-analysts" for number in range(count)]
        file.write_text(issuer.mint(USER, lifetime=86_400, groups=names or None) + "\n")
        credentials = replace(lab.credentials, token_file=file)
        found.append(Generator(program=programs["load"], credentials=credentials))
    return found


def compared(target: Target, without: Generator, with_groups: Generator) -> list[list[float]]:
    """Return the microseconds of a login without and with groups, of each round."""

    def login(generator: Generator) -> float:
        measured = generator.measure(
            target, "auth", connections=_AT_ONCE, seconds=SECONDS, mechanism=OAUTHBEARER
        )
        return cpu_us_each(check_no_errors(measured), idle)

    idle = idle_cpu_per_second(target)
    for each in (without, with_groups):
        login(each)
    return [[login(each) for each in (without, with_groups)] for _ in range(ROUNDS)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_logins")
    parser.add_argument("--compiled", action="store_true", help="the data path, as in the image")
    compiled = parser.parse_args().compiled
    with tempfile.TemporaryDirectory() as directory:
        lab, issuer = make_lab(Path(directory)), Issuer()
        issuer.write_jwks(lab.credentials.jwks_file)
        programs = compile_all(Path(directory))
        listener = {"sasl.oauthbearer.groups.claim.name": "groups"}
        start = proxy("groups", listener=listener, mechanism=OAUTHBEARER, compiled=compiled)
        with fake_broker(programs, lab) as behind, start(behind) as target:
            rounds = compared(target, *generators(programs, behind, issuer))
    without, with_groups = (median(each) for each in zip(*rounds, strict=True))
    ratio = median(many / none for none, many in rounds)
    sys.stdout.write(
        f"no groups {without:.0f} us, {GROUPS} groups {with_groups:.0f} us, ratio {ratio:.3f}\n"
    )


if __name__ == "__main__":
    main()
