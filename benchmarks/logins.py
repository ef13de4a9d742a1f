"""Cost of a login, at a warmed-up listener and at one that was just started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import check_no_errors, cpu_us_each, idle_cpu_per_second
from benchmarks.load import Generator, Measured
from benchmarks.targets import Target

_AUTHENTICATIONS_AT_ONCE = 8
"""Number of concurrent logins."""

_WINDOWS_SECONDS = (0.25, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Lengths of the windows after a start in seconds: a JVM gets faster as it compiles hot code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticated:
    """Cost of one authentication, from connect to close."""

    cpu_us: float
    """The microseconds of CPU time, less those of the idle process."""
    per_second: float
    p50_us: float
    p99_us: float


def authentication(
    generator: Generator,
    targets: Mapping[str, Target],
    mechanism: str,
    *,
    rounds: int,
    seconds: float,
    warm_up_seconds: float,
) -> dict[str, Authenticated]:
    """Measure targets in turn, as `relay` does, after a warm-up, in which a JVM compiles."""
    for target in targets.values():
        _measure(generator, target, mechanism, warm_up_seconds)
    idle = {name: idle_cpu_per_second(target) for name, target in targets.items()}
    found: dict[str, list[Measured]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, target in targets.items():
            found[name].append(_measure(generator, target, mechanism, seconds))
    return {name: _authenticated(each, idle[name]) for name, each in found.items()}


def _authenticated(rounds: Sequence[Measured], idle: float) -> Authenticated:
    def middle(key: str) -> float:
        return median([float(each.report[key]) for each in rounds])

    return Authenticated(
        cpu_us=median(cpu_us_each(each, idle) for each in rounds),
        per_second=median(each.report["count"] / each.report["seconds"] for each in rounds),
        p50_us=middle("p50_us"),
        p99_us=middle("p99_us"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyAuthentication:
    """Cost of one authentication soon after the start of a listener."""

    seen: int
    """The number of authentications since the start."""
    cpu_us: float
    """The microseconds of CPU time, less those of the idle process."""


def first_authentications(
    generator: Generator, targets: Mapping[str, Target], mechanism: str
) -> dict[str, list[EarlyAuthentication]]:
    """Measure listeners that were just started, each in consecutive windows."""
    found: dict[str, list[EarlyAuthentication]] = {}
    for name, target in targets.items():
        windows = [_measure(generator, target, mechanism, each) for each in _WINDOWS_SECONDS]
        idle, seen = idle_cpu_per_second(target), 0
        found[name] = []
        for each in windows:
            found[name].append(EarlyAuthentication(seen=seen, cpu_us=cpu_us_each(each, idle)))
            seen += each.report["count"]
    return found


def _measure(generator: Generator, target: Target, mechanism: str, seconds: float) -> Measured:
    return check_no_errors(
        generator.measure(
            target,
            "auth",
            connections=_AUTHENTICATIONS_AT_ONCE,
            seconds=seconds,
            mechanism=mechanism,
        )
    )
