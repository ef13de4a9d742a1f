"""Runs the programs of `transcript` against a server, and compares what two servers said.

What a busy machine did is not what the server did: a conversation that was held up is repeated.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

from tests.kafka.transcript import (
    AT_ONCE,
    DELAYED,
    PROGRAMS,
    Actor,
    Program,
    Transcript,
    World,
)
from tests.kafka.wire_client import WireClient

#: So often is a conversation repeated that the machine held up.
_TRIES = 8


def run(chosen: Program, world: World) -> Transcript:
    """Runs one program on a connection of its own, again if the machine held it up."""
    for _ in range(_TRIES):
        lines, late = _run_once(chosen, world)
        if late <= chosen.late:
            break
    return lines


def _run_once(chosen: Program, world: World) -> tuple[Transcript, float]:
    with WireClient(world.addresses[chosen.listener]) as client:
        actor = Actor(client, world.issuer, is_timed=chosen.is_timed)
        chosen.act(actor)
        return tuple(actor.lines), actor.late


def run_timed(chosen: Program, world: World) -> Transcript:
    """Runs it several times: what the server delays is delayed each time, by the machine or not."""
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


def run_all(world: World, *, at_once: int = 12) -> dict[str, Transcript]:
    """Runs every program; most of their time is waiting, so they share it."""
    together = [each for each in PROGRAMS.values() if not each.is_timed]
    alone = [each for each in PROGRAMS.values() if each.is_timed]
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(lambda each: run(each, world), together))
    done += [run_timed(each, world) for each in alone]
    return {each.name: lines for each, lines in zip([*together, *alone], done, strict=True)}


def differences(
    left: Mapping[str, Transcript], right: Mapping[str, Transcript], names: tuple[str, str]
) -> dict[str, str]:
    """By program: the two transcripts side by side, where they are not the same."""
    return {
        name: side_by_side(left[name], right.get(name, ()), names)
        for name in left
        if left[name] != right.get(name, ())
    }


def side_by_side(left: Transcript, right: Transcript, names: tuple[str, str]) -> str:
    """Two columns; a `!` marks the lines that differ."""
    width = max(map(len, (*left, names[0])))
    rows = [f"  {names[0]:{width}} | {names[1]}"]
    for one, other in zip_longest(left, right, fillvalue=""):
        rows.append(f"{' ' if one == other else '!'} {one:{width}} | {other}")
    return "\n".join(rows)
