"""Describe the ACLs of 1,000 principals among 100,000 ACLs: one batch, or 1,000 requests.

    python -m benchmarks.batch_describe
    python -m benchmarks.batch_describe --rounds 3 --seconds 2     # rougher

For each shape (ACLs per principal), medians of the rounds, which take turns:

- Seconds, and CPU seconds of the proxy, from the first byte of the request, or of the 1,000
  pipelined ones, to the last byte of the response, which the client does not decode.
- The same with the `AdminClient`, which makes an object of each ACL, and its own CPU seconds: in
  one request, and in one request per filter, as for brokers without KIP-888.
- The relay's 99th percentile alone, beside a process that only uses CPU (which matters on a machine
  with few cores), and beside one batch after the other.
- The growth of the worker's memory while it answers with 64 MiB.

Needs what benchmarks.bench needs. Everything runs on loopback, and what was started is ended.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from benchmarks.bench import fake_broker, make_lab
from benchmarks.client import Client, request
from benchmarks.load import Generator
from benchmarks.programs import compile_all, cpu_seconds, process_tree
from benchmarks.targets import USER, Lab, Start, Target, proxy
from proxy.acl.model import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.admin import AdminClient, OAuthBearer
from proxy.admin.acl_messages import batch_request, describe_request
from proxy.store import open_store
from proxy.wire.codec import encode

ACLS: Final = 100_000
PRINCIPALS: Final = 1_000
SHAPES: Final = (10, 100)
"""ACLs of each principal: 10,000 principals have 10, or the 1,000 that are described have 100."""
CONNECTIONS: Final = (1, 16)
"""Connections that are relayed meanwhile, one request in flight each: 16 keep two cores busy."""
DESCRIBE_ACLS: Final = 29


def acls(each: int) -> Iterator[Acl]:
    """Yield the ACLs that the user needs, and 100,000 others."""
    user = f"User:{USER}"
    yield _acl(ResourceType.TOPIC, "bench", user, Operation.WRITE)
    yield _acl(ResourceType.CLUSTER, CLUSTER_NAME, user, Operation.DESCRIBE)
    for number in range(ACLS):
        principal, of_principal = divmod(number, each)
        topic = f"topic-{(principal * 7 + of_principal) % 2_000}"
        yield _acl(ResourceType.TOPIC, topic, f"User:application-{principal}", Operation.READ)


def _acl(resource_type: ResourceType, name: str, principal: str, operation: Operation) -> Acl:
    return Acl(
        resource_type, PatternType.LITERAL, name, principal, "*", operation, Permission.ALLOW
    )


def started(each: int) -> Start:
    """Return how to start a proxy with these ACLs, `each` for every principal."""

    def create(config: Path) -> None:
        store = open_store(f"sqlite:{config.parent / 'state.db'}")
        store.create_acls(list(acls(each)))
        store.close()

    return proxy(f"describe-{each}", settings={"authorizer": {"mode": "enforce"}}, prepare=create)


FILTERS: Final = [AclFilter(principal=f"User:application-{number}") for number in range(PRINCIPALS)]


def measured(target: Target, work: Callable[[], list[bytes]]) -> tuple[float, float, int]:
    """Return seconds, CPU seconds of the proxy, and bytes of the answers."""
    assert target.pid is not None
    began, used = time.perf_counter(), cpu_seconds(target.pid)
    answers = work()
    wall = time.perf_counter() - began
    return wall, cpu_seconds(target.pid) - used, sum(map(len, answers))


def describe_acls(version: int, body: bytes) -> bytes:
    """Return a DescribeAcls request."""
    return request(DESCRIBE_ACLS, version, body, flexible=True)


def describe(client: Client, target: Target, rounds: int) -> None:
    """Describe all filters' ACLs, in one request and in one for each."""
    batch = describe_acls(4, encode(batch_request(FILTERS), 4))
    single = [describe_acls(3, encode(describe_request(3, one), 3)) for one in FILTERS]
    client.ask(batch)
    client.ask(*single[:10])
    many, singles = [], []
    for _ in range(rounds):
        many.append(measured(target, lambda: client.ask(batch)))
        singles.append(measured(target, lambda: client.ask(*single)))
    figures = {}
    for name, found in (("one batch", many), ("one by one", singles)):
        wall, cpu = (median(one[at] for one in found) for at in (0, 1))
        figures[name] = wall, cpu
        print(f"  {name:11} {wall:7.3f} s  CPU {cpu:7.3f} s  {found[0][2] / 1e6:5.2f} MB")
    walls, cpus = zip(*figures.values(), strict=True)
    print(f"  ratio       {walls[1] / walls[0]:7.1f}        {cpus[1] / cpus[0]:7.1f}")


