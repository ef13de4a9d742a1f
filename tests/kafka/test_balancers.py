"""HAProxy and nginx in front, as in docs/balancers.md: clients use one port and brokers' names."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.kafka.clients import JavaClient, SslUser
from tests.support.kafka.cluster import END_WITH_PARENT, KafkaCluster, wait_until
from tests.support.kafka.kerberos import find_program
from tests.support.kafka.traffic import PARTITIONS, end_offset, java_traffic
from tests.support.processes import free_ports
from tests.support.proxy_process import ProxyProcess, Serve, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/balancers.md").read_text()
HAPROXY, NGINX = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BALANCER = "127.0.0.9"
DOMAIN = "kafka.example"
BOOTSTRAP = f"boot.{DOMAIN}"
STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
SECONDS = 300

PRODUCE = """
import sys
import confluent_kafka
settings, topic, partitions = eval(sys.argv[1]), sys.argv[2], int(sys.argv[3])
refused = []
producer = confluent_kafka.Producer(settings)
delivered = lambda error, _: refused.append(error)
for partition in range(partitions):
    producer.produce(topic, b"x", partition=partition, on_delivery=delivered)
assert producer.flush(120) == 0
assert refused == [None] * partitions, refused
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=2, controllers=1, sasl_listeners={}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wildcard certificate, and the names as `/etc/hosts`."""
    directory, authority = tmp_path_factory.mktemp("names"), Authority()
    authority.write(directory)
    (directory / "proxy.pem").write_bytes(authority.issue("proxy", (f"*.{DOMAIN}",)).pem)
    names = " ".join((BOOTSTRAP, *(f"broker-{id_}.{DOMAIN}" for id_ in (1, 2))))
    (directory / "hosts").write_text(f"127.0.0.1 localhost {names}\n")
    return directory


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return dict(zip(("HAPROXY", "NGINX"), free_ports(2), strict=True))


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, jwks: Path, files: Path, ports: dict[str, int], serve: Serve
) -> ProxyProcess:
    """A listener behind each balancer."""
    config = gateway_config(cluster.bootstrap(), jwks, listeners=dict.fromkeys(ports, 3_600_000))
    for listener, port in zip(config["listeners"], ports.values(), strict=True):
        del listener["broker.ports"]
        listener |= {
            "advertised.host": BOOTSTRAP,
            "broker.hosts": f"broker-$(id).{DOMAIN}:{port}",
            "proxy.protocol": "required",
            "proxy.protocol.trusted": BALANCER,
            "security.protocol": "SASL_SSL",
            "ssl.keystore.location": str(files / "proxy.pem"),
        }
    return serve(config | {"workers": 2})


@pytest.fixture(scope="module", autouse=True)
def balancers(proxy: ProxyProcess, files: Path, ports: dict[str, int]) -> Iterator[None]:
    """The page's configurations with other addresses."""
    _, _, checked = proxy.config["http"]["address"].rpartition(":")
    addresses = {name: str(address) for name, address in proxy.addresses().items()}
    haproxy = re.sub(r"^ *server proxy2 .*$", "", HAPROXY, flags=re.MULTILINE)
    haproxy = haproxy.replace(":9094", f"127.0.0.1:{ports['HAPROXY']}", 1)
    haproxy = haproxy.replace("10.0.0.21:9094", f"{addresses['HAPROXY']} source {BALANCER}")
    (files / "haproxy.cfg").write_text(haproxy.replace("9404", f"{checked} addr 127.0.0.1"))
    nginx = NGINX.replace("    server 10.0.0.22:9094;\n", "")
    nginx = nginx.replace("listen 9094", f"listen 127.0.0.1:{ports['NGINX']}")
    nginx = nginx.replace("10.0.0.21:9094", addresses["NGINX"])
    nginx = nginx.replace("proxy_pass", f"proxy_bind {BALANCER};\n    proxy_pass")
    (files / "nginx.conf").write_text(f"load_module {STREAM};\npid nginx.pid;\n{nginx}")
    options = ["-e", "stderr", "-g", "daemon off;"]
    commands = (
        [find_program("haproxy"), "-db", "-f", str(files / "haproxy.cfg")],
        [find_program("nginx"), "-p", str(files), "-c", "nginx.conf", *options],
    )
    started = [subprocess.Popen([*END_WITH_PARENT, *command]) for command in commands]
    yield
    for each in started:
        each.terminate()
        each.wait(SECONDS)


@pytest.fixture
def carol(issuer: Issuer, files: Path) -> SslUser:
    return SslUser(name="carol", mechanism="SCRAM-SHA-256", issuer=issuer, ca=files / "ca.pem")


def at(ports: dict[str, int], balancer: str) -> str:
    return f"{BOOTSTRAP}:{ports[balancer]}"


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    """A topic with partitions on both brokers."""
    name = f"names-{uuid.uuid4()}"
    cluster.create_topic(name, replicas={n: [1 + n % 2] for n in range(PARTITIONS)})
    return name


def run(files: Path, command: Sequence[str]) -> str:
    """Run a program that knows the names."""
    script = f'mount --bind {files / "hosts"} /etc/hosts && exec "$@"'
    done = subprocess.run(
        [find_program("unshare"), "-m", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def written(cluster: KafkaCluster, topic: str) -> list[int]:
    return [end_offset(cluster, topic, partition) for partition in range(PARTITIONS)]


def test_librdkafka(
    cluster: KafkaCluster,
    proxy: ProxyProcess,
    files: Path,
    carol: SslUser,
    ports: dict[str, int],
    topic: str,
) -> None:
    """It writes to both brokers; its address is in the events, and not the balancer's."""
    settings = repr(carol.confluent(at(ports, "NGINX"), client_id=topic))
    run(files, [sys.executable, "-c", PRODUCE, settings, topic, str(PARTITIONS)])
    assert written(cluster, topic) == [1] * PARTITIONS

    def hosts() -> set[str]:
        logs = (files / proxy.config_file.parent / "events").rglob("*.jsonl*")
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return {one["client_host"] for one in lines if one.get("client_id") == topic}

    wait_until(lambda: hosts() == {"127.0.0.1"}, what="no events", details=proxy.log)


def test_java(
    cluster: KafkaCluster,
    files: Path,
    carol: SslUser,
    ports: dict[str, int],
    topic: str,
    tmp_path: Path,
) -> None:
    class Named(SslUser):
        """Carol, who knows the names."""

        def java(self, directory: Path, **more: str) -> JavaClient:
            client: JavaClient = super().java(directory, **more)
            hosts = f"-Djdk.net.hosts.file={files / 'hosts'}"
            return replace(client, jvm_options=(*client.jvm_options, hosts))

    named = Named(name="carol", mechanism=carol.mechanism, issuer=carol.issuer, ca=carol.ca)
    counts = java_traffic(named, at(ports, "HAPROXY"), topic, 1, tmp_path)
    assert all(counts)
    assert written(cluster, topic) == counts
