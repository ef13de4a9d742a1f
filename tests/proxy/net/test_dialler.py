"""Dials by name: lookups that are shared and bounded, several addresses, and the sockets' options.

Of `socket.getaddrinfo` only lookups of names are replaced. The addresses 127.0.0.2 to 127.0.0.9
belong to a socket of the test, or to nobody.
"""

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from proxy.brokers.access import Access
from proxy.brokers.service_connection import fetch_metadata
from proxy.errors import BrokerFault
from proxy.net import dialler
from proxy.net.dialler import Dialler
from proxy.net.handshake_errors import handshake_error
from tests.support.keepalive import options
from tests.support.processes import PATIENCE_SECONDS

real_lookup = socket.getaddrinfo


@dataclass
class Dns:
    """Addresses by name; names that do not exist, and names of silent servers."""

    names: dict[str, list[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)
    """Set at the end of the silence."""
    now: float = 1_000.0

    def look_up(self, encoded: str | bytes, port: int | None, **more: Any) -> Any:
        if more.get("flags") == socket.AI_NUMERICHOST:
            return real_lookup(encoded, port, **more)
        host = encoded if isinstance(encoded, str) else encoded.decode()
        self.asked.append(host)
        if host.startswith("silent"):
            self.silent.wait(PATIENCE_SECONDS)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [one for ip in self.names[host] for one in real_lookup(ip, port, **more)]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    one = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", one.look_up)
    monkeypatch.setattr(dialler, "monotonic", lambda: one.now)
    yield one
    one.silent.set()


@contextmanager
def accepting(host: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, port))
        sock.listen()
        yield sock


@contextmanager
def unanswered(host: str, port: int = 0) -> Iterator[int]:
    """An address whose kernel answers no further SYN: the queue of its socket is full."""
    with socket.socket() as sock, socket.socket() as first:
        sock.bind((host, port))
        sock.listen(0)
        first.connect(sock.getsockname())
        yield sock.getsockname()[1]


async def connected(dials: Dialler, host: str, port: int) -> str:
    """The address that a dial reached, or the error."""
    try:
        transport = await dials.open(asyncio.Protocol, host, port)
    except OSError as error:
        return handshake_error(error)
    try:
        return str(transport.get_extra_info("peername")[0])
    finally:
        transport.abort()


async def test_dials_of_a_name_share_its_lookup_and_its_answer(dns: Dns) -> None:
    """Whatever their ports."""
    dns.names["broker"] = ["127.0.0.1"]
    with accepting() as one, accepting() as two, accepting("127.0.0.2") as three:
        moved = three.getsockname()[1]
        dials = Dialler()
        ports = [sock.getsockname()[1] for sock in (one, two)] * 10
        reached = await asyncio.gather(*(connected(dials, "broker", port) for port in ports))
        assert reached == ["127.0.0.1"] * 20
        dns.now += 4.9
        assert await connected(dials, "broker", ports[1]) == "127.0.0.1"
        assert dns.asked == ["broker"]
        dns.names["broker"] = ["127.0.0.2"]
        dns.now += 0.1
        assert await connected(dials, "broker", moved) == "127.0.0.2"
        assert dns.asked == ["broker"] * 2


async def test_a_name_that_does_not_exist_is_looked_up_once_a_second(dns: Dns) -> None:
    dials = Dialler()
    for _ in range(5):
        assert await connected(dials, "nowhere", 9092) == "Name or service not known"
    dns.now += 1.0
    assert await connected(dials, "nowhere", 9092) == "Name or service not known"
    assert dns.asked == ["nowhere"] * 2


async def test_silent_names_delay_no_other_dial(dns: Dns) -> None:
    """However many: uvloop looks up two names at a time, asyncio as many as it has threads."""
    dns.names["broker"] = ["127.0.0.1"]
    silent = [f"silent-{number}" for number in range(40)]
    with accepting() as sock:
        port = sock.getsockname()[1]
        dials = Dialler()
        waiting = [asyncio.ensure_future(connected(dials, name, 9092)) for name in silent * 3]
        await asyncio.sleep(0)
        assert await connected(dials, "broker", port) == "127.0.0.1"
        assert sorted(dns.asked) == sorted([*silent, "broker"])
        assert not any(one.done() for one in waiting)
        dns.silent.set()
        assert set(await asyncio.gather(*waiting)) == {"Name or service not known"}