def administer(lab: Lab, target: Target, rounds: int) -> None:
    """Describe the same with the `AdminClient`."""
    asyncio.run(_administer(lab.credentials.token_file.read_text().strip(), target, rounds))


async def _administer(token: str, target: Target, rounds: int) -> None:
    assert target.pid is not None
    server = f"{target.address.host}:{target.address.port}"
    found: dict[str, list[tuple[float, float, float]]] = {}
    async with AdminClient(server, login=OAuthBearer(token=lambda: token)) as client:
        link = await client._ready()  # noqa: SLF001 - to choose the version
        for name, version in [("one batch", 4), ("one by one", 3)] * rounds:
            began, used, own = time.perf_counter(), cpu_seconds(target.pid), time.process_time()
            await link.describe_acls(version, FILTERS)
            wall, own = time.perf_counter() - began, time.process_time() - own
            found.setdefault(name, []).append((wall, cpu_seconds(target.pid) - used, own))
    for name, values in found.items():
        wall, cpu, own = (median(one[at] for one in values) for at in range(3))
        print(f"  AdminClient, {name:11} {wall:6.3f} s  CPU {cpu:6.3f} s, its own {own:6.3f} s")


@contextmanager
def a_busy_process() -> Iterator[None]:
    """Run a process that uses a CPU, and has nothing to do with the proxy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def batches(client: Client) -> Iterator[None]:
    """Send one batch after the other."""
    batch = describe_acls(4, encode(batch_request(FILTERS), 4))
    ending = threading.Event()

    def describe_on() -> None:
        while not ending.is_set():
            client.ask(batch)

    thread = threading.Thread(target=describe_on)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def relay(
    generator: Generator, client: Client, target: Target, rounds: int, seconds: float
) -> None:
    beside: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "alone": nullcontext,
        "beside a busy process": a_busy_process,
        "beside batches": lambda: batches(client),
    }
    options = ("--in-flight", "1", "--payload", "100")
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for connections, name in [*product(CONNECTIONS, beside)] * rounds:
        with beside[name]():
            report = generator.measure(
                target, "relay", connections=connections, seconds=seconds, options=options
            ).report
        found.setdefault((connections, name), []).append((report["p50_us"], report["p99_us"]))
    for (connections, name), values in found.items():
        p50, p99 = (median(one[at] for one in values) / 1e3 for at in (0, 1))
        print(f"  relay of {connections:2} {name:22} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms")


def large(client: Client, target: Target) -> None:
    """Describe all ACLs by 32 filters, each of which finds all: more than one response may hold."""
    filters = [
        AclFilter(
            resource_type=resource_type,
            pattern_type=pattern_type,
            operation=operation,
            permission=permission,
            host=host,
        )
        for resource_type, pattern_type, operation, permission, host in product(
            (ResourceType.ANY, ResourceType.TOPIC),
            (PatternType.ANY, PatternType.LITERAL),
            (Operation.ANY, Operation.READ),
            (Permission.ANY, Permission.ALLOW),
            (None, "*"),
        )
    ]
    before = _memory_mib(target, "VmRSS")
    batch = describe_acls(4, encode(batch_request(filters), 4))
    wall, cpu, size = measured(target, lambda: client.ask(batch))
    peak = _memory_mib(target, "VmHWM")
    print(
        f"  {size / 2**20:.1f} MiB in one answer: {wall:.2f} s, CPU {cpu:.2f} s,"
        f" the worker grew from {before:.0f} to {peak:.0f} MiB"
    )


def _memory_mib(target: Target, name: str) -> float:
    """Return a value of /proc/PID/status in MiB, of the process with the largest."""
    assert target.pid is not None
    return max(
        int(line.split()[1]) / 1024
        for pid in process_tree(target.pid)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(f"{name}:")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_describe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each figure (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of relaying (default 3)")
    options = parser.parse_args(arguments)
    for name, value in machine.describe(pinned=False).items():
        print(f"{name}: {value}")
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
        directory = Path(name)
        programs = compile_all(directory)
        with fake_broker(programs, make_lab(directory)) as lab:
            generator = Generator(program=programs["load"], credentials=lab.credentials)
            for each in SHAPES:
                print(f"{PRINCIPALS} principals with {each} ACLs each, of {ACLS}:", flush=True)
                token = lab.credentials.token_file.read_text().strip()
                with (
                    started(each)(lab) as target,
                    closing(Client(target, token)) as client,
                ):
                    describe(client, target, options.rounds)
                    administer(lab, target, options.rounds)
                    relay(generator, client, target, options.rounds, options.seconds)
                    large(client, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
