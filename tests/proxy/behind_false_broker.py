"""A whole proxy in front of a false broker, as a child process: memory and log are the real ones.

Its clients need no login of their own.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.kafka.proxied import ProxyProcess
from tests.kafka.wire_client import Outcome, WireClient
from tests.ports import free_ports
from tests.proxy.false_broker import ECHO, NAME, PASSWORD, Behaviour, FalseBroker, Met
from tests.proxy.false_broker_lies import FORGED, TOKEN
from tests.proxy.frames_given import produce, response

PLAIN, SCRAM, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"
MARKER = b"what clients alone may tell brokers"


class Attacked:
    """A proxy in front of a false broker."""

    def __init__(self, proxy: ProxyProcess, broker: FalseBroker) -> None:
        self.proxy = proxy
        self.broker = broker

    def client(self) -> WireClient:
        return WireClient(self.proxy.addresses()["CLIENTS"])

    def ask(self, behaviour: type[Behaviour]) -> tuple[bytes | Outcome, Met]:
        """What a client hears that asks such a broker, and what that heard."""
        self.broker.relayed = behaviour
        before = len(self.broker.met)
        with self.client() as client:
            client.raw(produce(1, records=MARKER))
            heard = client.receive()
        return heard, self.broker.met[before]

    def works(self) -> bool:
        """Whether a client of an honest broker is served."""
        heard, met = self.ask(Behaviour)
        return heard == response(1, ECHO)[4:] and MARKER in met.received

    def closed(self, reason: str) -> float:
        """How many connections ended so."""
        return self.proxy.metric("connections_closed_total", reason=reason)

    def peak_kb(self) -> int:
        """Of the memory of the worker that ever had the most."""
        task = Path(f"/proc/{self.proxy.pid}/task/{self.proxy.pid}/children")
        peaks = []
        for child in task.read_text().split():
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return max(peaks)


def login(mechanism: str, directory: Path) -> dict[str, Any]:
    secret = directory / "secret"
    if mechanism == OAUTHBEARER:
        secret.write_text(TOKEN)
        return {"sasl.oauthbearer.token.endpoint.url": secret.as_uri()}
    secret.write_text(PASSWORD)
    return {"sasl.username": NAME, "sasl.password": f"file:{secret}"}


def assert_clean(text: str) -> None:
    """Of a log: nobody forged a line, and no secret is in it."""
    assert "Traceback" not in text
    for line in text.split("\n"):
        assert line.isprintable()
        assert not line.startswith(FORGED)
    for secret in (PASSWORD, TOKEN, MARKER.decode()):
        assert secret not in text


def start(
    mechanism: str,
    directory: Path,
    stack: ExitStack,
    *,
    asked: type[Behaviour] = Behaviour,
    relayed: type[Behaviour] = Behaviour,
) -> Attacked:
    broker = stack.enter_context(FalseBroker())
    broker.asked, broker.relayed = asked, relayed
    port, http_port = free_ports(2)
    upstream = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **login(mechanism, directory),
    }
    listener = {
        "name": "clients",
        "address": f"127.0.0.1:{port}",
        "routing": "sidecar",
        "security.protocol": "PLAINTEXT",
    }
    config = {
        "upstream": upstream,
        "listeners": [listener],
        "http": {"address": f"127.0.0.1:{http_port}"},
    }
    return Attacked(stack.enter_context(ProxyProcess(config, directory)), broker)
