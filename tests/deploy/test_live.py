"""Dashboards and alerts on a real Prometheus that scrapes a real proxy."""

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
import yaml

from proxy.demo import setup as identity
from proxy.demo.broker import BROKERS
from proxy.demo.setup import Program
from tests.support.certificates import Authority
from tests.support.deploy import DEPLOY, RECORDED, SERIES, find, metric_names
from tests.support.processes import free_port_range, free_ports
from tests.support.proxy_process import ProxyProcess
from tests.support.report import put_report, served_by_nginx

JOB = "kafka/kafka-reauth-proxy"
"""As the Prometheus operator names the job of a PodMonitor."""
REPORT_JOB = "kafka/readiness-report"
SESSION_MS = 3_000
_EVENTS_TOPIC = "session-events"
DEADLINE_SECONDS = 240.0
_ENFORCED, _PROBED, _ENCRYPTED = "enforced", "probed", "encrypted"
_USERS = [
    f"{client}-{listener}" for client in ("orders", "ledger") for listener in (_ENFORCED, _PROBED)
]
"""A group for each client: two in one would wait for each other in its rebalances."""

_SEEN = (
    "kafka_reauth_proxy_expired_connections_killed_total",
    "kafka_reauth_proxy_expired_connections_would_be_killed_total",
    "kafka_reauth_proxy_failed_authentication_total",
    # Rates need two of each.
    "job_listener_mechanism:kafka_reauth_proxy_successful_reauthentication:rate1m",
    "job_listener_mechanism:kafka_reauth_proxy_successful_authentication_no_reauth:rate1m",
    "job_quota_entry:kafka_reauth_proxy_quota_throttle_time_seconds:mean1m",
)
"""Conditions that must hold before the dashboards are examined."""


class Prometheus:
    """Its HTTP API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def values(self, promql: str) -> list[float]:
        """The values of an instant query; raises if it is not a query."""
        query = urllib.parse.urlencode({"query": promql})
        url = f"http://{self._address}/api/v1/query?{query}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        return [float(series["value"][1]) for series in result]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its health."""
        url = f"http://{self._address}/api/v1/rules"
        with urllib.request.urlopen(url, timeout=60) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def scraped_proxy(directory: Path) -> Iterator[Prometheus]:
    """Brokers, a proxy with three listeners, clients of every kind, and Prometheus.

    Returns when the clients have been through what the dashboards are about.
    """
    with ExitStack() as running:
        brokers = Program("broker", "proxy.demo.broker", [], directory / "broker.log")
        running.callback(_end, [brokers])
        bootstrap_servers = brokers.wait_for_line(DEADLINE_SECONDS)
        _create_events_topic(bootstrap_servers)
        config = _config(bootstrap_servers, directory)
        proxy = ProxyProcess(config, directory)
        for user in _USERS:
            (directory / user).write_text(user)
            proxy.add_user(user, user, "SCRAM-SHA-256")
        limits = ["producer_byte_rate=200", "request_percentage=50"]
        proxy.command("quotas", "set", *limits, "--user", f"payments-{_PROBED}")
        running.enter_context(proxy)
        served = running.enter_context(_served_report(directory))
        targets = {JOB: config["http"]["address"], REPORT_JOB: served}
        prometheus = running.enter_context(_prometheus(directory, targets))
        until(lambda: prometheus.values("up") == [1, 1])  # the first logins must be an increase
        clients = [each for one in config["listeners"][:2] for each in _clients(directory, one)]
        running.callback(_end, clients)
        until(lambda: all(sum(prometheus.values(one)) > 0 for one in _SEEN))
        yield prometheus


def _create_events_topic(bootstrap_servers: str) -> None:
    """By a message: the proxy's delivery asks for no topic to be created."""
    producer = confluent.Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(_EVENTS_TOPIC, b"{}")
    assert producer.flush(DEADLINE_SECONDS) == 0


@contextmanager
def _served_report(directory: Path) -> Iterator[str]:
    """A report of which a client is not ready any more; returns the address of its server."""
    regressed = {"client_count": 1, "clients": []}
    put_report(directory / "report", as_of_ms=round(time.time() * 1000), regressed=regressed)
    with served_by_nginx(directory / "report", directory) as address:
        yield address


def _end(programs: Sequence[Program]) -> None:
    for program in programs:
        program.ask_to_stop()
    for program in programs:
        program.ended(time.monotonic() + DEADLINE_SECONDS)


def _config(upstream: str, directory: Path) -> dict[str, Any]:
    """A gateway thrice: enforcing, probing, and with TLS (for its certificate)."""
    identity.write_jwks(directory / "jwks.json", identity.write_key(directory / "identity.pem"))
    identity.write_key(directory / "unknown.pem")
    (directory / "listener.pem").write_bytes(Authority().issue().pem)
    ports = free_port_range(3 * (BROKERS + 2))
    listeners = []
    for number, (name, more) in enumerate(
        {
            _ENFORCED: {"reauth.enforcement": "enforce"},
            _PROBED: {"reauth.enforcement": "probe"},
            _ENCRYPTED: {"security.protocol": "SASL_SSL", "ssl.keystore.location": "listener.pem"},
        }.items()
    ):
        first = ports + number * (BROKERS + 2)
        listeners.append(
            {
                "name": name,
                "address": f"127.0.0.1:{first}",
                "routing": "gateway",
                "advertised.host": "127.0.0.1",
                "broker.ports": f"{first + 1}-{first + 1 + BROKERS}",
                "sasl.enabled.mechanisms": ["OAUTHBEARER", "SCRAM-SHA-256"],
                "connections.max.reauth.ms": SESSION_MS,
                "sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json",
                "sasl.oauthbearer.expected.audience": identity.AUDIENCE,
                "sasl.oauthbearer.expected.issuer": identity.ISSUER,
                **more,
            }
        )
    return {
        "upstream": {"bootstrap.servers": upstream.split(",")},
        "listeners": listeners,
        "authorizer": {"mode": "audit"},
        "quotas": {"mode": "enforce"},
        "events": {"directory": "events", "deliver": {"to": f"kafka:{_EVENTS_TOPIC}"}},
        "http": {"address": f"127.0.0.1:{free_ports(1)[0]}"},
        "shutdown.drain.ms": 1_000,
        "workers": 2,
    }


