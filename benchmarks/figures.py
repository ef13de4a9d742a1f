"""Measurements: each takes targets, returns plain values, and prints nothing."""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.load import Generator, Measured
from benchmarks.programs import Address, MeasurementFailed, ProcessMemory, cpu_seconds, memory
from benchmarks.targets import Target

_METADATA, _METADATA_VERSION = 3, 12
_CLIENT_ID = b"bench"
_IDLE_SECONDS = 2.0
"""Seconds over which the CPU time of an idle target is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Goals for the CPU per request, as multiples of the baseline's in the same run."""

    sessions: float
    """The limit of a proxy that only checks sessions."""
    features: float
    """The limit of a proxy with an authorizer, with quotas, or with both."""
    tls: float | None = None
    """The limit of a proxy with TLS towards clients; None if it has no limit."""
    audit: float = 1.03
    """The limit of a proxy that records uses, compared with one that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of the load: connections x requests in flight on each x payload of each."""

    requests: str
    """The kind of requests, as load.c's --requests names it."""
    topics: int = 1
    """The number of topics in a Produce, each with the payload."""
    produce_version: int = 9
    connections: int
    in_flight: int
    payload: str
    """The bytes of records in each request or response, a key of `_BYTES`."""
    limits: Limits

    @property
    def name(self) -> str:
        """Name of the shape, kind and numbers: `fetch/16x1x100B`."""
        several = f"-{self.topics}-topics" if self.topics > 1 else ""
        by_id = f"-v{self.produce_version}" if self.produce_version > 9 else ""
        kind = f"{self.requests}{several}{by_id}"
        return f"{kind}/{self.connections}x{self.in_flight}x{self.payload}"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of load.c, without the number of connections."""
        return (
            *("--requests", self.requests, "--topics", str(self.topics)),
            *("--produce-version", str(self.produce_version)),
            *("--in-flight", str(self.in_flight), "--payload", str(_BYTES[self.payload])),
        )


_BYTES = {"100B": 100, "16KiB": 16_384, "1MB": 1_000_000}

_SIZES = ((1, 1, "100B"), (16, 1, "100B"), (16, 8, "100B"), (16, 1, "16KiB"), (4, 2, "1MB"))


def _shapes(
    requests: str,
    limits: Sequence[Limits],
    sizes: Sequence[tuple[int, int, str]],
    topics: int = 1,
    produce_version: int = 9,
) -> list[Shape]:
    return [
        Shape(
            requests=requests,
            topics=topics,
            produce_version=produce_version,
            connections=connections,
            in_flight=in_flight,
            payload=payload,
            limits=limit,
        )
        for (connections, in_flight, payload), limit in zip(sizes, limits, strict=True)
    ]


_PRODUCE = (
    Limits(sessions=1.4, features=1.2, tls=1.3),
    Limits(sessions=1.4, features=1.3, tls=1.3),
    Limits(sessions=1.2, features=1.3, tls=1.3),
    Limits(sessions=1.0, features=0.95, tls=1.3),
    Limits(sessions=0.6, features=0.75, tls=1.0),
)
_FETCH = tuple(Limits(sessions=one, features=one) for one in (1.2, 1.3, 1.4, 1.0, 0.9))
_OTHERS = (Limits(sessions=1.5, features=1.5),)

SHAPES: Sequence[Shape] = (
    *_shapes("produce", _PRODUCE, _SIZES),
    *_shapes("fetch", _FETCH[:1], _SIZES[1:2]),
    *_shapes("fetch-session", _FETCH[1:], _SIZES[1:]),
    *_shapes("produce", _OTHERS, _SIZES[1:2], topics=8),
    *_shapes("produce", _OTHERS, _SIZES[1:2], produce_version=13),
    *_shapes("group", _OTHERS, _SIZES[1:2]),
)


@dataclass(slots=True, kw_only=True)
class Relayed:
    """Results of one row at one shape, with a value for each round."""

    compiled: bool | None
    """Whether the proxy's data path is compiled; None: it is no proxy."""
    cpu_us: list[float] = field(default_factory=list)
    """Microseconds of CPU time per request."""
    ratios: list[float] = field(default_factory=list)
    """`cpu_us` over the baseline's of the same round."""
    per_second: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)

    def add(self, measured: Measured) -> None:
        report = measured.report
        self.cpu_us.append(measured.cpu_seconds * 1e6 / report["count"])
        self.per_second.append(report["count"] / report["seconds"])
        self.p50_us.append(report["p50_us"])
        self.p99_us.append(report["p99_us"])

    def medians(self) -> dict[str, float | None]:
        """Return the median of every series; None: nothing was measured."""
        names = ("cpu_us", "ratios", "per_second", "p50_us", "p99_us")
        series = {name: getattr(self, name) for name in names}
        return {name: median(values) if values else None for name, values in series.items()}