@pytest.mark.parametrize("dial", ["dialler", "query"])
async def test_a_wait_for_a_silent_name_is_bounded_and_says_why(
    dns: Dns, monkeypatch: pytest.MonkeyPatch, dial: str
) -> None:
    """The next dial waits for the same lookup, which an earlier one must not cancel."""
    monkeypatch.setattr(dialler, "LOOKUP_SECONDS", 0.05)
    with accepting() as sock:
        port = sock.getsockname()[1]
        access = Access(timeout_s=PATIENCE_SECONDS)
        for _ in range(2):
            if dial == "dialler":
                problem = await connected(access.dialler, "silent", 9092)
                assert problem == "no answer from DNS within 0.05 s"
            else:
                with pytest.raises(BrokerFault, match=r"^broker silent:9092: no answer from DNS"):
                    await fetch_metadata("silent", 9092, access)
        dns.names["silent"] = ["127.0.0.1"]
        dns.silent.set()
        monkeypatch.setattr(dialler, "LOOKUP_SECONDS", PATIENCE_SECONDS)
        assert await connected(access.dialler, "silent", port) == "127.0.0.1"
    assert dns.asked == ["silent"]


async def test_a_lookup_that_fails_after_its_dials_have_ended_is_no_error(
    dns: Dns, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio reports exceptions of futures that nobody awaits any more."""
    with caplog.at_level(logging.DEBUG):
        dials = Dialler()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await connected(dials, "silent", 9092)
        dns.silent.set()
        assert await connected(dials, "silent", 9092) == "Name or service not known"
        gc.collect()
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG] == []


@pytest.mark.parametrize("name", ["ä" * 64, "ä..b"])
async def test_what_is_no_host_name_is_an_error_of_the_lookup(name: str) -> None:
    """Brokers may advertise anything."""
    assert await connected(Dialler(), name, 9092) == "a host name that cannot be looked up"


async def test_a_silent_address_delays_the_next_one_by_a_moment(dns: Dns) -> None:
    """RFC 8305: the kernel alone would try the first for two minutes."""
    dns.names["broker"] = ["127.0.0.2", "127.0.0.3"]
    with accepting("127.0.0.3") as sock:
        port = sock.getsockname()[1]
        with unanswered("127.0.0.2", port):
            assert await connected(Dialler(), "broker", port) == "127.0.0.3"


async def test_the_error_of_several_addresses_is_that_of_one(dns: Dns) -> None:
    dns.names["broker"] = ["127.0.0.2", "127.0.0.3"]
    with socket.socket() as sock:
        sock.bind(("127.0.0.9", 0))
        port = sock.getsockname()[1]
        assert await connected(Dialler(), "broker", port) == "Connection refused"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"]])
@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_options_of_the_sockets(
    dns: Dns, loop: Callable[[], asyncio.AbstractEventLoop], addresses: list[str]
) -> None:
    dns.names["broker"] = addresses

    async def work() -> None:
        for given, expected in (((), (1, 120, 10, 3, 150_000)), ((3_500,), (1, 3, 3, 3, 33_500))):
            _, writer = await Dialler(*given).open_streams("broker", port)
            sock = writer.get_extra_info("socket")
            assert options(sock) == expected
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.transport.abort()

    with accepting() as listening, asyncio.Runner(loop_factory=loop) as runner:
        port = listening.getsockname()[1]
        runner.run(work())


async def test_a_protocol_may_close_at_once() -> None:
    """As the broker's half does whose client has left."""

    class Closes(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.abort()

    with accepting() as sock:
        port = sock.getsockname()[1]
        transport = await Dialler().open(Closes, "127.0.0.1", port)
        assert transport.is_closing()
