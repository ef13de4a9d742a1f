"""Kubernetes on this machine: a real API server, scheduler, controllers and kubelet, on one node.

Ready when the node is and a pod's service account exists, not when a port opens.
"""

import json
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.support.certificates import Authority
from tests.support.deploy import find, operator_definition
from tests.support.kubernetes import dns, images, node, programs
from tests.support.kubernetes.node import ADDRESS, Node

Document = dict[str, Any]

PODS: Final = "10.244.0.0/24"
GATEWAY: Final = "10.244.0.1"
"""The node's address for pods."""
SERVICES: Final = "10.96.0.0/16"
DNS_DOMAIN: Final = "cluster.local"
DEADLINE_SECONDS: Final = 600.0
"""Timeout for a busy machine; never reached when the code works."""
OF_THE_OPERATOR: Final = ("podmonitors", "prometheusrules")
"""Custom resources of the Prometheus operator in the manifests."""
_POLL_SECONDS: Final = 0.2
_API: Final = f"https://{ADDRESS}:6443"
_CONTAINERD: Final = "/run/containerd/containerd.sock"


class ClusterFailed(Exception):
    """A condition did not become true; the message describes the state."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Exit status and output of kubectl."""

    exit_status: int
    stdout: str
    stderr: str


class Cluster:
    """A running cluster; its users are in the node's network namespace."""

    def __init__(self, directory: Path, node: Node) -> None:
        self.directory = directory
        self.node = node
        self._programs = programs.kubernetes()
        self._debian = programs.debian()

    # --- requests

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run kubectl, which must succeed; return its output."""
        done = self.try_kubectl(*arguments, stdin=stdin)
        assert done.exit_status == 0, f"kubectl {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    def try_kubectl(self, *arguments: str | Path, stdin: str | None = None) -> Finished:
        """Run kubectl as the cluster's administrator."""
        done = subprocess.run(
            [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def helm(self, *arguments: str | Path, values: Document | None = None) -> Finished:
        """Run Helm as the cluster's administrator, with these values."""
        file = self.directory / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        given = [] if values is None else [f"--values={file}"]
        done = subprocess.run(
            [find("helm"), f"--kubeconfig={self.kubeconfig}", *arguments, *given],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def get(self, *arguments: str) -> Any:
        """Return an object or a list from the API server."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def objects(self, kind: str) -> list[Document]:
        """Return all objects of a kind of the core API, without starting kubectl."""
        here = self.directory
        trust = ssl.create_default_context(cafile=str(here / "ca.pem"))
        trust.load_cert_chain(here / "admin.crt", here / "admin.key")
        with closing(HTTPSConnection(ADDRESS, 6443, context=trust, timeout=30)) as connection:
            connection.request("GET", f"/api/v1/{kind}")
            items: list[Document] = json.loads(connection.getresponse().read())["items"]
        return items

    def apply(self, *documents: Document, namespace: str = "default") -> str:
        """Apply objects; return kubectl's output."""
        text = yaml.safe_dump_all(documents)
        return self.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=text)

    def events(self, namespace: str) -> str:
        """Events of a namespace, for error messages."""
        return self.kubectl("get", "events", f"--namespace={namespace}", "--sort-by=.lastTimestamp")

    def wait(self, condition: Callable[[], bool], *, what: str, namespace: str) -> float:
        """Poll until a condition holds; return the seconds that it took."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > DEADLINE_SECONDS:
                pods = self.kubectl("get", "pods", "--output=wide", f"--namespace={namespace}")
                raise ClusterFailed(f"{what}\n{pods}\n{self.events(namespace)}")
            self.node.check()
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - started

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self.directory / "admin.kubeconfig"

    # --- starting

    def start(self, archives: list[Path], definitions: list[Path]) -> None:
        """Start everything, import the images, wait for the node, and send definitions."""
        self._write_certificates()
        self._start_control_plane()
        self._start_runtime()
        self.load(archives)
        self._start_kubelet()
        self.wait(self._is_ready, what="the cluster is not ready", namespace="default")
        self.define(*definitions)

    def define(self, *files: Path) -> None:
        """Send definitions of custom resources; return when the API server has them."""
        for file in files:
            self.kubectl("apply", "--server-side", f"--filename={file}")
            self.wait(
                partial(self._is_established, file),
                what=f"{file.name} is not established",
                namespace="default",
            )

    def _is_established(self, file: Path) -> bool:
        options = ("--for=condition=Established", "--timeout=1s", f"--filename={file}")
        return self.try_kubectl("wait", *options).exit_status == 0

    def load(self, archives: Iterable[Path]) -> None:
        """Load images into the node."""
        for archive in archives:
            self.node.run(*self._ctr, "images", "import", archive)

    def _is_ready(self) -> bool:
        account = self.try_kubectl("get", "serviceaccount", "default")
        ready = self.try_kubectl(
            "wait", f"node/{node.NAME}", "--for=condition=Ready", "--timeout=1s"
        )
        return account.exit_status == ready.exit_status == 0

    @property
    def _ctr(self) -> list[str | Path]:
        return [self._debian / "usr/bin/ctr", "--address", _CONTAINERD, "--namespace", "k8s.io"]

    def _write_certificates(self) -> None:
        authority = Authority("cluster")
        authority.write(self.directory, "ca.pem")
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        hosts = (*names, ADDRESS, "127.0.0.1", "10.96.0.1", node.NAME)
        for user, group in (
            ("admin", "system:masters"),
            ("apiserver", "system:masters"),
            ("system:kube-controller-manager", ""),
            ("system:kube-scheduler", ""),
            ("system:kube-proxy", ""),
            (f"system:node:{node.NAME}", "system:nodes"),
        ):
            attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
            if group:
                attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
            issued = authority.issue(hosts=hosts, subject=x509.Name(attributes))
            self._write_kubeconfig(user.rpartition(":")[2], issued.certificate, issued.key)

    def _write_kubeconfig(self, name: str, certificate: bytes, key: bytes) -> None:
        (self.directory / f"{name}.crt").write_bytes(certificate)
        (self.directory / f"{name}.key").write_bytes(key)
        here = str(self.directory)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "own",
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
            "clusters": [
                {
                    "name": "own",
                    "cluster": {"server": _API, "certificate-authority": f"{here}/ca.pem"},
                }
            ],
            "users": [
                {
                    "name": "own",
                    "user": {
                        "client-certificate": f"{here}/{name}.crt",
                        "client-key": f"{here}/{name}.key",
                    },
                }
            ],
        }
        (self.directory / f"{name}.kubeconfig").write_text(yaml.safe_dump(config))

    def _start_control_plane(self) -> None:
        here = self.directory
        etcd = "http://127.0.0.1:2379"
        self.node.start(
            "etcd",
            [
                self._debian / "usr/bin/etcd",
                "--data-dir=/run/etcd",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
        )
        self.node.start(
            "kube-apiserver",
            [
                self._programs / "kube-apiserver",
                f"--etcd-servers={etcd}",
                f"--advertise-address={ADDRESS}",
                f"--service-cluster-ip-range={SERVICES}",
                f"--client-ca-file={here}/ca.pem",
                f"--tls-cert-file={here}/apiserver.crt",
                f"--tls-private-key-file={here}/apiserver.key",
                f"--kubelet-certificate-authority={here}/ca.pem",
                f"--kubelet-client-certificate={here}/apiserver.crt",
                f"--kubelet-client-key={here}/apiserver.key",
                "--kubelet-preferred-address-types=InternalIP",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={here}/apiserver.crt",
                f"--service-account-signing-key-file={here}/apiserver.key",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
            ],
        )
        healthy = ("get", "--raw", "/healthz")  # the controllers wait for that, but not for long
        self.wait(
            lambda: self.try_kubectl(*healthy).exit_status == 0,
            what="the API server is not healthy",
            namespace="default",
        )
        self._start_with_kubeconfig(
            "kube-controller-manager",
            "--leader-elect=false",
            f"--root-ca-file={here}/ca.pem",
            f"--service-account-private-key-file={here}/apiserver.key",
            "--use-service-account-credentials=true",
        )
        self._start_with_kubeconfig("kube-scheduler", "--leader-elect=false")

    def _start_with_kubeconfig(self, name: str, *options: str) -> None:
        config = f"--kubeconfig={self.directory}/{name}.kubeconfig"
        self.node.start(name, [self._programs / name, config, *options])

    def _start_runtime(self) -> None:
        run_time = self._debian / "usr"
        cri = 'io.containerd.grpc.v1.cri"'
        (self.directory / "containerd.toml").write_text(
            f"""
version = 2
root = "/run/node/containerd" # no overlay can be on top of another
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{_CONTAINERD}"
[plugins."{cri}]
sandbox_image = "{images.MACHINE}"
restrict_oom_score_adj = true # not everywhere may root lower it
[plugins."{cri}.cni]
bin_dir = "{run_time}/lib/cni"
conf_dir = "{self.directory}/cni"
[plugins."{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}.containerd.runtimes.runc.options]
BinaryName = "{run_time}/sbin/runc"
"""
        )
        (self.directory / "cni").mkdir()
        ranges = [[{"subnet": PODS, "gateway": GATEWAY}]]
        address = {"type": "host-local", "dataDir": "/run/cni", "ranges": ranges}
        bridge = {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {**address, "routes": [{"dst": "0.0.0.0/0"}]},
        }
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
        (self.directory / "cni/10-pods.conflist").write_text(json.dumps(network))
        self.node.start(
            "containerd",
            [run_time / "bin/containerd", "--config", self.directory / "containerd.toml"],
            PATH=f"{run_time}/bin:{run_time}/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        self.wait(self._answers, what="containerd does not answer", namespace="default")

    def _answers(self) -> bool:
        try:
            self.node.run(*self._ctr, "version")
        except AssertionError:
            return False
        return True

    def _start_kubelet(self) -> None:
        here = self.directory
        (here / "resolv.conf").write_text("")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{here}/ca.pem"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{here}/node.crt",
            "tlsPrivateKeyFile": f"{here}/node.key",
            "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "cgroupRoot": self.node.cgroup,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "clusterDNS": [ADDRESS],
            "clusterDomain": DNS_DOMAIN,
            "resolvConf": f"{here}/resolv.conf",
            "podLogsDir": "/var/log/pods",
            "volumePluginDir": "/var/lib/plugins",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"nodefs.available": "1%", "memory.available": "100Mi"},
        }
        (here / "kubelet.yaml").write_text(yaml.safe_dump(config))
        self.node.start(
            "kubelet",
            [
                self._programs / "kubelet",
                f"--config={here}/kubelet.yaml",
                f"--kubeconfig={here}/node.kubeconfig",
                "--root-dir=/run/node/kubelet",
                f"--hostname-override={node.NAME}",
                f"--node-ip={ADDRESS}",
            ],
        )
        self._start_with_kubeconfig(
            "kube-proxy",
            "--proxy-mode=nftables",
            f"--hostname-override={node.NAME}",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",
        )


@contextmanager
def running() -> Iterator[Cluster]:
    """Run a cluster with the proxy's images, with this thread in the node's network namespace."""
    directory = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    try:
        own = Node(directory)
        # Downloads on first use, while the network is reachable.
        cluster = Cluster(directory, own)
        archives = [*images.proxy(), images.machine(directory)]
        definitions = list(map(operator_definition, OF_THE_OPERATOR))
        images.mounts()
        with own.running(), own.entered():
            cluster.start(archives, definitions)
            with dns.serving(ADDRESS, DNS_DOMAIN, cluster.objects):
                yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)
