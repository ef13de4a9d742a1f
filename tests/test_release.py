"""A release: its parts have one version, and its workflow can do what it must and nothing else."""

import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

import proxy
from tests.support.deploy import DEPLOY, ROOT, find

WORKFLOW = ROOT / ".github/workflows/release.yml"
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OWN_IMAGE = re.compile(r"\bkafka-reauth-proxy(?:-\w+)?:(\d[\w.]*)")


def test_program_and_chart_have_the_projects_version() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/kafka-reauth-proxy/Chart.yaml").read_text())
    assert {proxy.__version__, chart["version"], chart["appVersion"]} == {VERSION}


def test_images_have_the_projects_version() -> None:
    """Their labels, and their tags wherever manifests and pages name them."""
    labels = re.findall(r"image\.version=(\S+)", (DEPLOY / "Dockerfile").read_text())
    assert len(labels) >= 2
    files = [DEPLOY / "Dockerfile", *DEPLOY.rglob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    named = {file: OWN_IMAGE.findall(file.read_text()) for file in files}
    assert named[DEPLOY / "kustomize/base/sidecar.yaml"]
    wrong = {file: tags for file, tags in named.items() if {*tags} - {VERSION, "1.2.3"}}
    assert (wrong, {*labels}) == ({}, {VERSION})


def test_the_changelog_begins_with_what_comes_next_or_with_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] in ("Unreleased", VERSION)


def test_actions_are_named_by_commit() -> None:
    """A tag can be moved, by whoever has the action's repository."""
    used = re.findall(r"uses: (.+)", WORKFLOW.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


def test_a_job_has_the_permissions_that_it_needs() -> None:
    """Nobody writes to the repository, and what builds the wheels cannot publish them."""
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
    """An expression is put into a script as text: a tag's name could be a command."""
    scripts = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_every_image_of_the_workflow_can_be_built() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", (DEPLOY / "Dockerfile").read_text(), re.M)
    targets = JOBS["image"]["strategy"]["matrix"]["target"]
    assert {"proxy", "redirect"} <= {*targets} <= {*stages}


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
