"""Builds the image's root directory without a container engine, and measures it.

    python deploy/build_root.py --into DIR [--base DIR] [--certificates FILE] [--archives]
        [--target STAGE]

Reads deploy/Dockerfile and carries out its steps, each stage in a directory of its own by chroot.
It refuses instructions that it does not understand, so the result is that of the Dockerfile. The
base image is a directory made by debootstrap (`--variant=minbase`), unless one is given.

Needs root and debootstrap, on Debian. Prints the figures as one line of JSON. With `--archives` it
writes the images as well, DIR/proxy.tar and so on, for `docker load --input`. `--target` names an
image: proxy, redirect or report; it may be repeated, and all three are made without it.
"""

# ruff: noqa: S603, S607, T201 - a script, for the person or the job that runs it

import argparse
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DOCKERFILE = PROJECT / "deploy" / "Dockerfile"
_STEP_SECONDS = 1800
_CHROOT = shutil.which("chroot") or "chroot"
_START_SECONDS = 30
_CERTIFICATES = "run/build-certificates.pem"
_JAVA_CERTIFICATES = "run/build-certificates.jks"
_JAVA_CERTIFICATES_HERE = Path("/etc/ssl/certs/java/cacerts")
IMAGES = {
    "proxy": "kafka-reauth-proxy",
    "redirect": "kafka-reauth-proxy-redirect",
    "report": "kafka-reauth-proxy-report",
}
"""The images by their stages, under the names that the manifests have for them."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"
_EPOCH = 1580601600
"""The time of every file in an archive, so that the same content is the same image."""
_CONFIG = """
upstream: {bootstrap.servers: "127.0.0.1:19092"}
listeners:
  - name: clients
    address: 127.0.0.1:0
    routing: sidecar
    sasl.enabled.mechanisms: [SCRAM-SHA-256]
store: {url: "sqlite:/tmp/state.db"}
"""


_WITH_PROC = """
mount -t proc proc "$1/proc"
exec "$CHROOT" "$1" /bin/sh -ec "$2"
"""
"""Shell: run a command in a root directory that has /proc, which Java wants."""


class NotUnderstoodError(Exception):
    """An instruction that this script cannot carry out as a container engine would."""


@dataclass(slots=True)
class Stage:
    """A stage of the Dockerfile: its root directory, and how its image is started."""

    root: Path
    directory: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """Split a Dockerfile into (instruction, rest); comments and continuations are resolved."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [
        (words[0].upper(), words[1].strip())
        for line in whole.splitlines()
        if (words := line.split(None, 1))
    ]