def _clients(directory: Path, listener: dict[str, Any]) -> Iterator[Program]:
    """The demo's: two that re-authenticate, one that cannot, one with a bad token."""
    where = listener["name"]
    orders, ledger = f"orders-{where}", f"ledger-{where}"
    for client, topic, option, file, *more in (
        (f"payments-{where}", f"payments-{where}", "--key-file", "identity.pem"),
        (orders, orders, "--password-file", orders),
        (ledger, orders, "--password-file", ledger, "--old"),
        (f"intruder-{where}", f"intruder-{where}", "--key-file", "unknown.pem"),
    ):
        common = ["--bootstrap-server", listener["address"], "--client-id", client]
        options = ["--topic", topic, option, str(directory / file), *more]
        log = directory / f"{client}.log"
        yield Program(client, "proxy.demo.client", [*common, *options], log)


@contextmanager
def _prometheus(directory: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    port = free_ports(1)[0]
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "*.rules.yaml")],
        "scrape_configs": [
            {
                "job_name": job,
                "metrics_path": "/report.prom" if job == REPORT_JOB else "/metrics",
                "static_configs": [{"targets": [target]}],
            }
            for job, target in targets.items()
        ],
    }
    file = directory / "prometheus.yaml"
    file.write_text(yaml.safe_dump(settings))
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                find("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: _is_ready(port))
        yield Prometheus(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _is_ready(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/-/ready"
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait until it is true; raises if that takes too long."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.5)


GRAFANA = DEPLOY / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}
OF_OTHER_MODES = (
    "Principals by stage",
    "Client identity at brokers",
    "Wait for delegation tokens",
    "Propagation of delegation tokens",
    "Signals of the identity provider",
)
"""Panels that stay empty without `auto`, `block.signals` and logins as the client at brokers."""
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row" and panel["title"] not in OF_OTHER_MODES
]
ANNOTATIONS = [
    pytest.param(annotation, id=annotation["name"])
    for annotation in DASHBOARDS["operation"]["annotations"]["list"]
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    find("prometheus")
    with scraped_proxy(tmp_path_factory.mktemp("live")) as prometheus:
        yield prometheus


def _filled_in(promql: str) -> str:
    for variable, value in (("job", ".+"), ("instance", ".+"), ("listener", ".+")):
        promql = promql.replace(f"${variable}", value)
    return promql.replace("$__rate_interval", "10s")


@pytest.mark.parametrize("panel", PANELS)
def test_panels_are_about_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert metric_names(target["expr"]) <= SERIES


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_annotations_are_about_metrics_that_exist(annotation: dict[str, Any]) -> None:
    assert metric_names(annotation["expr"]) <= SERIES


@pytest.mark.slow
@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_annotations_are_queries(prometheus: Prometheus, annotation: dict[str, Any]) -> None:
    """Kills have happened; nothing was reloaded."""
    found = prometheus.values(_filled_in(annotation["expr"]))
    assert bool(found) == (annotation["name"] == "Kills")


@pytest.mark.slow
@pytest.mark.parametrize("panel", PANELS)
def test_no_panel_is_empty(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    def shown() -> bool:
        found = [prometheus.values(_filled_in(target["expr"])) for target in panel["targets"]]
        return any(not math.isnan(value) for values in found for value in values)

    until(shown)  # a scrape may come late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("panel", "expected"),
    [
        ("Clients that re-authenticate", (0.01, 0.99)),
        ("Would have been killed", (0.5, 1e6)),
        ("Killed", (0.5, 1e6)),
        ("Proxies", (1, 1)),
        ("Clients that are ready", (0, 0)),
        ("Clients that are not ready any more", (1, 1)),
        ("Age of the report", (0.5, 2 * DEADLINE_SECONDS)),
    ],
)
def test_numbers_are_those_of_what_happened(
    prometheus: Prometheus, panel: str, expected: tuple[float, float]
) -> None:
    (target,) = (
        one["targets"][0]
        for dashboard in DASHBOARDS.values()
        for one in dashboard["panels"]
        if one["title"] == panel
    )
    promql, (low, high) = _filled_in(target["expr"]), expected
    until(lambda: [low <= value <= high for value in prometheus.values(promql)] == [True])


@pytest.mark.slow
def test_every_rule_evaluates_and_kills_are_noticed(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert {rule["name"]: rule["health"] for rule in rules if rule["health"] != "ok"} == {}

    def states() -> dict[str, str]:
        rules = prometheus.rules()
        return {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}

    # The rules are evaluated once a second, so later than the wait for the kills.
    until(lambda: states()["ReauthProxyExpiredSessionsKilled"] == "pending")
    until(lambda: states()["ReauthProxyExpiredSessionsWouldBeKilled"] == "pending")
    until(lambda: states()["ReauthProxyClientsNotReadyAnyMore"] in ("pending", "firing"))
    # A scrape that came late is no proxy that is down.
    until(lambda: states()["ReauthProxyDown"] == states()["ReauthProxyWorkerDown"] == "inactive")


@pytest.mark.slow
def test_every_rate_of_a_kip_has_values(prometheus: Prometheus) -> None:
    for name in sorted(RECORDED):
        until(lambda name=name: bool(prometheus.values(name)))  # type: ignore[misc]