def relay(
    generator: Generator,
    targets: Mapping[str, Target],
    shape: Shape,
    *,
    baselines: Mapping[str, str],
    rounds: int,
    seconds: float,
) -> dict[str, Relayed]:
    """Measure all targets in turn, `rounds` times.

    The noise of the machine changes over seconds. So a ratio is taken within a round, and the
    result is the median of the ratios; the order is reversed every other round, so that a drift
    favours no row.
    """
    results = {name: Relayed(compiled=target.compiled) for name, target in targets.items()}
    for number in range(rounds):
        for name in sorted(targets, reverse=number % 2 == 1):
            results[name].add(
                generator.measure(
                    targets[name],
                    "relay",
                    connections=shape.connections,
                    seconds=seconds,
                    options=shape.options,
                )
            )
        for name, baseline in baselines.items():
            if name in results and baseline in results:
                ratio = results[name].cpu_us[-1] / results[baseline].cpu_us[-1]
                results[name].ratios.append(ratio)
    return results


HANDSHAKES: Mapping[str, str] = {"full": "no", "resumed": "yes"}
"""Kinds of TLS handshakes, with the load generator's option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeCost:
    """CPU microseconds of a connection with one request, from connect to close."""

    plain_cpu_us: float | None
    """The cost without TLS, of the same program; None: it was not measured."""
    cpu_us: Mapping[str, float]
    """The cost by kind of handshake."""
    ratios: Mapping[str, float]
    """Ratio to the baseline of the same round; empty: without a baseline."""


def handshakes(
    generator: Generator,
    secured: Mapping[str, Target],
    plain: Mapping[str, Target],
    *,
    baselines: Mapping[str, str],
    rounds: int,
    seconds: float,
) -> dict[str, HandshakeCost]:
    """Measure TLS handshakes, full and resumed, and the same connections without TLS.

    There is one connection at a time: HAProxy resumes only some of sessions that are offered
    concurrently. `plain` has the programs of `secured` without TLS, by the same names. As for
    `relay`, ratios are of one round, and the order is reversed every other one.
    """

    def measure(target: Target, resume: str) -> Measured:
        return check_no_errors(
            generator.measure(
                target,
                "auth",
                connections=1,
                seconds=seconds,
                authenticate=False,
                options=("--tls-resume", resume),
            )
        )

    found: dict[tuple[str, str], list[Measured]] = {}
    for number in range(rounds):
        for kind, resume in HANDSHAKES.items():
            for name in sorted(secured, reverse=number % 2 == 1):
                found.setdefault((name, kind), []).append(measure(secured[name], resume))
        for name in plain:
            found.setdefault((name, "plain"), []).append(measure(plain[name], "no"))
    for (name, kind), each in found.items():
        _check_resumed(name, kind, each)
    costs = {key: list(map(cpu_us_each, each)) for key, each in found.items()}

    def ratio(name: str, kind: str) -> float:
        pairs = zip(costs[name, kind], costs[baselines[name], kind], strict=True)
        return median(own / base for own, base in pairs)

    return {
        name: HandshakeCost(
            plain_cpu_us=median(costs[name, "plain"]) if name in plain else None,
            cpu_us={kind: median(costs[name, kind]) for kind in HANDSHAKES},
            ratios={kind: ratio(name, kind) for kind in HANDSHAKES}
            if baselines.get(name) in secured
            else {},
        )
        for name in secured
    }


def _check_resumed(name: str, kind: str, rounds: Sequence[Measured]) -> None:
    """Raise MeasurementFailed unless exactly the sessions that should were resumed."""
    resumed = sum(each.report["resumed"] for each in rounds)
    count = sum(each.report["count"] for each in rounds)
    if resumed != (count if kind == "resumed" else 0):
        raise MeasurementFailed(f"{name} {kind}: {resumed} of {count} sessions were resumed")


def check_no_errors(measured: Measured) -> Measured:
    """Return the measurement. Raises MeasurementFailed if any authentication failed."""
    if measured.report["errors"]:
        raise MeasurementFailed(f"authentications failed: {measured.report}")
    return measured


def cpu_us_each(measured: Measured, idle: float = 0.0) -> float:
    """Return the CPU microseconds of each counted item, less `idle` CPU seconds in every second."""
    report = measured.report
    return (measured.cpu_seconds - idle * float(report["seconds"])) * 1e6 / float(report["count"])


def idle_cpu_per_second(target: Target) -> float:
    """Measure the CPU time of a target without load, in seconds per second."""
    if target.pid is None:
        return 0.0
    before = cpu_seconds(target.pid)
    time.sleep(_IDLE_SECONDS)
    return (cpu_seconds(target.pid) - before) / _IDLE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleMemory:
    """Memory of a target's processes, without and with idle connections."""

    base: dict[str, ProcessMemory]
    """The memory without connections by role: `main` is the first process of the tree; of its
    children, one that grew with the connections is a `worker`, any other a `helper`."""
    connections: int
    """The number of connections that were opened."""
    kib_per_connection: float
    """The growth of the tree's PSS per connection in KiB, without buffers in the kernel."""


