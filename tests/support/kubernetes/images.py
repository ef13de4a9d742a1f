"""Images of the cluster: the proxy's, and one for all other programs in pods.

The second holds busybox and nothing else. Its containers mount the programs of this machine (Java,
Kafka's jars, Python and its packages), so that no image has to be fetched.
"""

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.deploy import DEPLOY, ROOT
from tests.support.kafka import java
from tests.support.kubernetes import programs

MACHINE: Final = "docker.io/library/machine:1"
_BUILD_SECONDS: Final = 1_800
_DIRECTORIES: Final = ("busybox", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")


def proxy() -> list[Path]:
    """Archives of the proxy's images, built from this checkout with deploy/Dockerfile."""
    return _built("images", "proxy", "redirect")


def report() -> list[Path]:
    """Archive of the report's image, built the same way."""
    return _built("report-image", "report")


def _built(name: str, *targets: str) -> list[Path]:
    made = programs.cache_directory() / f"{name}-{_digest()}"
    with programs.made_once(made) as into:
        if into is not None:
            _build(into, targets)
    return sorted(made.glob("*.tar"))


def machine(into: Path) -> Path:
    """Archive of the image for other programs; it also serves as sandbox image."""
    root = into / "machine"
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")  # the machine's, once they are mounted
    shutil.copy(programs.debian() / "bin/busybox", root / "busybox/busybox")
    for name in ("cat", "nc", "sh", "sleep", "wget"):
        (root / "busybox" / name).symlink_to("busybox")
    script = runpy.run_path(str(DEPLOY / "build_root.py"))
    command = ["/busybox/sleep", "2147483647"]
    stage = script["Stage"](root=root, entrypoint=command, environment={"PATH": "/busybox:/bin"})
    script["archive"](stage, MACHINE, into / "machine.tar")
    return into / "machine.tar"


_SOURCES: Final = (
    *("Dockerfile", "build_root.py", "image_root.py", "transparent"),
    *("report/nginx.conf", "spark/entrypoint.sh", "spark/submit.py"),
    *("../metrics", "../proxy", "../pyproject.toml", "../requirements", "../sasl"),
)
"""Inputs of the images."""


def _digest() -> str:
    """Digest of everything that deploy/Dockerfile copies, and of the builder."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        path = (DEPLOY / source).resolve()
        for file in [path] if path.is_file() else sorted(path.rglob("*.*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _build(into: Path, targets: Iterable[str]) -> None:
    certificates = os.environ.get("PIP_CERT")
    options = ["--certificates", certificates] if certificates else []
    options += [f"--target={each}" for each in targets]
    base = programs.cache_directory() / "image-base"
    with programs.made_once(base) as new:
        if new is not None:
            command = ["debootstrap", "--variant=minbase", "bookworm", str(new)]
            subprocess.run(command, stdout=sys.stderr, check=True, timeout=_BUILD_SECONDS)
    work = into / "stages"
    script = str(DEPLOY / "build_root.py")
    subprocess.run(
        [sys.executable, script, "--into", work, "--base", base, "--archives", *options],
        stdout=sys.stderr,
        check=True,
        timeout=_BUILD_SECONDS,
    )
    for archive in work.glob("*.tar"):
        archive.rename(into / archive.name)
    shutil.rmtree(work)


def mounts() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read-only volumes and mounts with this machine's programs.

    That is Java, Kafka's jars, this Python with its packages, and this checkout.
    """
    jars = Path(java.class_path().removesuffix("/*"))
    packages = Path(yaml.__file__).parents[1]
    links = {path.resolve().parent for path in packages.iterdir() if path.is_symlink()}
    needed = {Path("/usr"), Path("/etc/ssl"), *Path("/etc").glob("java*"), java_home()}
    needed |= {ROOT, packages, *links, jars}
    needed |= {Path(sys.prefix), Path(sys.base_prefix)}
    outermost = [path for path in needed if not needed & {*path.parents}]
    volumes, mounted = [], []
    for number, path in enumerate(sorted(outermost)):
        volumes.append({"name": f"machine-{number}", "hostPath": {"path": str(path)}})
        mounted.append({"name": f"machine-{number}", "mountPath": str(path), "readOnly": True})
    return volumes, mounted


def java_home() -> Path:
    """Directory of Java, on this machine and in pods."""
    return Path(shutil.which("java") or "").resolve().parents[1]


def python() -> str:
    """Path of this Python in a pod with the mounts."""
    return sys.executable