def needed(steps: list[tuple[str, str]], targets: Iterable[str]) -> list[tuple[str, str]]:
    """Leave out the stages that are not part of any target, as a container engine does."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for instruction, rest in steps:
        if instruction == "FROM":
            name = rest.split()[-1]
        stages.setdefault(name, []).append((instruction, rest))
    wanted, found = list(targets), set()
    while wanted:
        found.add(name := wanted.pop())
        for instruction, rest in stages[name]:
            source = rest.split()[0].removeprefix("--from=")
            if instruction in ("FROM", "COPY") and source in stages:
                wanted.append(source)
    return [step for name, all_of_it in stages.items() if name in found for step in all_of_it]


class Build:
    """The stages built so far."""

    def __init__(self, into: Path, base: Path, certificates: Path | None) -> None:
        self._into = into
        self._base = base
        self._certificates = certificates
        self.stages: dict[str, Stage] = {}
        self._stage: Stage | None = None

    @property
    def stage(self) -> Stage:
        """The stage that is being built; after the last instruction, the image."""
        if self._stage is None:
            raise NotUnderstoodError("an instruction before FROM")
        return self._stage

    def carry_out(self, instruction: str, rest: str) -> None:
        """Carry out one instruction."""
        match instruction:
            case "FROM":
                self._from(rest)
            case "RUN":
                self._run(rest)
            case "COPY":
                self._copy(rest)
            case "ENV" | "LABEL":
                known = self.stage.environment if instruction == "ENV" else self.stage.labels
                known.update(one.split("=", 1) for one in shlex.split(rest))
            case "WORKDIR":
                self.stage.directory = rest
                self._inside(rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.stage.user = rest
            case "ENTRYPOINT":
                self.stage.entrypoint = json.loads(rest)
            case "CMD":
                self.stage.command = json.loads(rest)
            case "EXPOSE":
                pass  # documentation only
            case _:
                raise NotUnderstoodError(instruction)

    def _from(self, rest: str) -> None:
        match rest.split():
            case ["scratch", "AS", name]:
                (self._into / name).mkdir()
            case [image, "AS", name]:
                source = self.stages[image].root if image in self.stages else self._base
                _copy_tree(source, self._into / name)
            case _:
                raise NotUnderstoodError(f"FROM {rest}")
        self._stage = self.stages[name] = Stage(root=self._into / name)

    def _run(self, rest: str) -> None:
        """As root, with the network and the certificates of this machine."""
        root = self.stage.root
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy("/etc/hosts", root / "etc/hosts")
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        environment |= {"DEBIAN_FRONTEND": "noninteractive"} | self.stage.environment
        if self._certificates is not None:
            shutil.copy(self._certificates, root / _CERTIFICATES)
            environment["PIP_CERT"] = f"/{_CERTIFICATES}"
            if _JAVA_CERTIFICATES_HERE.exists():
                shutil.copy(_JAVA_CERTIFICATES_HERE, root / _JAVA_CERTIFICATES)
                environment["MAVEN_OPTS"] = f"-Djavax.net.ssl.trustStore=/{_JAVA_CERTIFICATES}"
        command = f"cd {shlex.quote(self.stage.directory)} && {rest}"
        try:
            subprocess.run(
                ["unshare", "--mount", "/bin/sh", "-ec", _WITH_PROC, "sh", root, command],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                env=environment | {"CHROOT": _CHROOT},
                check=True,
                timeout=_STEP_SECONDS,
            )
        finally:
            (root / _CERTIFICATES).unlink(missing_ok=True)
            (root / _JAVA_CERTIFICATES).unlink(missing_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        origin = PROJECT
        if sources[0].startswith("--from="):
            origin = self.stages[sources.pop(0).removeprefix("--from=")].root
        elif sources[0].startswith("--"):
            raise NotUnderstoodError(f"COPY {rest}")
        for source in sources:
            self._copy_one(origin / source.lstrip("/"), target)

    def _copy_one(self, source: Path, target: str) -> None:
        """A directory is its content, a file goes into a target that ends in `/`."""
        place = self._inside(target)
        if source.is_dir() and not source.is_relative_to(PROJECT):  # of another stage
            place.mkdir(parents=True, exist_ok=True)
            _copy_tree(source, place)
            return
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")  # of this machine's Python
            shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            return
        if target.endswith("/"):
            place /= source.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place)

    def _inside(self, path: str) -> Path:
        return self.stage.root / os.path.join(self.stage.directory, path).lstrip("/")  # noqa: PTH118


def _copy_tree(source: Path, target: Path) -> None:
    """With owners and modes."""
    command = ["cp", "-a", "--no-target-directory", source, target]
    subprocess.run(command, check=True, timeout=_STEP_SECONDS)


def size_megabytes(root: Path) -> float:
    """Add up the files below a directory, 10^6 bytes; a file with several names counts once."""
    done = subprocess.run(
        ["du", "-s", "--apparent-size", "--block-size=1", root],
        capture_output=True,
        check=True,
        timeout=_STEP_SECONDS,
    )
    return int(done.stdout.split()[0]) / 1e6


def archive(stage: Stage, image: str, file: Path) -> None:
    """Write a stage as the archive of an image, which `docker load` and `ctr images import` take.

    It is a tar of an OCI image layout (image-spec 1.0), with the index of `docker save` beside it.
    """
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        layer = Path(directory, "layer.tar")
        options = ["--numeric-owner", "--sort=name", f"--mtime=@{_EPOCH}"]
        options += ["--exclude=./proc/*", "--exclude=./sys/*"]
        subprocess.run(
            ["tar", *options, "-C", stage.root, "-cf", layer, "."],
            check=True,
            timeout=_STEP_SECONDS,
        )
        with layer.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        config = json.dumps(_image_config(stage, digest)).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _descriptor("config.v1+json", config),
                "layers": [
                    {
                        "mediaType": f"{_OCI}.layer.v1.tar",
                        "digest": f"sha256:{digest}",
                        "size": layer.stat().st_size,
                    }
                ],
            }
        ).encode()
        named = {
            "io.containerd.image.name": image,
            "org.opencontainers.image.ref.name": image.rpartition(":")[2],
        }
        top = _descriptor("manifest.v1+json", manifest) | {"annotations": named}
        of_docker = {
            "Config": _blob(config),
            "RepoTags": [image],
            "Layers": [f"blobs/sha256/{digest}"],
        }
        with tarfile.open(file, "w") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [top]}).encode())
            _add(tar, "manifest.json", json.dumps([of_docker]).encode())
            for content_of_blob in (config, manifest):
                _add(tar, _blob(content_of_blob), content_of_blob)
            entry = tar.gettarinfo(layer, f"blobs/sha256/{digest}")
            entry.mtime = 0
            with layer.open("rb") as content:
                tar.addfile(entry, content)


def _image_config(stage: Stage, layer: str) -> dict[str, object]:
    return {
        "architecture": _ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {
            "User": stage.user,
            "Env": [f"{name}={value}" for name, value in stage.environment.items()],
            "Entrypoint": stage.entrypoint,
            "Cmd": stage.command,
            "WorkingDir": stage.directory,
            "Labels": stage.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": f"{_OCI}.{kind}", "digest": digest, "size": len(content)}


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def archives(stages: dict[str, Stage], targets: Iterable[str], into: Path) -> None:
    """Write the images under the names that the manifests have for them."""
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    for target in targets:
        image = f"docker.io/library/{IMAGES[target]}:{version}"
        archive(stages[target], image, into / f"{target}.tar")


_READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
mount -t tmpfs tmpfs "$1/tmp" && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev"
root=$1 user=$2 PATH=$3 && shift 3
exec "$CHROOT" --userspec="$user" "$root" "$@"
"""


