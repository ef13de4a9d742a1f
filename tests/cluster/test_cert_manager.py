"""The webhook with cert-manager's certificate: real definitions, and its part played by a test."""

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from proxy.kubernetes.injection import INJECTED
from tests.support import deploy
from tests.support.certificates import Authority
from tests.support.kubernetes import producing, shapes
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.release import restarts, secret
from tests.support.kubernetes.webhooks import SYSTEM, WEBHOOK, applied, dry_run, pods

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)


@pytest.fixture
def definitions(cluster: Cluster) -> Iterator[None]:
    """Certificate and Issuer, as cert-manager defines them."""
    files = []
    for plural in ("certificates", "issuers"):
        files.append(cluster.directory / f"{plural}.yaml")
        with cluster.node.left():
            definition = deploy.cert_manager_definition(plural)
        files[-1].write_text(yaml.safe_dump(definition))
    cluster.define(*files)
    yield
    cluster.kubectl("delete", *(f"--filename={file}" for file in files))


class CertManager:
    """What its controller and its cainjector do, from what the objects say."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def issue(self) -> None:
        """Write a certificate of a new authority where the Certificate says."""
        authority = Authority()
        wanted = self._wanted()["spec"]
        issued = authority.issue(hosts=tuple(wanted["dnsNames"]))
        files = {
            "tls.crt": issued.certificate.decode(),
            "tls.key": issued.key.decode(),
            "ca.crt": authority.certificate.decode(),
        }
        document = secret(wanted["secretName"], **files) | {"type": "kubernetes.io/tls"}
        self._cluster.apply(document, namespace=SYSTEM)

    def inject(self) -> None:
        """Put its authority into the configuration that is annotated."""
        name = self._wanted()["spec"]["secretName"]
        held = self._cluster.get("secret", name, f"--namespace={SYSTEM}")["data"]["ca.crt"]
        path = "/webhooks/0/clientConfig/caBundle"
        patch = [{"op": "add", "path": path, "value": held}]
        options = ("--type=json", f"--patch={yaml.safe_dump(patch, default_flow_style=True)}")
        self._cluster.kubectl("patch", "mutatingwebhookconfiguration", "reauth-proxy", *options)

    def _wanted(self) -> Any:
        """The Certificate that the configuration's annotation names."""
        found = self._cluster.get("mutatingwebhookconfiguration", "reauth-proxy")
        source = found["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        namespace, _, name = source.partition("/")
        return self._cluster.get("certificate", name, f"--namespace={namespace}")


@pytest.mark.usefixtures("definitions")
def test_a_renewed_certificate_is_followed(cluster: Cluster, namespace: str) -> None:
    """The API server knows the new authority alone, and no pod of the webhook is replaced."""
    with applied(cluster, "webhook-cert-manager"):
        manager = CertManager(cluster)
        manager.issue()
        manager.inject()
        producing.wait_ready(cluster, WEBHOOK, SYSTEM)
        before = pods(cluster)

        def works() -> bool:
            for name in before:  # the kubelet looks at a pod's volumes when the pod changes
                changed = ("annotate", "pod", name, f"--namespace={SYSTEM}", "--overwrite")
                cluster.kubectl(*changed, f"seen={uuid.uuid4()}")
            done = dry_run(cluster, namespace, shapes.pod(shapes.EGRESS))
            assert done.exit_status == 0 or "failed calling webhook" in done.stderr
            return INJECTED in done.stdout

        cluster.wait(works, what="the webhook is not believed", namespace=SYSTEM)
        manager.issue()
        manager.inject()
        took = cluster.wait(works, what="the renewed certificate is not used", namespace=SYSTEM)
        log.info("the renewed certificate was used after %.1f s", took)
        after = pods(cluster)
        assert after.keys() == before.keys()
        assert restarts(after) == 0
