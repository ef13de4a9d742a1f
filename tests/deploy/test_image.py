"""The image: what its Dockerfile says, and what comes out when its steps are carried out."""

import hashlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support import deploy
from tests.support.deploy import DEPLOY, ROOT, find, kustomized, missing

BUILD = runpy.run_path(str(DEPLOY / "build_root.py"))
STEPS: list[tuple[str, str]] = BUILD["instructions"]((DEPLOY / "Dockerfile").read_text())
BUILD_SECONDS = 1_800
_NET_ADMIN_ALONE = """
import ctypes, os, sys
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, CAP_NET_ADMIN = 24, 38, 12
prctl = ctypes.CDLL(None).prctl
os.chroot(sys.argv[1])
os.chdir("/")
for capability in range(64):
    if capability != CAP_NET_ADMIN:
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a program of a root directory, which has no tools of its own, with one capability."""
_CERTIFICATES = os.environ.get("PIP_CERT")


def _last(instruction: str) -> str:
    return [rest for name, rest in STEPS if name == instruction][-1]


def test_continued_lines_are_one_instruction_and_comments_none() -> None:
    text = "# why\nFROM a AS b\nRUN one \\\n    && two\n"
    found = BUILD["instructions"](text)
    assert found == [("FROM", "a AS b"), ("RUN", "one      && two")]


def test_only_the_stages_of_the_targets_are_built() -> None:
    """As a container engine does: the proxy's image waits for no Java."""

    def stages(*targets: str) -> list[str]:
        built = BUILD["needed"](STEPS, targets)
        return [rest.split()[-1] for name, rest in built if name == "FROM"]

    assert stages("proxy") == ["base", "build", "proxy"]
    assert stages("redirect") == ["base", "build-redirect", "redirect"]
    assert stages("report") == [*("base", "build", "java", "report-base", "report-build", "report")]
    assert BUILD["needed"](STEPS, BUILD["IMAGES"]) == STEPS


@pytest.mark.parametrize(
    ("instruction", "rest"), [("ADD", "a b"), ("FROM", "a"), ("COPY", "--chown=1 a b")]
)
def test_what_the_script_does_not_understand_it_refuses(
    tmp_path: Path, instruction: str, rest: str
) -> None:
    build = BUILD["Build"](tmp_path / "into", tmp_path, None)
    (tmp_path / "into").mkdir()
    build._stage = BUILD["Stage"](root=tmp_path)
    with pytest.raises(BUILD["NotUnderstoodError"]):
        build.carry_out(instruction, rest)


def test_the_image_is_pinned_and_without_privilege() -> None:
    runs = [rest for name, rest in STEPS if name == "RUN"]
    installs = [rest for rest in runs if re.search(r"pip install\b", rest)]
    assert all("--require-hashes" in rest or "--no-deps" in rest for rest in installs)
    sidecar = deploy.container(kustomized("ingress"))
    context = sidecar["securityContext"]
    assert _last("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert [*json.loads(_last("CMD")), "--follow"] == sidecar["args"]
    assert [rest.split()[-1] for name, rest in STEPS if name == "FROM"][-1] == "proxy"


def test_the_images_of_proxy_and_report_run_as_the_same_user() -> None:
    """So that both read and write one volume."""
    assert {rest for name, rest in STEPS if name == "USER"} == {_last("USER")}


def test_jars_are_those_of_the_list_and_pinned() -> None:
    """Each artifact of the list is locked in its version; the rest is what these need."""
    listed = ElementTree.parse(ROOT / "requirements/spark.xml").getroot()  # noqa: S314 - ours
    maven = "{http://maven.apache.org/POM/4.0.0}"
    sdk = listed.findtext(f".//{maven}sdk")
    wanted = {
        f"{one.findtext(f'{maven}artifactId')}-{one.findtext(f'{maven}version')}.jar"
        for one in listed.iter(f"{maven}dependency")
    }
    lock = (ROOT / "requirements/spark.sha256").read_text()
    locked = re.findall(r"^[0-9a-f]{64}  (\S+)$", lock, re.M)
    assert len(locked) == len(lock.splitlines())
    assert {name.replace("${sdk}", str(sdk)) for name in wanted} <= {*locked}


def test_what_is_written_to_belongs_to_its_user() -> None:
    """A volume that Docker makes has the owner that the directory in the image has."""
    (made,) = (rest.split() for name, rest in STEPS if rest.startswith("install -d "))
    user, group = _last("USER").split(":")
    assert made[made.index("-o") + 1] == user
    assert made[made.index("-g") + 1] == group
    mounts = {one["mountPath"] for one in deploy.container(kustomized("ingress"))["volumeMounts"]}
    written = {path for path in mounts if path.startswith("/var/lib/")}
    assert {part.removeprefix("/image") for part in made if part.startswith("/")} == written
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert all(re.search(rf"--volume [-a-z]+:{path} ", page) for path in written)


def test_everything_that_is_copied_exists() -> None:
    for name, rest in STEPS:
        if name == "COPY" and not rest.startswith("--from="):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])


