"""Errors on unsupported platforms, before anything is installed."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from requirements.supported import MACHINES, NEWEST, OLDEST, problem

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = [(3, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]


def test_what_is_supported_is_said_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">=3.{OLDEST[1]},<3.{NEWEST[1] + 2}"
    reported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert reported == [f"3.{minor}" for _, minor in VERSIONS]
    for page in ("docs/support.md", "docs/upgrading.md"):
        assert f"Python 3.{OLDEST[1]} to 3.{NEWEST[1]}" in (ROOT / page).read_text(), page


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("version", VERSIONS)
def test_these_are_supported(machine: str, version: tuple[int, int]) -> None:
    assert problem("Linux", machine, "CPython", version) is None


@pytest.mark.parametrize(
    ("system", "machine", "implementation", "version", "says"),
    [
        ("Darwin", "arm64", "CPython", (3, 13), "Darwin on arm64 is not supported: use a contain"),
        ("Windows", "AMD64", "CPython", (3, 13), "Windows on AMD64 is not supported"),
        ("Linux", "riscv64", "CPython", (3, 13), "Linux on riscv64 is not supported"),
        ("Linux", "x86_64", "CPython", (3, 10), "CPython 3.10 is not supported: name a CPython"),
        ("Linux", "x86_64", "CPython", (3, NEWEST[1] + 1), "is not supported"),
        ("Linux", "x86_64", "PyPy", (3, 11), "PyPy 3.11 is not supported"),
    ],
)
def test_others_are_told_what_to_do(
    system: str, machine: str, implementation: str, version: tuple[int, int], says: str
) -> None:
    words = problem(system, machine, implementation, version)
    assert words is not None
    assert says in words


@pytest.mark.parametrize("command", [["serve", "--config", "proxy.yaml"], ["demo"]])
def test_nothing_is_started_but_on_linux(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("confluent_kafka")  # no wheel for Python 3.15
    for module in ("proxy.demo.run", "pydantic.fields"):
        import_module(module)  # the standard library, which they load, reads the platform, too
    monkeypatch.setattr(sys, "platform", "darwin")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.stderr.startswith("reauth-proxy: the proxy runs on Linux only")
    assert result.stderr.count("\n") == 1
