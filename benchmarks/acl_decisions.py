"""Cost of an uncached decision and of a change, among few and many ACLs.

    python -m benchmarks.acl_decisions

One line per shape and size: microseconds of CPU per decision (best of five rounds of 2,000 names,
half of them allowed); then milliseconds to build the index, and seconds for 100 requests that
create 100 ACLs each on top of the largest, through SQLite and taken over after every request.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvloop

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.handlers.acls import Acls, answer
from proxy.store import CachedAcls, open_store
from proxy.worker.worker import COLLECTOR_THRESHOLD, SWITCH_INTERVAL

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def spread(count: int) -> list[Acl]:
    """Return ACLs of as many topics, every tenth by prefix, for 97 users."""
    return [
        Acl(
            TOPIC,
            PREFIXED if n % 10 == 0 else LITERAL,
            f"topic-{n:06}",
            f"User:u{n % 97}",
            "*",
            WRITE if n % 2 else READ,
            ALLOW,
        )
        for n in range(count)
    ]


def one_resource(count: int) -> list[Acl]:
    """Return ACLs of one topic, each for a user of its own."""
    return [
        Acl(TOPIC, LITERAL, "topic-000001", f"User:u{n}", "*", READ, ALLOW) for n in range(count)
    ]


def nested(count: int) -> list[Acl]:
    """Return ACLs of prefixes of each other, up to 10,000 characters."""
    return [
        Acl(TOPIC, PREFIXED, "t" * (1 + n % 10_000), "User:u1", f"10.1.{n // 10_000}.1", READ, DENY)
        for n in range(count)
    ]


def grouped(count: int) -> list[Acl]:
    """Return the ACLs of `spread`, all but those of `User:u1` for groups."""
    return [
        acl if acl.principal == "User:u1" else replace(acl, principal=f"Group:{acl.principal[5:]}")
        for acl in spread(count)
    ]


GROUPS = tuple(f"Group:u{n}" for n in range(2, 22))
"""Groups of a client, all of which have ACLs."""


def miss(index: AclIndex, count: int, operation: Operation, groups: tuple[str, ...] = ()) -> float:
    """Return the CPU microseconds of an uncached decision."""
    principals = ("User:u1", *groups)
    names = [f"topic-{(n * 97 + 1) % count:06}{'' if n % 2 else 'x'}" for n in range(2000)]
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for name in names:
            index.decide(principals, "10.0.0.1", operation, TOPIC, name)
        best = min(best, time.process_time() - started)
    return best / len(names) * 1e6


def changes() -> tuple[float, float, float]:
    """Return the seconds to load 100,000 ACLs, to make 100 changes, and of these in SQLite."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(f"sqlite:{Path(directory) / 'state.db'}")
        store.create_acls(spread(100_000))
        started = time.perf_counter()
        cached = CachedAcls(store)
        loaded = time.perf_counter() - started
        writing, started = 0.0, time.process_time()
        for request in range(100):
            before = time.process_time()
            store.create_acls(
                [
                    Acl(TOPIC, LITERAL, f"new-{request}-{n}", f"User:u{n}", "*", READ, ALLOW)
                    for n in range(100)
                ]
            )
            writing += time.process_time() - before
            cached.refresh_if_changed()
        total = time.process_time() - started
        assert len(cached.index) == 110_000
        store.close()
        return loaded, total, writing


def pauses() -> dict[str, float]:
    """Return the longest pause (ms) of an event loop beside a thread that administers ACLs.

    The cycle collector and the switch interval of threads are set as in a worker.
    """
    gc.set_threshold(COLLECTOR_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL)
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(f"sqlite:{Path(directory) / 'state.db'}")
        store.create_acls(spread(100_000))
        cached = CachedAcls(store)

        def current() -> AclIndex:
            cached.refresh_if_changed()
            return cached.index

        acls = Acls(store=store, current=current)
        gc.collect()
        gc.freeze()
        works: dict[str, Callable[[], object]] = {
            "describe 100,000": lambda: answer(29, 3, _EVERYTHING, acls, authorized=True),
            "20 x create 100": lambda: _create(acls),
        }
        found = {name: uvloop.run(_longest_pause(work)) for name, work in works.items()}
        store.close()
    return found


_EVERYTHING = b"\x01\x00\x01\x00\x00\x01\x01\x00"
"""Body of a DescribeAcls v3 that finds all ACLs."""


def _create(acls: Acls) -> None:
    for request in range(20):
        acls.create(_new(request))


def _new(request: int) -> list[Acl]:
    return [
        Acl(TOPIC, LITERAL, f"later-{request}-{n}", f"User:u{n}", "*", READ, ALLOW)
        for n in range(100)
    ]


async def _longest_pause(work: Callable[[], object]) -> float:
    running = asyncio.create_task(asyncio.to_thread(work))
    longest, last = 0.0, time.perf_counter()
    while not running.done():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    await running
    return longest * 1000


def main() -> None:
    shapes: list[Callable[[int], list[Acl]]] = [spread, one_resource, nested]
    for shape in shapes:
        for count in (10, 100_000):
            acls = shape(count)
            started = time.perf_counter()
            index = AclIndex(acls, version=1)
            built = (time.perf_counter() - started) * 1000
            write, describe = (miss(index, count, one) for one in (WRITE, DESCRIBE))
            print(
                f"{shape.__name__:13}{count:8} ACLs  built {built:7.1f} ms"
                f"  WRITE {write:5.2f} us  DESCRIBE {describe:5.2f} us"
            )
    index = AclIndex(grouped(100_000), version=1)
    for groups in ((), GROUPS):
        write, describe = (miss(index, 100_000, one, groups) for one in (WRITE, DESCRIBE))
        print(
            f"grouped        100000 ACLs  {len(groups):2} groups"
            f"        WRITE {write:5.2f} us  DESCRIBE {describe:5.2f} us"
        )
    loaded, total, writing = changes()
    print(
        f"load 100,000 from SQLite {loaded:.2f} s;"
        f" 100 x create 100: {total:.2f} s, of it SQLite {writing:.2f} s"
    )
    for work, pause in pauses().items():
        print(f"longest pause of an event loop beside {work}: {pause:.1f} ms")


if __name__ == "__main__":
    main()
