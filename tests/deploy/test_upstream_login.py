"""The chart and a patch mount the proxy's credentials for brokers in the pod."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from proxy.config import from_mapping, load
from proxy.config.values import Secret
from tests.support import deploy
from tests.support.deploy import ROOT, Document, kustomized, laid_out, newest

LOGIN = "/etc/reauth-proxy-login"
RUN = "/var/run/reauth-proxy-brokers"
SECRET = {"name": "login", "secretName": "kafka-login", "mountPath": LOGIN}
TOKEN = {"name": "brokers", "audience": "kafka", "mountPath": RUN}

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "password": (
        {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "reauth-proxy",
            "sasl.password": f"file:{LOGIN}/password",
        },
        {"secrets": [SECRET | {"keys": ["password"]}]},
    ),
    "client credentials": (
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "https://idp.example.com/token",
            "sasl.oauthbearer.client.credentials.client.id": "reauth-proxy",
            "sasl.oauthbearer.client.credentials.client.secret": f"file:{LOGIN}/client-secret",
        },
        {"secrets": [SECRET | {"keys": ["client-secret"]}]},
    ),
    "service account": (
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file:{RUN}/token",
        },
        {"tokens": [TOKEN]},
    ),
}


def rendered(way: str) -> list[Document]:
    upstream, more = WAYS[way]
    values = deploy.values("egress") | more
    values["config"]["upstream"] |= {"security.protocol": "SASL_SSL", **upstream}
    return [one for one in yaml.safe_load_all(deploy.templated(values)) if one]


def mounted(documents: list[Document]) -> set[str]:
    """The files that volumes bring into the container, except those of ConfigMaps."""
    volumes = {one["name"]: one for one in deploy.pod(documents)["volumes"]}
    found = set()
    for mount in deploy.container(documents)["volumeMounts"]:
        volume = volumes[mount["name"]]
        files = [item["path"] for item in volume.get("secret", {}).get("items", [])]
        for source in volume.get("projected", {}).get("sources", []):
            files.append(source["serviceAccountToken"]["path"])
        found |= {f"{mount['mountPath']}/{name}" for name in files}
        assert mount.get("readOnly", False) or not files
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_the_login_reads_is_mounted(way: str, tmp_path: Path, kubernetes: ModuleType) -> None:
    documents = rendered(way)
    kubernetes.validate(deploy.of_kind(documents, "Deployment"), "1.34", strict=True)
    file = laid_out(documents, tmp_path)
    upstream = load(file).upstream
    read = [upstream.token_file()]
    for secret in (
        upstream.sasl_password,
        upstream.sasl_oauthbearer_client_credentials_client_secret,
    ):
        read.append(secret.path if isinstance(secret, Secret) else None)
    assert {str(one).removeprefix(str(tmp_path)) for one in read if one} == mounted(documents)


def test_a_token_lives_for_an_hour_unless_said_otherwise() -> None:
    """Kubernetes' own least is ten minutes."""

    def source(**more: Any) -> dict[str, Any]:
        values = deploy.values("egress") | {"tokens": [TOKEN | more]}
        documents = list(yaml.safe_load_all(deploy.templated(values)))
        volumes = deploy.pod([one for one in documents if one])["volumes"]
        (projected,) = (one["projected"] for one in volumes if "projected" in one)
        (found,) = projected["sources"]
        account: dict[str, Any] = found["serviceAccountToken"]
        return account

    assert source() == {"audience": "kafka", "expirationSeconds": 3600, "path": "token"}
    assert source(expirationSeconds=2_000_000)["expirationSeconds"] == 2_000_000
    values = deploy.values("egress") | {"tokens": [TOKEN | {"expirationSeconds": 599}]}
    assert "expirationSeconds" in deploy.templated(values, check=False)


def test_the_environment_is_the_proxys(kubernetes: ModuleType) -> None:
    """A password in a Secret's key, and whom to believe; without any there is no such key."""
    password = {"secretKeyRef": {"name": "kafka-login", "key": "password"}}
    env = [
        {"name": "SSL_CERT_FILE", "value": "/etc/reauth-proxy-idp/ca.crt"},
        {"name": "BROKER_PASSWORD", "valueFrom": password},
    ]

    def documents(**more: Any) -> list[Document]:
        values = deploy.values("egress") | more
        return [one for one in yaml.safe_load_all(deploy.templated(values)) if one]

    kubernetes.validate(deploy.of_kind(documents(env=env), "Deployment"), "1.34", strict=True)
    assert deploy.container(documents(env=env))["env"] == env
    assert "env" not in deploy.container(documents())
    assert "env" in deploy.templated(deploy.values("egress") | {"env": {}}, check=False)


def test_the_patch_of_the_page_says_what_the_chart_makes() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = (one for one in page.split("```yaml\n")[1:] if "serviceAccountToken" in one)
    patch = yaml.safe_load(block.partition("```")[0])["spec"]["template"]["spec"]
    documents = rendered("service account")
    (container,) = patch["initContainers"]
    assert container["name"] == "reauth-proxy"
    (mount,) = container["volumeMounts"]
    assert mount in deploy.container(documents)["volumeMounts"]
    (volume,) = patch["volumes"]
    assert volume in deploy.pod(documents)["volumes"]


@pytest.mark.parametrize(
    ("cloud", "provider", "annotation"),
    [
        ("eks", "aws-msk-iam", "eks.amazonaws.com/role-arn"),
        ("gke", "gcp", "iam.gke.io/gcp-service-account"),
        ("aks", "azure", "azure.workload.identity/client-id"),
    ],
)
def test_the_pod_has_the_identity_of_its_service_account(
    cloud: str, provider: str, annotation: str, kubernetes: ModuleType
) -> None:
    documents = kustomized(f"egress-{cloud}")
    for document in documents:
        if document["kind"] != "PodMonitor":
            kubernetes.validate(document, newest(kubernetes)[-1], strict=True)
    (account,) = (one for one in documents if one["kind"] == "ServiceAccount")
    assert annotation in account["metadata"]["annotations"]
    assert deploy.pod(documents)["serviceAccountName"] == account["metadata"]["name"]
    (workload,) = (one for one in documents if one["kind"] == "Deployment")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert labels.get("azure.workload.identity/use") == ("true" if cloud == "aks" else None)
    config = from_mapping(yaml.safe_load(deploy.configuration(documents)), base_dir=Path("/"))
    assert config.upstream.sasl_login_provider == provider
    (policy,) = (one for one in documents if one["kind"] == "NetworkPolicy")
    open_ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert {443, config.upstream.bootstrap_servers[0].port} <= open_ports