def start_seconds(stage: Stage) -> float:
    """Start the image as its user, on a read-only root, with nothing to write to but /tmp.

    Return the seconds until it accepts connections.
    """
    file = stage.root / stage.command[-1].lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_CONFIG)
    command = ["unshare", "--mount", "/bin/sh", "-ec", _READ_ONLY, "sh"]
    path = stage.environment["PATH"]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, stage.root, stage.user, path, *stage.entrypoint, *stage.command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | stage.environment | {"PATH": os.environ["PATH"], "CHROOT": _CHROOT},
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        line = lines.readline()  # one per listener, when it accepts
        took = time.monotonic() - started
        process.terminate()
    process.wait(_START_SECONDS)
    file.unlink()
    if not line:
        raise RuntimeError(f"the image did not start: exit status {process.returncode}")
    return took


def debootstrap(into: Path) -> Path:
    """Make the content of the image debian:bookworm-slim."""
    command = ["debootstrap", "--variant=minbase", "bookworm", str(into)]
    subprocess.run(command, stdout=sys.stderr, check=True, timeout=_STEP_SECONDS)
    return into


def main() -> int:
    """Build and measure; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, help="an empty directory")
    parser.add_argument("--base", type=Path, help="root directory of the base image")
    parser.add_argument(
        "--certificates",
        type=Path,
        help="PEM for pip, if the system's do not suffice; Maven gets those of this machine's Java",
    )
    parser.add_argument("--archives", action="store_true", help="write the images as well")
    parser.add_argument(
        "--target", action="append", choices=[*IMAGES], help="an image (default: all)"
    )
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    base = arguments.base or debootstrap(arguments.into / "debian")
    build = Build(arguments.into, base, arguments.certificates)
    targets = arguments.target or [*IMAGES]
    for instruction, rest in needed(instructions(DOCKERFILE.read_text()), targets):
        print(f"{instruction} {rest}", file=sys.stderr)
        build.carry_out(instruction, rest)
    if arguments.archives:
        archives(build.stages, targets, arguments.into)
    figures = {"whole_megabytes": round(size_megabytes(build.stage.root), 1)}
    if "proxy" in targets:  # the last of them in the Dockerfile
        start_seconds(build.stage)  # once before, so that the files are in memory as on a busy node
        figures["start_seconds"] = round(min(start_seconds(build.stage) for _ in range(3)), 2)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