def test_an_archive_is_an_image_of_its_stage(tmp_path: Path) -> None:
    """Every digest in it matches the named file, and excluded files are missing."""
    root = tmp_path / "root"
    (root / "proc/1").mkdir(parents=True)
    (root / "hello").write_text("world")
    stage = BUILD["Stage"](root=root, user="65532:65532", entrypoint=["/hello"])
    BUILD["archive"](stage, "docker.io/library/hello:1", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        blobs = {name: file.read() for name, file in content.items() if file is not None}
    for name, blob in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(blob).hexdigest() == name.removeprefix("blobs/sha256/")

    def named(digest: str) -> bytes:
        return blobs[digest.replace("sha256:", "blobs/sha256/")]

    (top,) = json.loads(blobs["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == "docker.io/library/hello:1"
    manifest = json.loads(named(top["digest"]))
    config = json.loads(named(manifest["config"]["digest"]))
    assert (config["config"]["User"], config["config"]["Entrypoint"]) == ("65532:65532", ["/hello"])
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    with tarfile.open(fileobj=io.BytesIO(named(layer["digest"]))) as files:
        assert {"./hello", "./proc"} <= {*files.getnames()}
        assert "./proc/1" not in files.getnames()


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    """Whenever they were written, and whenever it is."""
    archives = []
    for name, mtime in (("one", 1_000_000_000), ("another", 1_500_000_000)):
        root = tmp_path / name
        root.mkdir()
        (root / "hello").write_text("world")
        os.utime(root / "hello", (mtime, mtime))
        archives.append(tmp_path / f"{name}.tar")
        BUILD["archive"](BUILD["Stage"](root=root), "docker.io/library/hello:1", archives[-1])
        with tarfile.open(archives[-1]) as tar:
            assert {one.mtime for one in tar.getmembers()} == {0}
    assert archives[0].read_bytes() == archives[1].read_bytes()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory of all stages, and the figures."""
    find("debootstrap")
    if os.geteuid() != 0:
        missing("building the image's root needs root")
    into = tmp_path_factory.mktemp("image")
    certificates = ["--certificates", _CERTIFICATES] if _CERTIFICATES else []
    targets = ["--target", "proxy", "--target", "redirect"]  # the report's: tests/cluster
    done = subprocess.run(
        [sys.executable, DEPLOY / "build_root.py", "--into", into, *targets, *certificates],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return into, json.loads(done.stdout.splitlines()[-1])


def _run(root: Path, *command: str) -> str:
    """Run a program of the proxy's image as its user."""
    done = subprocess.run(
        ["chroot", f"--userspec={_last('USER')}", root, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster
def test_the_image_is_small(image: tuple[Path, dict[str, Any]]) -> None:
    """Its start is measured too, but no test judges time: the script prints it."""
    into, figures = image
    assert figures["whole_megabytes"] < 170
    assert BUILD["size_megabytes"](into / "redirect") < 15


@pytest.mark.cluster
def test_there_is_nothing_to_install_or_to_run_commands_with(
    image: tuple[Path, dict[str, Any]],
) -> None:
    root = image[0] / "proxy"
    programs = {path.name for place in ("usr/bin", "usr/sbin") for path in (root / place).glob("*")}
    assert programs == {"python3", "python3.11"}
    own = {path.name for path in root.glob("opt/reauth-proxy/bin/*")}
    assert "reauth-proxy" in own
    assert not own & {"pip", "pip3", "activate", "hatchling"}


@pytest.mark.cluster
def test_what_the_image_needs_is_in_it(image: tuple[Path, dict[str, Any]]) -> None:
    """Certificates to trust, zones for the log's times, and every module that can be imported."""
    code = (
        "import bz2, ctypes, lzma, os, pwd, sqlite3, ssl, sys, time, zoneinfo;"
        "import azure.identity, botocore.session, confluent_kafka, google.auth;"
        "botocore.session.Session().create_client('sts', 'eu-west-1');"
        "print(len(ssl.create_default_context().get_ca_certs()) > 100,"
        "zoneinfo.ZoneInfo('Europe/Berlin'), pwd.getpwuid(65532).pw_name, sys.flags.utf8_mode)"
    )
    path = json.loads(_last("ENTRYPOINT"))
    python = "/opt/reauth-proxy/bin/python3"
    said = _run(image[0] / "proxy", python, "-c", code)
    assert said == "True Europe/Berlin reauth-proxy 1\n"
    program = f"/opt/reauth-proxy/bin/{path[0]}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = _run(image[0] / "proxy", program, "--version")
    assert said == f"{path[0]} {version} (compiled)\n"


@pytest.mark.cluster
def test_every_package_of_debian_is_listed_with_its_licence(
    image: tuple[Path, dict[str, Any]],
) -> None:
    """Where image scanners look, and Syft for the bill of materials."""
    root = image[0] / "proxy"
    listed = {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()}
    assert {"libc6", "libssl3", "python3.11-minimal", "ca-certificates", "tzdata"} <= listed
    assert all((root / "usr/share/doc" / name / "copyright").is_file() for name in listed)


@pytest.mark.cluster
def test_redirecting_needs_net_admin_alone(image: tuple[Path, dict[str, Any]]) -> None:
    """In a network namespace of its own, as the init container runs it."""
    container = deploy.container(kustomized("transparent"), "reauth-redirect")
    assert container["securityContext"]["capabilities"]["add"] == ["NET_ADMIN"]
    entrypoint = json.loads(next(rest for name, rest in STEPS if name == "ENTRYPOINT"))
    command = " ".join([*entrypoint, *container["args"], "&& nft list ruleset"])
    confined = [sys.executable, "-c", _NET_ADMIN_ALONE, str(image[0] / "redirect")]
    done = subprocess.run(
        ["unshare", "--net", *confined, "/bin/sh", "-ec", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/sbin:/usr/bin"}
        | {one["name"]: one["value"] for one in container["env"]},
    )
    assert done.returncode == 0, done.stderr
    assert "meta skuid 60092 return" in done.stdout
    assert "tcp dport 9092 redirect to :9094" in done.stdout
