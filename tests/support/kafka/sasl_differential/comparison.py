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


def is_judged(program: str) -> bool:
    """Whether the release under test supports a program."""
    if program.startswith("ApiVersions v5"):
        return is_since("4.4")
    if program == "delay: Metadata before the handshake":
        return is_since("4.0")  # close at once, like the proxy
    return True


def run_all(world: World, *, at_once: int = 12) -> dict[str, Transcript]:
    """Run every program for its listeners in parallel, as they mostly wait."""
    judged = [each for each in PROGRAMS.values() if is_judged(each.name)]
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


#: Intended differences from Kafka, and the programs that show them. Each is the first
#: cell of a row of docs/compatibility.md, which describes both behaviours and the reason.
_PROGRAMS_BY_DIFFERENCE: dict[str, tuple[str, ...]] = {
    "An unknown user": (
        "SCRAM first: unknown user",
        "login SCRAM on mechanism without credential",
        "login SCRAM raw unknown user",
        "reauth unknown user",
    ),
    "`c=` of the last message": (
        "SCRAM last: c= says authzid added",
        "SCRAM last: c= says empty",
        "SCRAM last: c= says y,,",
    ),
    "`m=` in the first message": ("SCRAM first: reserved m=",),
    "An unknown extension in the last message": (
        "SCRAM last: unknown extension that the proof does not cover",
    ),
    "User names": ("SCRAM name 'jürgen'",),
    "Messages of more than 16 KiB": ("SCRAM first: 400,000 letters of nonce",),
    "Scheme other than Bearer": ("OAUTHBEARER message: scheme Basic",),
    "A proof of the wrong length": (
        "SCRAM last: empty proof",
        "SCRAM last: long proof",
        "SCRAM last: short proof",
        "SCRAM-SHA-512 proof for SCRAM-SHA-256",
    ),
    "A repeated `auth`": ("OAUTHBEARER message: auth twice",),
    "A repeated extension name": ("OAUTHBEARER message: extension twice",),
    "An escaped authzid": ("OAUTHBEARER message: authzid with escape",),
    "A second rejected token in one exchange": ("error round, then a bad token, then a good one",),
    "A request between SaslHandshake and token": (
        "between handshake and token: DescribeCluster",
        "between handshake and token: FindCoordinator",
        "between handshake and token: Metadata",
        "between two SCRAM messages: DescribeCluster",
        "between two SCRAM messages: FindCoordinator",
        "between two SCRAM messages: Metadata",
        "delay: Metadata between handshake and token",
        "error round, then Metadata",
        "expired: handshake answered, then Metadata",
        "reauth: Fetch between handshake and token",
        "reauth: FindCoordinator between handshake and token",
        "reauth: Metadata between handshake and token",
    ),
    "ApiVersions v5 that means another broker, before authentication": (
        "ApiVersions v5 that means a cluster of 32,767 letters, and node -2, before handshake",
        "ApiVersions v5 that means another cluster, before handshake",
    ),
    "An expired session is used": ("expired: half a Metadata request",),
    "A frame of a re-authentication above `sasl.server.max.receive.size`": (
        "reauth handshake itself larger than sasl.server.max.receive.size",
    ),
    "A failure that has no answer": ("delay: raw token garbage", "delay: reauth unknown mechanism"),
}

#: Row of docs/compatibility.md that explains it, by program.
DELIBERATE: dict[str, str] = {
    program: difference
    for difference, programs in _PROGRAMS_BY_DIFFERENCE.items()
    for program in programs
    if is_judged(program)
}


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
