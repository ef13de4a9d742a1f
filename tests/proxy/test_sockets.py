import socket

import pytest

from proxy.errors import ConfigError
from proxy.sockets import listen, taken_ports


def test_an_address_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            listen("127.0.0.1", port)
    assert str(refused.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_processes_share_an_address() -> None:
    """Every worker has a socket of its own on it (SO_REUSEPORT)."""
    first = listen("127.0.0.1", 0)
    second = listen("127.0.0.1", first.getsockname()[1])
    assert first.getsockname() == second.getsockname()
    first.close()
    second.close()


def test_ports_of_another_proxy_are_found() -> None:
    """It listens with SO_REUSEPORT, so that one more could do so too."""
    with listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        assert list(taken_ports("127.0.0.1", range(port, port + 1))) == [port]
    assert list(taken_ports("127.0.0.1", range(port, port + 1))) == []
