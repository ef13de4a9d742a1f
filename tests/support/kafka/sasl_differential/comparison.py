"""Comparison of two servers with all programs, and the proxy's deliberate differences.

Conversations that were delayed by a busy machine are repeated.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import is_since
from tests.support.kafka.sasl_differential.transcript import (
    AT_ONCE,
    DELAYED,
    PROGRAMS,
    TOPIC,
    USERS,
    Actor,
    Program,
    Transcript,
    World,
)
from tests.support.kafka.wire_client import WireClient
from tests.support.sasl import Issuer

#: Maximum repetitions of a delayed conversation.
_TRIES = 8


def run(chosen: Program, world: World) -> Transcript:
    """Run a program on a new connection, again if a busy machine delayed it."""
    for _ in range(_TRIES):
        lines, late = _run_once(chosen, world)
        if late <= chosen.late:
            break
    return lines


def _run_once(chosen: Program, world: World) -> tuple[Transcript, float]:
    with WireClient(world.addresses[chosen.listener]) as client:
        actor = Actor(client, world.issuer, is_timed=chosen.is_timed)
        actor.act(chosen.steps)
        return tuple(actor.lines), actor.late


def run_timed(chosen: Program, world: World) -> Transcript:
    """Run it several times: delays of the server occur every time."""
    quickest = run(chosen, world)
    for _ in range(_TRIES):
        if not any(line.endswith(DELAYED) for line in quickest):
            break
        again = run(chosen, world)
        if list(map(_untimed, again)) != list(map(_untimed, quickest)):
            return again
        quickest = tuple(min(pair) for pair in zip(quickest, again, strict=True))
    return quickest


def _untimed(line: str) -> str:
    return line.removesuffix(DELAYED).removesuffix(AT_ONCE)


def is_judged(chosen: Program) -> bool:
    """Whether the release under test supports a program."""
    return is_since(chosen.since)


def run_all(world: World, *, at_once: int = 12) -> dict[str, Transcript]:
    """Run every program for its listeners in parallel, as they mostly wait."""
    judged = [each for each in PROGRAMS.values() if is_judged(each)]
    programs = [each for each in judged if each.listener in world.addresses]
    together = [each for each in programs if not each.is_timed]
    alone = [each for each in programs if each.is_timed]
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(lambda each: run(each, world), together))
    done += [run_timed(each, world) for each in alone]
    return {each.name: lines for each, lines in zip([*together, *alone], done, strict=True)}


def differences(
    left: Mapping[str, Transcript], right: Mapping[str, Transcript], names: tuple[str, str]
) -> dict[str, str]:
    """The two transcripts side by side, for programs where they differ."""
    return {
        name: side_by_side(left[name], right.get(name, ()), names)
        for name in left
        if left[name] != right.get(name, ())
    }


def assert_alike(
    kafkas: Mapping[str, Transcript],
    proxys: Mapping[str, Transcript],
    deliberate: Mapping[str, str],
) -> None:
    """Assert that only the deliberate differences occur."""
    found = differences(kafkas, proxys, ("Kafka", "proxy"))
    unexpected = [f"\n{name}\n{text}" for name, text in found.items() if name not in deliberate]
    assert not unexpected, f"{len(unexpected)} programs differ:\n{''.join(unexpected)}"
    vanished = deliberate.keys() - found.keys()
    assert not vanished, f"no longer different: {sorted(vanished)}"


def assert_documented(deliberate: Mapping[str, str]) -> None:
    """Assert that each difference is the first cell of a row of docs/compatibility.md."""
    text = (Path(__file__).parents[4] / "docs" / "compatibility.md").read_text()
    assert not {what for what in deliberate.values() if f"\n| {what} | " not in text}


def side_by_side(left: Transcript, right: Transcript, names: tuple[str, str]) -> str:
    """Two columns; a `!` marks the lines that differ."""
    width = max(map(len, (*left, names[0])))
    rows = [f"  {names[0]:{width}} | {names[1]}"]
    for one, other in zip_longest(left, right, fillvalue=""):
        rows.append(f"{' ' if one == other else '!'} {one:{width}} | {other}")
    return "\n".join(rows)


DELIBERATE: dict[str, str] = {
    name: one.differs for name, one in PROGRAMS.items() if one.differs and is_judged(one)
}
"""Intended differences from Kafka, by program: each is the first cell of a row of
docs/compatibility.md, which describes both behaviours and the reason."""


def kafka_world(cluster: KafkaCluster, issuer: Issuer) -> World:
    """Kafka's own SASL listeners, with the users and the topic of the programs."""
    for name, password, mechanism in USERS:
        cluster.add_scram_user(name, password, mechanism)
    world = World(
        addresses={name: cluster.address(listener=name) for name in cluster.sasl_listeners},
        issuer=issuer,
    )
    cluster.create_topic(TOPIC)
    return world
