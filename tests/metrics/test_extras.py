"""Which extra is missing, and how to install it where this program is installed."""

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from metrics import extras
from metrics.extras import missing

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def _any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module has wheels."""
    monkeypatch.setattr(extras, "_NEWEST_PYTHON", {})


@pytest.mark.parametrize("extra", sorted(extras._MODULES))
def test_an_extra_is_missing_with_any_of_its_modules(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in extras._MODULES[extra]:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module.partition(".")[0], None)
            problem = missing(extra)
        assert problem is not None
        assert module in problem.partition(", the extra ")[0]
        for requirement in PROJECT["optional-dependencies"][extra]:
            name = requirement.partition(" ")[0]
            assert f"'{name}" in problem
    assert (missing(extra) is None) is all(map(find_spec, extras._MODULES[extra]))


@pytest.mark.parametrize("extra", ["demo", "kafka"])
def test_a_python_without_wheels_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_NEWEST_PYTHON", {"confluent_kafka": (3, 10)})
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    running = "{}.{}".format(*sys.version_info)
    assert missing(extra) == (
        f"needs confluent_kafka, which has no wheel for Python {running}: use Python 3.10"
    )


def test_a_checkout_that_is_not_installed_has_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_DISTRIBUTION", "of-nobody")
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    assert missing("htpasswd") == "needs bcrypt, the extra htpasswd"


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        ("pipx_metadata.json", "pipx inject {name} 'confluent-kafka>=2.6'"),
        ("uv-receipt.toml", "uv pip install --python {prefix} 'confluent-kafka>=2.6'"),
        (None, "-m pip install 'confluent-kafka>=2.6'"),
    ],
)
def test_the_command_fits_the_way_of_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipt: str | None, command: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    if receipt is None:
        monkeypatch.setattr(extras, "_is_there", "pip".__eq__)
    else:
        (tmp_path / receipt).touch()
    problem = missing("kafka")
    assert problem is not None
    assert problem.endswith(command.format(name=tmp_path.name, prefix=tmp_path))
