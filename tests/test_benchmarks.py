"""Tests of the benchmarks: their messages are valid, and rows measure what they claim."""

import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from benchmarks import targets, unauthenticated
from benchmarks.bench import fake_broker, make_lab
from benchmarks.figures import SHAPES, Shape
from benchmarks.load import Generator
from benchmarks.programs import Address, MeasurementFailed, Unavailable, compile_all, memory
from benchmarks.spark_bench import measured
from benchmarks.targets import ROWS, Lab, proxy
from benchmarks.unauthenticated import CONNECTION_BYTES
from proxy.net.tls_sides import HANDSHAKE_BYTES, MAX_HANDSHAKES
from proxy.scheduling.memory_budget import MAX_BYTES_UNAUTHENTICATED
from proxy.wire.apis import response_body_at
from proxy.wire.request import parse_request
from tests.support.deploy import missing
from tests.support.kio_messages import decode, encode, request_type, response_type

EXCHANGES = 64
KINDS = {shape.name.partition("/")[0]: shape for shape in SHAPES if shape.payload == "100B"}
COMPILED = [row for row in ROWS if row.name in ("compiled", "compiled-tls", "all")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    try:
        return compile_all(tmp_path_factory.mktemp("programs"))
    except Unavailable as problem:
        missing(str(problem))
        raise


@pytest.fixture
def lab(programs: dict[str, Path], tmp_path: Path) -> Iterator[Lab]:
    with fake_broker(programs, make_lab(tmp_path)) as started:
        yield started


def frames(stream: bytes) -> list[bytes]:
    """Complete frames of one direction, without their sizes."""
    found = []
    while len(stream) >= 4 and len(stream) >= 4 + struct.unpack_from(">i", stream)[0]:
        end = 4 + struct.unpack_from(">i", stream)[0]
        found.append(stream[4:end])
        stream = stream[end:]
    return found


def exchanged(load: Path, broker: Address, shape: Shape) -> tuple[list[bytes], list[bytes]]:
    """Requests of one connection of the generator, and the responses."""
    recorded: tuple[list[bytes], list[bytes]] = ([], [])

    def copy(source: socket.socket, sink: socket.socket, record: list[bytes]) -> None:
        with suppress(OSError):  # the generator closes with answers under way
            while data := source.recv(65_536):
                record.append(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        command = [str(load), "relay", "--target", target, "--seconds", "0.1", "--warm-up", "0"]
        generator = subprocess.Popen([*command, *shape.options], stdout=subprocess.PIPE)
        client, _ = server.accept()
        with generator, client, socket.create_connection((broker.host, broker.port)) as upstream:
            back = Thread(target=copy, args=(upstream, client, recorded[1]))
            back.start()
            copy(client, upstream, recorded[0])
            back.join()
    assert generator.returncode == 0
    sent, answered = (frames(b"".join(each)) for each in recorded)
    return sent, answered


def plain_copy(directory: Path) -> Path:
    """The project without compiling."""
    for part in ("proxy", "sasl", "metrics"):
        shutil.copytree(targets.PROJECT / part, directory / part)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("shape", KINDS.values(), ids=KINDS)
def test_each_message_is_what_its_schema_says(
    programs: dict[str, Path], lab: Lab, shape: Shape
) -> None:
    """The strict codec decodes and encodes each message to the same bytes."""
    sent, answered = exchanged(programs["load"], lab.broker, shape)
    assert len(answered) >= EXCHANGES
    apis = set()
    for content, answer in zip(sent[:EXCHANGES], answered[:EXCHANGES], strict=True):
        request = parse_request(content)
        key, version = request.api_key, request.api_version
        body = answer[response_body_at(key, version, answer) :]
        assert encode(decode(request_type(key, version), request.body)) == request.body
        assert encode(decode(response_type(key, version), body)) == body
        apis.add(key)
    assert apis == ({1, 8, 12, 18} if shape.requests == "group" else {sent[-1][1], 18})


@pytest.mark.slow
def test_what_does_not_compile_is_measured_under_no_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftovers of a failed attempt are not reused."""

    def half_made(directory: Path) -> Path:
        plain_copy(directory)
        raise RuntimeError("the compiler said no")

    monkeypatch.setattr("tests.support.compiled.compiled_copy", half_made)
    for row in COMPILED:
        with pytest.raises(MeasurementFailed, match="does not compile"), row.start(lab):
            pass


@pytest.mark.slow
def test_a_proxy_that_says_it_is_not_compiled_is_not_measured_as_if_it_were(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.compiled.compiled_copy", plain_copy)
    with pytest.raises(MeasurementFailed, match="should run compiled"), COMPILED[0].start(lab):
        pass


@pytest.mark.slow
def test_a_refused_request_fails_the_measurement(programs: dict[str, Path], lab: Lab) -> None:
    """Cheap refusals must not count as speed."""
    generator = Generator(program=programs["load"], credentials=lab.credentials)
    start = targets.proxy("denying", settings={"authorizer": {"mode": "enforce"}})
    with start(lab) as target, pytest.raises(MeasurementFailed, match="answered with an error"):
        generator.measure(target, "relay", connections=1, seconds=0.1)


THREADED = r"""
import subprocess, sys, threading
busy = "import time\nwhile time.process_time() < 1: pass"
thread = threading.Thread(target=subprocess.run, args=([sys.executable, "-c", busy],))
thread.start()
thread.join()
"""


def test_what_a_thread_of_the_program_starts_is_measured_too() -> None:
    """For example executors of a JVM."""
    assert measured([sys.executable, "-c", THREADED]).cpu_seconds > 0.7


OPEN_KIB, CONNECTION_KIB = 10, CONNECTION_BYTES // 1_024
"""Memory of a connection before its handshake, and its maximum outside any budget."""
HANDSHAKES_KIB = MAX_HANDSHAKES * HANDSHAKE_BYTES // 1_024
FRAMES_KIB = MAX_BYTES_UNAUTHENTICATED // 1_024


STOPPED = 1_000
"""Number of clients per phase."""
BOUNDS = {
    "TCP connection": (OPEN_KIB, 0),
    "ClientHello, first 55 bytes": (OPEN_KIB, 0),
    "ClientHello, first 32,000 bytes": (OPEN_KIB, HANDSHAKES_KIB),
    "ClientHello, complete": (OPEN_KIB, HANDSHAKES_KIB),
    "client certificate, first 16 KiB of 100": (OPEN_KIB, HANDSHAKES_KIB),
    "TLS record, all but a byte of 16 KiB": (CONNECTION_KIB, 0),
    "SASL message, all but a byte of 8 KiB": (CONNECTION_KIB, 0),
    "SASL message, all but a byte of 512 KiB": (CONNECTION_KIB, FRAMES_KIB),
    "raw token, all but a byte of 8 KiB": (CONNECTION_KIB, 0),
    "raw token, all but a byte of 512 KiB": (CONNECTION_KIB, FRAMES_KIB),
}
"""KiB per client and in total, by phase."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "relays"),
    [
        (phase, relays)
        for phase in unauthenticated.PHASES
        for relays in (False, True)
        if not relays or phase.startswith("SASL")  # the same code before; no raw tokens at brokers
    ],
)
def test_unauthenticated_clients_take_bounded_memory(lab: Lab, phase: str, relays: bool) -> None:
    """The memory limit in the manifests relies on these bounds."""
    each, shared = BOUNDS[phase]
    start = proxy("stopped", listener=unauthenticated.listener(lab), tls=True, relays_logins=relays)
    with start(lab) as target:
        assert target.pid is not None
        base = sum(one.pss_kib for one in memory(target.pid))
        with unauthenticated.stopped(target, lab, phase, STOPPED):
            grown = sum(one.pss_kib for one in memory(target.pid)) - base
    assert grown <= STOPPED * each + shared