def idle_memory(generator: Generator, target: Target, *, connections: int) -> IdleMemory:
    """Measure base memory and the cost of an idle, authenticated connection."""
    assert target.pid is not None
    # The first connections make the process load and allocate much only once.
    with generator.idle(target, 50, None):
        pass
    time.sleep(1.0)
    base = memory(target.pid)
    with generator.idle(target, connections, None):
        time.sleep(1.0)
        after = memory(target.pid)
    growth = sum(one.pss_kib for one in after) - sum(one.pss_kib for one in base)
    return IdleMemory(
        base=_by_role(base, after),
        connections=connections,
        kib_per_connection=growth / connections,
    )


def _by_role(
    base: Sequence[ProcessMemory], after: Sequence[ProcessMemory]
) -> dict[str, ProcessMemory]:
    grown = {one.pid: one.pss_kib for one in after}
    growth = [grown.get(one.pid, 0) - one.pss_kib for one in base]
    roles = {"main": base[0]}
    for number, one in enumerate(base[1:], start=1):
        kind = "worker" if growth[number] > max(growth) / 2 else "helper"
        roles[f"{kind} {number}"] = one
    return roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Reauthenticated:
    """Results of many connections that re-authenticate within a short time."""

    connections: int
    within_seconds: float
    """The seconds from the first re-authentication to the last."""
    late: int
    """The number of connections that re-authenticated after the end of their session."""
    failed: int
    """The number of connections that were refused or closed, at login or later."""
    answered_after: int
    """The number of connections with an answered request after the re-authentication."""
    p50_us: float
    p99_us: float
    max_us: float
    cpu_us: float
    """The CPU microseconds of a re-authentication."""
    side_connections: int | None = None
    """The largest number of connections to the broker beside those of the clients; None: it was not
    measured."""


def reauthentication(
    generator: Generator,
    target: Target,
    *,
    connections: int,
    seconds: float,
    requests: str = "produce",
) -> Reauthenticated:
    """Measure connections that log in over `seconds` and re-authenticate over as long.

    Each sends `requests` afterwards.
    """
    measured = generator.measure(
        target,
        "reauth",
        connections=connections,
        seconds=seconds,
        options=("--requests", requests),
    )
    report = measured.report
    return Reauthenticated(
        connections=connections,
        within_seconds=report["seconds"],
        late=report["late"],
        failed=report["errors"],
        answered_after=report["answered_after"],
        p50_us=report["p50_us"],
        p99_us=report["p99_us"],
        max_us=report["max_us"],
        cpu_us=measured.cpu_seconds * 1e6 / report["count"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteCost:
    """Cost of replacing the addresses in one large Metadata response."""

    size_bytes: int
    """The size of the response."""
    milliseconds: float
    """The median of the durations."""


def metadata_rewrite(broker: Address, *, repetitions: int = 50) -> RewriteCost:
    """Time the rewriting of a broker's Metadata response for all topics."""
    from proxy.wire.addresses import rewrite

    response = _ask_for_metadata(broker)
    durations = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        rewritten = rewrite(
            _METADATA, _METADATA_VERSION, response, lambda _id, _host, port: ("proxy.test", port)
        )
        durations.append(time.perf_counter() - begin)
    if b"proxy.test" not in rewritten:
        raise MeasurementFailed("no address was rewritten")
    return RewriteCost(size_bytes=len(response), milliseconds=median(durations) * 1e3)


def _ask_for_metadata(broker: Address) -> bytes:
    """Return a Metadata response from its correlation id on."""
    client_id = struct.pack(">h", len(_CLIENT_ID)) + _CLIENT_ID
    # No tags; all topics (null); neither auto-creation nor authorized operations; no tags.
    fields = b"\0" + b"\0" + b"\0\0" + b"\0"
    body = struct.pack(">hhi", _METADATA, _METADATA_VERSION, 1) + client_id + fields
    with socket.create_connection((broker.host, broker.port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)
