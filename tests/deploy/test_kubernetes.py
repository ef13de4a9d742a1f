"""The manifests: valid, the same from both tools, and meaning what they should."""

import copy
import importlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.unauthenticated import needed_bytes
from proxy.cli import app
from proxy.config import from_mapping
from proxy.process.supervisor import KILL_AFTER
from tests.support import deploy
from tests.support.deploy import (
    CHART,
    DEPLOY,
    NO_PRIVILEGE,
    OVERLAYS,
    SHARED,
    Document,
    helm,
    kustomized,
    laid_out,
    load,
    newest,
    normal,
    operator_schema,
)
from tests.support.kubernetes.release import PREVIOUS


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def documents(overlay: str) -> list[Document]:
    """What kustomize makes; the chart makes the same, by `test_both_tools_make_the_same`."""
    return kustomized(overlay)


def test_the_api_server_would_take_them(kubernetes: ModuleType, documents: list[Document]) -> None:
    for version in newest(kubernetes):
        for document in documents:
            if document["kind"] != "PodMonitor":  # not Kubernetes' own: below
                kubernetes.validate(document, version, strict=True)


@pytest.mark.slow
@pytest.mark.usefixtures("kubernetes")
def test_the_prometheus_operator_would_take_them(documents: list[Document]) -> None:
    """By the operator's own definition of a PodMonitor; a misspelt field is noticed."""
    jsonschema: Any = importlib.import_module("jsonschema")  # comes with kubernetes-validate
    schema = operator_schema("podmonitors")
    monitor = deploy.of_kind(documents, "PodMonitor")
    jsonschema.validate(monitor, schema)
    misspelt = copy.deepcopy(monitor)
    misspelt["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        jsonschema.validate(misspelt, schema)


def test_both_tools_make_the_same(overlay: str) -> None:
    assert normal(kustomized(overlay), SHARED) == normal(helm(overlay), SHARED)


def test_the_sidecar_is_native_and_has_no_privilege(
    documents: list[Document], overlay: str
) -> None:
    sidecar = deploy.container(documents)
    assert sidecar.get("restartPolicy") == (None if overlay == "gateway" else "Always")
    user = {"runAsUser": 60092} if overlay == "transparent" else {}
    assert sidecar["securityContext"] == NO_PRIVILEGE | user
    assert {"requests", "limits"} <= sidecar["resources"].keys()


def test_the_memory_limit_is_what_unauthenticated_clients_cannot_exceed(
    documents: list[Document],
) -> None:
    """With all that `max.connections` and the budgets allow at once."""
    config = from_mapping(yaml.safe_load(deploy.configuration(documents)), base_dir=Path("/"))
    listeners = [listener.max_connections for listener in config.listeners]
    limit = deploy.container(documents)["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert needed_bytes(listeners, config.workers) <= int(limit[:-2]) << 30


def test_only_the_redirection_has_a_capability(documents: list[Document], overlay: str) -> None:
    pod = deploy.pod(documents)
    capable = {
        one["name"]: one["securityContext"]["capabilities"]["add"]
        for one in [*pod.get("initContainers", ()), *pod["containers"]]
        if "add" in one["securityContext"].get("capabilities", {})
    }
    assert capable == ({"reauth-redirect": ["NET_ADMIN"]} if overlay == "transparent" else {})


def test_what_is_dialled_is_redirected_before_anything_runs() -> None:
    """And to the port of the listener, except for the proxy's own user."""
    documents = kustomized("transparent")
    first, second = deploy.pod(documents)["initContainers"]
    assert (first["name"], second["name"]) == ("reauth-redirect", "reauth-proxy")
    assert "restartPolicy" not in first  # it ends
    environment = {one["name"]: one["value"] for one in first["env"]}
    (listener,) = yaml.safe_load(deploy.configuration(documents))["listeners"]
    assert environment["PROXY_PORT"] == listener["address"].rpartition(":")[2]
    assert environment["PROXY_UID"] == str(second["securityContext"]["runAsUser"])
    script = (DEPLOY / "transparent" / "redirect.sh").read_text()
    assert all(re.search(rf"\b{name}\b", script) for name in environment)


def test_ports_are_those_of_the_configuration(documents: list[Document], overlay: str) -> None:
    config = yaml.safe_load(deploy.configuration(documents))
    ports = {one["name"]: one["containerPort"] for one in deploy.container(documents)["ports"]}
    (listener,) = config["listeners"]
    assert ports == {
        "reauth-clients": int(listener["address"].rpartition(":")[2]),
        "reauth-metrics": int(config["http"]["address"].rpartition(":")[2]),
    }
    (scrape,) = deploy.of_kind(documents, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert scrape["port"] in ports
    policy = deploy.of_kind(documents, "NetworkPolicy")["spec"]
    opened = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    loopback = listener["address"].startswith("127.")
    assert (ports["reauth-clients"] in opened) is not loopback
    assert ports["reauth-metrics"] in opened
    assert loopback is (overlay not in {"ingress", "gateway"})


def test_what_the_workload_serves_stays_open_to_whom_it_may_be() -> None:
    """An application's own ports to everybody; a broker's to its like, or clients would go past."""

    def opened(overlay: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
        values = copy.deepcopy(deploy.values(overlay))
        values["workload"]["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
        documents = deploy.of_text(deploy.templated(values))
        rules = deploy.of_kind(documents, "NetworkPolicy")["spec"]["ingress"]
        rule: dict[str, Any] = rules[-1]
        return rule

    served = [{"name": "http", "containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]
    ports = [{"port": 8080}, {"port": 53, "protocol": "UDP"}]
    assert opened("egress", served) == {"ports": ports}
    alike = [{"podSelector": {"matchLabels": {"reauth-proxy": "reauth-proxy"}}}]
    assert opened("ingress", served) == {"ports": ports, "from": alike}


def test_brokers_are_reached_through_the_proxy_alone() -> None:
    """The broker's listener for the proxy is on loopback and advertises the proxy's port."""
    documents = kustomized("ingress")
    config = yaml.safe_load(deploy.configuration(documents))
    (broker,) = deploy.pod(documents)["containers"]
    environment = {one["name"]: one.get("value") for one in broker["env"]}
    listeners = dict(one.split("://") for one in environment["KAFKA_LISTENERS"].split(","))
    advertised = dict(
        one.split("://") for one in environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )
    assert listeners["CLIENTS"] == config["upstream"]["bootstrap.servers"]
    assert listeners["CLIENTS"].startswith("127.0.0.1:")
    proxy_port = config["listeners"][0]["address"].rpartition(":")[2]
    assert advertised["CLIENTS"].rpartition(":")[2] == proxy_port


@pytest.mark.parametrize("name", ["reauth-proxy", "billing"])
def test_the_alert_for_a_proxy_that_is_down_knows_its_job(name: str) -> None:
    """Whatever the chart's `name`: the operator makes the job NAMESPACE/NAME, then relabels it."""
    documents = deploy.of_text(deploy.templated(deploy.values("egress") | {"name": name}))
    (scrape,) = deploy.of_kind(documents, "PodMonitor")["spec"]["podMetricsEndpoints"]
    (rule,) = scrape["relabelings"]
    assert (rule["sourceLabels"], rule["targetLabel"]) == (["job"], "job")
    job = rule["replacement"].replace("$1", f"shop/{name}")
    assert deploy.JOBS_OF_PROXIES.fullmatch(job)
    assert job.endswith(f"/shop/{name}"), "several proxies are told apart"


def test_selectors_find_the_pods(documents: list[Document]) -> None:
    template = deploy.of_kind(documents, *deploy.WORKLOADS)["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        selector = deploy.of_kind(documents, kind)["spec"]["selector"]
        assert selector["matchLabels"].items() <= labels
    policy = deploy.of_kind(documents, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels


def test_there_is_time_to_drain(documents: list[Document]) -> None:
    config = yaml.safe_load(deploy.configuration(documents))
    pre_stop = deploy.container(documents)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = pre_stop + config["shutdown.drain.ms"] / 1000 + KILL_AFTER
    # Beside it, the main container ends first; Kafka's controlled shutdown may take a minute.
    assert deploy.pod(documents)["terminationGracePeriodSeconds"] >= drain + 60


def test_events_fit_their_volume(documents: list[Document]) -> None:
    """The kubelet evicts a pod whose emptyDir outgrows its limit."""
    config = yaml.safe_load(deploy.configuration(documents))
    (volume,) = (
        one for one in deploy.pod(documents)["volumes"] if one["name"] == "reauth-proxy-events"
    )
    assert volume["emptyDir"]["sizeLimit"] == "2Gi"
    file = config["events"].get("rotate.bytes", 134_217_728)
    assert config["events"]["retention.bytes"] + 2 * file < 2 * 1024**3


def test_the_proxy_takes_the_config_map(documents: list[Document], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "check", str(laid_out(documents, tmp_path))])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("find", "put", "words"),
    [
        ("routing: sidecar", "routing: sidecra", "listeners[0].routing"),
        ("http:", "htpp:", "htpp"),
        ("listeners:", "listeners: [", "line"),
        ("reauth-proxy-tls/tls.key", "reauth-proxy-tls/other.key", "other.key"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    tmp_path: Path, find: str, put: str, words: str
) -> None:
    """It is the container's termination message; until it is fixed nothing else starts."""
    sidecar = deploy.container(kustomized("ingress"))
    assert sidecar["terminationMessagePolicy"] == "FallbackToLogsOnError"
    file = laid_out(kustomized("ingress"), tmp_path)
    file.write_text(file.read_text().replace(find, put))
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "serve", "--config", file],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_keys_of_secrets_are_mounted_by_name(documents: list[Document]) -> None:
    """So that the kubelet names one that is missing, before the pod starts."""
    for volume in deploy.pod(documents)["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["items"]


REFUSED = [
    (overlay, one["values"], one["words"])
    for overlay, rows in load(Path(__file__).with_name("refused.yaml")).items()
    for one in rows
]


@pytest.mark.parametrize(("overlay", "change", "words"), REFUSED)
def test_the_chart_refuses_what_does_not_work(
    overlay: str, change: dict[str, Any], words: str
) -> None:
    values = copy.deepcopy(deploy.values(overlay))
    parts = {"config": values["config"], "listener": values["config"]["listeners"][0]}
    if "workload" in values:
        parts["pod"] = values["workload"]["spec"]["template"]["spec"]
    for key, value in change.items():
        part, _, name = key.partition(".")
        place = parts[part] if name else values
        place[name or key] = value
        if value is None:
            del place[name]
    assert words in deploy.templated(values, check=False)


ENFORCED = {"authorizer": {"mode": "enforce"}}
OWN_STORE = "sqlite:/var/lib/reauth-proxy/state/state.db"
BROKERS_STORE = "broker:/var/lib/reauth-proxy/state/state.db"
USERS = {"users.file": "/etc/reauth-proxy-users/users.json"}


@pytest.mark.parametrize(
    ("config", "mechanism", "words"),
    [
        ({"store": {"url": OWN_STORE}}, "OAUTHBEARER", None),
        ({"store": {"url": OWN_STORE}, **ENFORCED}, "OAUTHBEARER", "each replica has ACLs of"),
        ({"store": {"url": BROKERS_STORE}, **ENFORCED}, "OAUTHBEARER", None),
        ({"store": {"url": OWN_STORE}}, "SCRAM-SHA-256", "each replica has SCRAM users of"),
        ({"store": {"url": BROKERS_STORE}}, "SCRAM-SHA-256", "each replica has SCRAM users of"),
        ({"store": {"url": OWN_STORE} | USERS}, "SCRAM-SHA-256", None),
    ],
)
def test_replicas_of_a_gateway_decide_alike(
    config: dict[str, Any], mechanism: str, words: str | None
) -> None:
    """Replicas share their store, or there is only one."""
    values = copy.deepcopy(deploy.values("gateway"))
    values["config"] |= config
    values["config"]["listeners"][0]["sasl.enabled.mechanisms"] = [mechanism]
    said = deploy.templated(values, check=words is None)
    assert words is None or words in said
    if words is not None and "each replica" in words:
        deploy.templated(values | {"replicas": 1})


NEW_VALUES = ("mode", "liveConfig", "service", "prometheusRule", "dashboards", "report")


@pytest.mark.parametrize("missing", NEW_VALUES)
def test_defaults_of_an_earlier_chart_are_not_enough(missing: str) -> None:
    """As `--reuse-values` has them."""
    said = deploy.templated(deploy.values("ingress") | {missing: None}, check=False)
    assert f"values: {missing} is missing" in said
    assert "upgrade with --reset-then-reuse-values" in said


@pytest.mark.parametrize("overlay", ["ingress", "egress", "transparent"])
def test_values_of_the_previous_chart_mean_the_same(overlay: str) -> None:
    """No value has changed its name, and none its default but the memory limit."""
    with tarfile.open(PREVIOUS) as package:
        found = package.extractfile("kafka-reauth-proxy/values.yaml")
        assert found is not None
        earlier = yaml.safe_load(found.read())
    assert earlier.pop("resources")["limits"] == {"memory": "512Mi"}
    given = earlier | deploy.values(overlay)
    assert deploy.of_text(deploy.templated(given)) == helm(overlay)


def test_a_gateway_advertises_its_service() -> None:
    """The Service has every port that is announced to clients."""
    values = copy.deepcopy(deploy.values("gateway"))
    del values["config"]["listeners"][0]["advertised.host"]
    documents = deploy.of_text(deploy.templated(values | {"name": "front"}))
    (listener,) = yaml.safe_load(deploy.configuration(documents))["listeners"]
    service = deploy.of_kind(documents, "Service")
    assert listener["advertised.host"] == f"{service['metadata']['name']}.default.svc"
    ports = [port["port"] for port in service["spec"]["ports"]]
    assert ports == [9094, 9100, 9101, 9102]
    assert service["spec"]["selector"] == {"reauth-proxy": "front"}


@pytest.mark.parametrize(
    ("given", "volume", "expected"),
    [
        ({}, {}, 1_073_741_824),
        ({"retention.bytes": 1_000_000}, {}, 1_000_000),
        ({"retention.bytes": None}, {}, None),
        ({}, {"persistentVolumeClaim": {"claimName": "events"}}, "its default"),
    ],
)
def test_the_chart_keeps_events_below_its_volume(
    given: dict[str, Any], volume: dict[str, Any], expected: object
) -> None:
    values = copy.deepcopy(deploy.values("gateway"))
    del values["config"]["events"]["retention.bytes"]
    values["config"]["events"] |= given
    documents = deploy.of_text(deploy.templated(values | {"events": volume}))
    events = yaml.safe_load(deploy.configuration(documents))["events"]
    assert events.get("retention.bytes", "its default") == expected


def test_a_claim_takes_the_place_of_an_empty_directory() -> None:
    """The proxy may write to it; it is one replica's, and one pod's after the other."""
    claim = {"persistentVolumeClaim": {"claimName": "state"}}
    values = deploy.values("gateway") | {"state": claim}
    assert "state: replicas would write to one file" in deploy.templated(values, check=False)
    documents = deploy.of_text(deploy.templated(values | {"replicas": 1}))
    pod = deploy.pod(documents)
    volumes = {one.pop("name"): one for one in pod["volumes"]}
    assert volumes["reauth-proxy-state"] == claim
    assert pod["securityContext"]["fsGroup"] == NO_PRIVILEGE["runAsGroup"]
    assert deploy.of_kind(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_node_ports_are_the_ports_that_are_advertised() -> None:
    values = copy.deepcopy(deploy.values("gateway"))
    values["config"]["listeners"][0] |= {
        "address": "0.0.0.0:30094",
        "broker.ports": "30100-30199",
        "advertised.host": "node.example.com",
    }
    values["service"] = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    service = deploy.of_kind(deploy.of_text(deploy.templated(values)), "Service")["spec"]
    assert all(port["nodePort"] == port["port"] for port in service["ports"])
    assert service["externalTrafficPolicy"] == "Local"


def test_brokers_may_have_ports_by_id() -> None:
    values = copy.deepcopy(deploy.values("gateway"))
    values["config"]["listeners"][0]["broker.ports"] = {1001: 9101, 1003: 9103}
    values["service"] = {"brokers": [1001, 1003]}
    values["networkPolicy"] = {"enabled": True, "monitoringNamespace": "monitoring"}
    documents = deploy.of_text(deploy.templated(values))
    service = deploy.of_kind(documents, "Service")["spec"]
    assert [(one["name"], one["port"]) for one in service["ports"]] == [
        ("clients", 9094),
        ("clients-1001", 9101),
        ("clients-1003", 9103),
    ]
    _, clients, *_ = deploy.of_kind(documents, "NetworkPolicy")["spec"]["ingress"]
    assert clients["ports"] == [{"port": 9094}, {"port": 9101}, {"port": 9103}]
    values["service"]["brokers"].append(1002)
    assert "broker 1002 has no port within" in deploy.templated(values, check=False)


def test_brokers_with_names_share_a_port_and_a_route() -> None:
    """Without the Gateway API the load balancer of the Service passes TLS through."""
    values = copy.deepcopy(deploy.values("gateway"))
    listener = values["config"]["listeners"][0]
    del listener["broker.ports"]
    listener |= {
        "advertised.host": "Kafka.example.com",
        "broker.hosts": "broker-$(id).kafka.example.com:443",
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": "/etc/reauth-proxy-tls/tls.crt",
    }
    values["service"] = {"type": "LoadBalancer"}
    values["networkPolicy"] = {"enabled": True, "monitoringNamespace": "monitoring"}
    documents = deploy.of_text(deploy.templated(values))
    (port,) = deploy.of_kind(documents, "Service")["spec"]["ports"]
    assert (port["name"], port["port"]) == ("clients", 9094)
    _, clients, *_ = deploy.of_kind(documents, "NetworkPolicy")["spec"]["ingress"]
    assert clients["ports"] == [{"port": 9094}]
    assert not [one for one in documents if one["kind"] == "TLSRoute"]
    parents = [{"name": "shared", "namespace": "gateways", "sectionName": "kafka"}]
    values["service"] = {"tlsRoute": {"parentRefs": parents}}
    route = deploy.of_kind(deploy.of_text(deploy.templated(values)), "TLSRoute")
    assert route["metadata"]["name"] == f"reauth-proxy-{listener['name']}"
    assert route["spec"] == {
        "parentRefs": parents,
        "hostnames": ["kafka.example.com", "*.kafka.example.com"],
        "rules": [{"backendRefs": [{"name": "reauth-proxy", "port": 9094}]}],
    }
    for hosts in ("kafka.broker-$(id).example.com", "broker-$(id)"):
        listener["broker.hosts"] = hosts
        assert "in the first label of broker.hosts" in deploy.templated(values, check=False)


def test_what_a_registry_and_a_site_add() -> None:
    digest = f"sha256:{'0' * 64}"
    extra: dict[str, Any] = {
        "image": {"digest": digest},
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "more", "emptyDir": {}}],
        "volumeMounts": [{"name": "more", "mountPath": "/more"}],
    }
    for overlay in ("gateway", "egress"):
        documents = deploy.of_text(deploy.templated(deploy.values(overlay) | extra))
        proxy = deploy.container(documents)
        assert proxy["image"] == f"kafka-reauth-proxy@{digest}"
        assert extra["volumeMounts"][0] in proxy["volumeMounts"]
        assert deploy.pod(documents)["imagePullSecrets"] == extra["imagePullSecrets"]
        assert extra["volumes"][0] in deploy.pod(documents)["volumes"]


def test_where_a_site_has_its_gateways(kubernetes: ModuleType) -> None:
    """On which nodes, as whom, for which clients; the report's pods follow, and `helm test`."""
    placement: dict[str, Any] = {
        "nodeSelector": {"pool": "kafka"},
        "tolerations": [{"key": "kafka", "operator": "Exists"}],
        "priorityClassName": "high",
    }
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own: dict[str, Any] = {
        "serviceAccountName": "front",
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [spread],
    }
    networks = {"loadBalancerClass": "a.com/b", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    clients = {"namespaceSelector": {"matchLabels": {"team": "orders"}}}
    values = deploy.values("gateway") | placement | own
    values |= {
        "podLabels": {"team": "kafka"},
        "podAnnotations": {"sidecar.istio.io/inject": "false"},
        "service": {"type": "LoadBalancer"} | networks,
        "networkPolicy": {"clients": [clients]},
        "report": {"enabled": True, "events": "kafka:a", "bootstrapServers": "kafka:9092"},
    }
    documents = [
        one for one in deploy.of_text(deploy.templated(values)) if one["kind"] != "PodMonitor"
    ]
    for document in documents:
        kubernetes.validate(document, newest(kubernetes)[-1], strict=True)
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    gateway = by_name["Deployment", "reauth-proxy"]["spec"]["template"]
    page = by_name["Deployment", "reauth-proxy-report"]["spec"]["template"]
    run = by_name["CronJob", "reauth-proxy-report"]["spec"]["jobTemplate"]["spec"]["template"]
    test = by_name["Pod", "reauth-proxy-test"]
    assert own.items() <= gateway["spec"].items()
    for pod in (gateway, page, run, test):
        assert placement.items() <= pod["spec"].items()
    for pod in (gateway, page, run):
        labels = {"team": "kafka", "app.kubernetes.io/name": "kafka-reauth-proxy"}
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["annotations"] == values["podAnnotations"]
    assert networks.items() <= by_name["Service", "reauth-proxy"]["spec"].items()
    *_, rule = by_name["NetworkPolicy", "reauth-proxy"]["spec"]["ingress"]
    given, of_test = rule["from"]
    assert given == clients
    assert of_test["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


def test_rules_and_dashboards_are_options() -> None:
    """Absolute addresses of runbooks, and no operator resources without the operator."""
    values = deploy.values("gateway") | {
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "runbooks": "https://wiki.example.com/runbooks/",
        },
        "podMonitor": {"labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True},
    }
    documents = deploy.of_text(deploy.templated(values))
    rule = deploy.of_kind(documents, "PrometheusRule")
    monitor = deploy.of_kind(documents, "PodMonitor")
    assert all(one["metadata"]["labels"]["release"] == "prometheus" for one in (rule, monitor))
    shipped = [load(DEPLOY / f"prometheus/{name}.rules.yaml") for name in ("recording", "alerts")]
    text = json.dumps([group for rules in shipped for group in rules["groups"]])
    text = text.replace("docs/runbooks.md#", "https://wiki.example.com/runbooks#")
    assert rule["spec"]["groups"] == json.loads(text)
    (dashboards,) = (
        one["data"] for one in documents if one["metadata"]["name"] == "reauth-proxy-dashboards"
    )
    assert {json.loads(text)["title"] for text in dashboards.values()}
    without = deploy.of_text(deploy.templated(values, operator=False))
    assert not any(one["apiVersion"].startswith("monitoring.") for one in without)


def test_a_transparent_listener_without_redirection_is_refused() -> None:
    values = deploy.values("transparent") | {"redirect": {"enabled": False}}
    assert "redirect.enabled: true" in deploy.templated(values, check=False)


def test_many_listeners_have_ports_that_can_be_named(kubernetes: ModuleType) -> None:
    """A port's name has 15 characters at most; the transparent listener need not be the first."""
    values = copy.deepcopy(deploy.values("transparent"))
    (listener,) = values["config"]["listeners"]
    gateways = [
        listener
        | {
            "name": f"gate{number}",
            "address": f"0.0.0.0:{20_000 + number}",
            "routing": "gateway",
            "advertised.host": "gate",
            "broker.ports": f"{21_000 + number}-{21_000 + number}",
        }
        for number in range(12)
    ]
    values["config"]["listeners"] = [*gateways, listener]
    values["config"]["upstream"]["bootstrap.servers"] = "kafka:9092"
    documents = deploy.of_text(deploy.templated(values))
    names = [port["name"] for port in deploy.container(documents)["ports"]]
    assert len(set(names)) == 14
    kubernetes.validate(deploy.of_kind(documents, "Deployment"), newest(kubernetes)[-1])
    assert max(map(len, names)) <= 15
    redirect = {
        one["name"]: one["value"] for one in deploy.container(documents, "reauth-redirect")["env"]
    }
    assert redirect["PROXY_PORT"] == "9094"


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (CHART / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("values", EXAMPLES)
def test_the_charts_examples_are_whole(kubernetes: ModuleType, values: str, tmp_path: Path) -> None:
    """The values that `helm show readme` shows can be installed, and the proxy takes them."""
    documents = deploy.of_text(deploy.templated(yaml.safe_load(values), operator=False))
    for document in documents:
        kubernetes.validate(document, newest(kubernetes)[-1], strict=True)
    if any(one["kind"] == "ConfigMap" for one in documents):
        done = CliRunner().invoke(app, ["config", "check", str(laid_out(documents, tmp_path))])
        assert (done.exit_code, done.stderr) == (0, "")


def test_the_charts_schema_is_as_it_would_be_generated() -> None:
    """The schema of `config` in it is the proxy's own."""
    program = [sys.executable, str(DEPLOY / "helm" / "schema.py"), "--check"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    assert given.keys() <= schema["properties"].keys()
