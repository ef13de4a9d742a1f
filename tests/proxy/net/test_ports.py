# ruff: noqa: E501 - a table: one row, one case
"""One port, one key: whatever names a configuration has for an address."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from proxy.config import from_mapping
from proxy.config.values import PortRange
from proxy.errors import ConfigError
from proxy.net.ports import BrokerPorts, refuse_overlaps
from proxy.net.sockets import Inherited
from tests.support.keepalive import options
from tests.support.processes import PATIENCE_SECONDS, free_port_range


def refusal(first: str, second: str, ports: str, http: str | None = None) -> str:
    """The error about two gateways; empty if they are valid."""
    listeners = [
        {
            "name": name,
            "address": address,
            "routing": "gateway",
            "advertised.host": "gate",
            "broker.ports": broker_ports,
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        }
        for name, address, broker_ports in (("a", first, "9100-9199"), ("b", second, ports))
    ]
    config = from_mapping(
        {
            "upstream": {"bootstrap.servers": "127.0.0.1:9"},
            "listeners": listeners,
            "http": {"address": http},
        },
        base_dir=Path(),
    )
    try:
        refuse_overlaps(config)
    except ConfigError as error:
        return str(error)
    return ""


A, B = "listeners[0].broker.ports", "listeners[1].broker.ports"


@pytest.mark.parametrize(
    ("first", "second", "ports", "http", "problem"),
    [
        ("127.0.0.1:9094", "127.0.0.1:9095", "9200-9299", None, ""),
        ("127.0.0.1:9094", "127.0.0.2:9094", "9100-9199", "[::1]:9094", ""),
        ("127.0.0.1:9094", "localhost:9095", "9199-9299", None, f"{B}: localhost:9199 is taken by {A}, 127.0.0.1:9199"),
        ("localhost:9094", "127.0.0.1:9094", "9200-9299", None, "listeners[1].address: 127.0.0.1:9094 is taken by listeners[0].address, localhost:9094"),
        ("127.0.0.1:9094", "127.0.0.1:9095", "9200-9299", "localhost:9150", f"{A}: 127.0.0.1:9150 is taken by http.address, localhost:9150"),
        ("127.0.0.1:9094", "[::ffff:127.0.0.1]:9095", "9150-9150", None, f"{B}: [::ffff:127.0.0.1]:9150 is taken by {A}, 127.0.0.1:9150"),
        ("127.0.0.1:9094", "[0::0]:9300", "9199-9299", None, f"{B}: [0::0]:9199 is taken by {A}, 127.0.0.1:9199"),
        ("0:9094", "localhost:9095", "9100-9100", None, f"{B}: localhost:9100 is taken by {A}, 0:9100"),
        ("127.0.0.1:9094", "192.0.2.1:9095", "9200-9299", None, "listeners[1].address: cannot listen on 192.0.2.1:9095: Cannot assign requested address"),
        ("127.0.0.1:9094", "127.0.0.1:9095", "9200-9299", "no.such.invalid:80", "http.address: cannot listen on no.such.invalid:80: Name or service not known"),
    ],
    ids=["apart", "same ports elsewhere", "a name", "bootstrap", "http", "mapped", "all of IPv6", "all of IPv4", "not here", "no name"],
)  # fmt: skip
def test_a_port_is_meant_by_one_key(
    first: str, second: str, ports: str, http: str | None, problem: str
) -> None:
    assert refusal(first, second, ports, http) == problem


def ports_of(workers: int) -> tuple[BrokerPorts, int]:
    """Two broker ports, and the first of them."""
    first = free_port_range(2)
    ports = PortRange(first, first + 1)
    return BrokerPorts("broker.ports", "127.0.0.1", ports, workers, Inherited()), first


def is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_clients_of_a_port_are_probed() -> None:
    """From the listening socket, without a system call for each client."""
    first = free_port_range(1)
    range_ = PortRange(first, first)
    with (
        closing(BrokerPorts("key", "127.0.0.1", range_, 1, Inherited(), 50_000)) as ports,
        ports.listen(first) as listening,
        socket.create_connection(("127.0.0.1", first)),
    ):
        listening.settimeout(PATIENCE_SECONDS)
        accepted, _ = listening.accept()
        with accepted:
            # Without TCP_USER_TIMEOUT: consumers may leave a response unread for minutes
            assert options(accepted) == (1, 50, 10, 3, 0)


def test_a_port_listens_for_as_long_as_a_worker_wants_it() -> None:
    """Workers learn at different times that a broker has left, or is back."""
    ports, first = ports_of(workers=2)
    with closing(ports):
        assert ports.take() == []
        for worker in (0, 1):
            ports.begin(worker)
            ports.listen(first).close()
        ports.leave(first)
        assert is_served(first), "worker 0 has not left it"
        ports.begin(0)
        ports.leave(first)
        assert not is_served(first)
        ports.listen(first).close()
        assert is_served(first), "the broker is back"


def test_a_restarted_worker_leaves_the_ports_of_brokers_that_have_left() -> None:
    ports, first = ports_of(workers=1)
    with closing(ports):
        child = os.fork()
        if not child:
            ports.listen(first)
            ports.listen(first + 1)
            os._exit(0)
        os.waitpid(child, 0)
        assert is_served(first), "clients wait for the next worker"
        ports.listen(first + 1).close()
        ports.settle()
        assert (is_served(first), is_served(first + 1)) == (False, True)


def test_a_port_that_another_process_may_use_is_not_closed_for_it() -> None:
    ports, first = ports_of(workers=1)
    with closing(ports):
        ports.listen(first).close()
        ports.share(True)
        ports.leave(first)
        assert is_served(first)
        ports.settle()
        assert is_served(first)
        ports.share(False)
        ports.settle()
        assert not is_served(first), "nobody would accept its clients"


def test_inherited_ports_listen_until_it_is_known_which_brokers_there_are() -> None:
    """A port that was only claimed stays closed; one that listened keeps its clients waiting."""
    old, first = ports_of(workers=2)
    with closing(old):
        old.take()
        with old.listen(first), socket.create_connection(("127.0.0.1", first)):
            sockets = [one.dup() for one in old.sockets()]
            old.close()
            inherited = Inherited(sockets)
            range_ = PortRange(first, first + 1)
            with closing(BrokerPorts("key", "127.0.0.1", range_, 1, inherited)) as new:
                assert new.take() == []
                assert (is_served(first), is_served(first + 1)) == (True, False)
                with new.listen(first) as listening, listening.accept()[0]:
                    pass
                new.settle()
                assert is_served(first)
                new.leave(first)
                assert not is_served(first)
