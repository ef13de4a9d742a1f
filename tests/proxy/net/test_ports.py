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
from tests.support.processes import free_port_range


def refusal(first: str, second: str, ports: str, http: str | None = None) -> str:
    """What is said of two gateways; nothing: all is well."""
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


def test_a_child_needs_no_descriptors_of_what_its_parent_has() -> None:
    """There may be thousands, and each is a client less; the others it must be able to take."""
    first = free_port_range(2)
    with closing(BrokerPorts("broker.ports", "127.0.0.1", PortRange(first, first + 1))) as ports:
        with socket.create_server(("127.0.0.1", first)):
            assert ports.take() == [first]
        child = os.fork()
        if not child:
            try:
                before = open_files()
                ports.leave_to_parent()
                spared = before - open_files()
                for port in (first, first + 1):
                    ports.listen(port).close()
            except BaseException:
                os._exit(99)
            os._exit(spared)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
