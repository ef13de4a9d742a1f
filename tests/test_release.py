"""Releases: consistent versions, and a workflow with minimal permissions."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import proxy
from tests.support.deploy import DEPLOY, ROOT, find

WORKFLOW = ROOT / ".github/workflows/release.yml"
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OWN_IMAGE = re.compile(rb"\bkafka-reauth-proxy(?:-\w+)?:(\d[\w.]*)")


def _below(*names: str) -> Iterator[Path]:
    for name in names:
        yield from (ROOT / name).rglob("*")


def test_program_and_chart_have_the_projects_version() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/kafka-reauth-proxy/Chart.yaml").read_text())
    assert {proxy.__version__, chart["version"], chart["appVersion"]} == {VERSION}


def test_images_have_the_projects_version() -> None:
    """In labels and in the tags in all shipped files."""
    labels = re.findall(r"image\.version=(\S+)", (DEPLOY / "Dockerfile").read_text())
    assert len(labels) == len(JOBS["image"]["strategy"]["matrix"]["target"])
    named = {
        file.relative_to(ROOT): {tag.decode() for tag in OWN_IMAGE.findall(file.read_bytes())}
        for file in [*ROOT.glob("*.md"), *_below("deploy", "docs", "proxy")]
        if file.is_file() and file.suffix != ".pyc"
    }
    by_suffix = {file.suffix for file, tags in named.items() if tags}
    assert {"", ".conf", ".md", ".yaml"} <= by_suffix
    wrong = {file: tags for file, tags in named.items() if tags - {VERSION, "1.2.3"}}
    assert (wrong, {*labels}) == ({}, {VERSION})


def test_the_changelog_begins_with_what_comes_next_or_with_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] in ("Unreleased", VERSION)


def test_actions_are_named_by_commit() -> None:
    """Tags can be moved by the owner of the action's repository."""
    used = re.findall(r"uses: (.+)", WORKFLOW.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


def test_a_job_has_the_permissions_that_it_needs() -> None:
    """No job writes to the repository, and the job that builds wheels cannot publish them."""
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {}
    reading = {"contents": "read"}
    signing = reading | {"attestations": "write", "id-token": "write"}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "check": reading,
        "wheels": reading,
        "image": signing,
        "chart": signing,
        "pypi": {"id-token": "write"},
    }


def test_nothing_is_published_before_everything_is_tested() -> None:
    def before(job: str) -> set[str]:
        needs = JOBS[job].get("needs", [])
        direct = {needs} if isinstance(needs, str) else {*needs}
        return direct.union(*(before(one) for one in direct))

    assert {"run": ".ci/run"} in JOBS["check"]["steps"]
    assert all("check" in before(name) for name in JOBS if name != "check")


def test_what_comes_from_outside_is_no_part_of_a_command() -> None:
    """Expressions are pasted into scripts, so a tag's name could be a command."""
    scripts = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_every_image_is_published_with_its_bill_of_materials() -> None:
    """Each startable stage is an image, published under its title."""
    _, *stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    images = {}
    for stage in stages:
        if "\nENTRYPOINT " in stage:
            title = re.search(r"^LABEL org\.opencontainers\.image\.title=(\S+)", stage, re.M)
            images[stage.split(maxsplit=3)[2]] = title and title[1]
    matrix = JOBS["image"]["strategy"]["matrix"]
    published = {one["target"]: one for one in matrix["include"] if "target" in one}
    assert {*matrix["target"]} == {*published} == {*images}
    assert {target: one["name"] for target, one in published.items()} == images
    (scan,) = (one["with"] for one in JOBS["image"]["steps"] if "sbom-action" in str(one))
    (bill,) = (one["with"] for one in JOBS["image"]["steps"] if "attest-sbom" in str(one))
    digest = "${{ steps.build.outputs.digest }}"
    assert (scan["image"], bill["subject-digest"]) == (f"${{{{ env.IMAGE }}}}@{digest}", digest)
    assert scan["output-file"] == bill["sbom-path"]


def test_the_platforms_of_every_image_are_joined_and_signed() -> None:
    """By digest, as a tag could be moved between build and signature."""
    matrix = JOBS["image"]["strategy"]["matrix"]
    (script,) = (one["run"] for one in JOBS["chart"]["steps"] if "imagetools" in one.get("run", ""))
    (names,) = re.findall(r"^for name in (.+); do$", script, re.M)
    assert names.split() == [one["name"] for one in matrix["include"] if "target" in one]
    sources = {f'"$image@$(<"digests/$name-{one}")"' for one in matrix["platform"]}
    assert {word for word in re.findall(r"\S+", script) if "$(<" in word} == sources
    assert 'cosign sign --yes "$image@$digest"' in script


@pytest.mark.slow
def test_the_workflow_is_valid() -> None:
    done = subprocess.run(
        [find("actionlint"), "-no-color", "-shellcheck=", WORKFLOW],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


def test_wheels_are_made_for_every_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = re.findall(r"cp3(\d+)-", project["tool"]["cibuildwheel"]["build"])
    classifiers = project["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    assert built == [one.removeprefix(prefix) for one in classifiers if one.startswith(prefix)]


def test_what_is_built_again_has_the_same_times() -> None:
    """Wheels and images have reproducible times in all archives."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    epoch = project["tool"]["cibuildwheel"]["environment"]["SOURCE_DATE_EPOCH"]
    scripts = (WORKFLOW, DEPLOY / "Dockerfile", ROOT / "docs/releasing.md")
    for file in scripts:
        assert {*re.findall(r"SOURCE_DATE_EPOCH=(\d+)", file.read_text())} == {epoch}, file
    assert f"_EPOCH = {epoch}\n" in (DEPLOY / "build_root.py").read_text()
