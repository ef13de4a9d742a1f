"""Cost of a login to a broker as the client, compared with a login as the proxy.

    python -m benchmarks.identity_logins

Needs Java 17 and Kafka's jars. One proxy for each `upstream.identity`, in front of one Kafka; one
client connects, logs in with OAUTHBEARER, asks for Metadata and closes, at each proxy by turns. The
principal is known: its delegation token exists. A row has the CPU of the proxy and the time that
one login takes, and the median ratios to the proxy's own login with the same mechanism. All tokens
that Kafka verifies are signed with ES256.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.programs import MeasurementFailed, cpu_seconds
from proxy.brokers.signed_tokens import read_jwks
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.upstream import (
    GATE,
    LITTLE,
    add_proxys_users,
    by_password,
    by_token_file,
    sasl_cluster,
    sidecar_of,
)
from tests.support.kafka.wire_client import WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import AUDIENCE, EC_KID, ISSUER, Issuer

ROUNDS = 15
LOGINS = 40
"""Number of logins at each proxy in a round."""
CLIENT, SECRET = "carol", "carol's secret"
SCRAM = "SCRAM-SHA-256"
METADATA, CREATE_ACLS = 3, 30
BASELINES = {
    "delegation-token": f"proxy {SCRAM}",
    "mapped": f"proxy {SCRAM}",
    "minted-token": "proxy OAUTHBEARER",
}


@dataclass(slots=True)
class Measured:
    """Values of one proxy, one for each round."""

    cpu_us: list[float] = field(default_factory=list)
    login_us: list[float] = field(default_factory=list)


def listeners(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each proxy's listener by the name of its row."""
    entry = directory / "mapped" / CLIENT
    entry.mkdir(parents=True)
    (entry / "username").write_text(CLIENT)
    (entry / "password").write_text(SECRET)
    ways: dict[str, dict[str, Any]] = {
        "delegation-token": {"mechanism": SCRAM},
        "mapped": {"mechanism": SCRAM, "directory": str(entry.parent)},
        "minted-token": {
            "signing.key.files": str(directory / "key.pem"),
            "token.issuer": ISSUER,
            "token.audience": AUDIENCE,
        },
    }
    allowed = {"allow.prefixes": ["User:"], "super.users": []}
    found: dict[str, dict[str, Any]] = {f"proxy {SCRAM}": {}, "proxy OAUTHBEARER": {}}
    for way, settings in ways.items():
        keys = {f"upstream.identity.{key}": value for key, value in (settings | allowed).items()}
        found[way] = {"upstream.identity": way, **keys}
    return found


@contextmanager
def brokers(issuer: Issuer, directory: Path) -> Iterator[KafkaCluster]:
    """Start Kafka, which trusts the issuer's tokens and those that the proxy makes."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "key.pem").write_bytes(pem)
    trusted = issuer.jwks()["keys"] + read_jwks([directory / "key.pem"])["keys"]
    jwks = directory / "brokers.json"
    jwks.write_text(json.dumps({"keys": trusted}))
    with sasl_cluster(jwks, directory) as cluster:
        add_proxys_users(cluster)
        cluster.add_scram_user(CLIENT, SECRET, SCRAM)
        yield cluster


def log_in(proxy: ProxyProcess, issuer: Issuer) -> None:
    """Connect, log in, get one response of the broker, and close."""
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint(CLIENT))
        if actor.ask(METADATA, 12, request_body(METADATA, 12, **metadata_fields())) is None:
            raise MeasurementFailed(f"no response: {proxy.log()[-1_000:]}")


def measure(proxy: ProxyProcess, issuer: Issuer, found: Measured) -> None:
    """Add one round."""
    cpu, begun = cpu_seconds(proxy.pid), time.perf_counter()
    for _ in range(LOGINS):
        log_in(proxy, issuer)
    found.login_us.append((time.perf_counter() - begun) / LOGINS * 1e6)
    found.cpu_us.append((cpu_seconds(proxy.pid) - cpu) / LOGINS * 1e6)


def main() -> None:
    issuer = Issuer()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        jwks = issuer.write_jwks(directory / "jwks.json")
        cluster = stack.enter_context(brokers(issuer, directory))
        proxies = {}
        for number, (row, settings) in enumerate(listeners(directory).items()):
            own = directory / str(number)
            own.mkdir()
            login = (
                by_token_file(
                    own, issuer.mint(GATE, lifetime=86_400, algorithm="ES256", kid=EC_KID)
                )
                if row == "proxy OAUTHBEARER"
                else by_password(SCRAM, own)
            )
            config = sidecar_of(cluster, LITTLE, jwks, login)
            config["listeners"][0] |= settings
            proxies[row] = stack.enter_context(ProxyProcess(config, own))
        found = {row: Measured() for row in proxies}
        for proxy in proxies.values():
            for _ in range(3):
                measure(proxy, issuer, Measured())  # the token, and the JVM
        for number in range(ROUNDS):
            for row in sorted(proxies, reverse=bool(number % 2)):
                measure(proxies[row], issuer, found[row])
    for row, one in found.items():
        text = f"{row:20} CPU {median(one.cpu_us):5.0f} us, login {median(one.login_us):6.0f} us"
        if (baseline := BASELINES.get(row)) is not None:
            than = found[baseline]
            for name, mine, others in (
                ("CPU", one.cpu_us, than.cpu_us),
                ("login", one.login_us, than.login_us),
            ):
                ratio = median(a / b for a, b in zip(mine, others, strict=True))
                text += f", {name} x {ratio:.2f}"
        sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
