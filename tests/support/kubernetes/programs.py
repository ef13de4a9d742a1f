"""Kubernetes' programs, built from Go modules and unpacked from Debian packages once.

Both are kept in the user's cache: the build takes a quarter of an hour of CPU.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.deploy import find

VERSION: Final = "1.37.2"
_GO: Final = (
    "kubectl",
    "kube-apiserver",
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
)
_PACKAGES: Final = (
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "etcd-server",
    "runc",
)
_MODULE: Final = Path(__file__).with_name("module")
_BUILD_SECONDS: Final = 7_200
_FETCH_SECONDS: Final = 600


def kubernetes() -> Path:
    """Directory of Kubernetes' own programs."""
    digest = hashlib.sha256((_MODULE / "go.sum").read_bytes()).hexdigest()[:12]
    made = cache_directory() / f"kubernetes-{VERSION}-{digest}"
    with made_once(made) as into:
        if into is not None:
            _build(into)
    return made


def debian() -> Path:
    """Root directory of etcd, containerd, runc, the CNI plug-ins and busybox."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line
    )
    made = cache_directory() / f"node-{release.get('VERSION_CODENAME', 'debian')}"
    with made_once(made) as into:
        if into is not None:
            _unpack(into)
    return made


def cache_directory() -> Path:
    """The user's cache directory, shared by checkouts."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "reauth-proxy"


@contextmanager
def made_once(made: Path) -> Iterator[Path | None]:
    """Yield a directory to fill, renamed once it is complete; None if it exists."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_name(f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.is_dir():
            yield None
            return
        partial = made.with_name(f"{made.name}.new")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        partial.rename(made)


def _build(into: Path) -> None:
    version = {
        "k8s.io/component-base/version.gitVersion": f"v{VERSION}",
        "k8s.io/component-base/version.gitMajor": VERSION.split(".")[0],
        "k8s.io/component-base/version.gitMinor": VERSION.split(".")[1],
    }
    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in version.items())])
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in _GO]
    options = ["-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", f"{into}/"]
    subprocess.run(
        [find("go"), "build", *options, *packages],
        cwd=_MODULE,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
        timeout=_BUILD_SECONDS,
    )


def _unpack(into: Path) -> None:
    with _downloads(into) as directory:
        for package in sorted(directory.glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, into], check=True, timeout=_FETCH_SECONDS)


@contextmanager
def _downloads(into: Path) -> Iterator[Path]:
    directory = into / "packages"
    directory.mkdir()
    # A sandboxed apt may not write to the cache.
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *_PACKAGES]
    known = subprocess.run(command, cwd=directory, capture_output=True, timeout=_FETCH_SECONDS)
    if known.returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True, timeout=_FETCH_SECONDS)
        subprocess.run(command, cwd=directory, check=True, timeout=_FETCH_SECONDS)
    yield directory
    shutil.rmtree(directory)
