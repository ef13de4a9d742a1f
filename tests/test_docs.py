"""Checks of the docs against the code."""

import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import get_args

import pytest
import yaml

from docs.generate import reference
from proxy.config import load
from proxy.config.document import parse
from proxy.demo.setup import Program, free_ports
from sasl import states
from tests.support.processes import free_port_range

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")],
    key=lambda page: page.relative_to(ROOT),
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
START_SECONDS = 120.0


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_state_of_a_session_is_in_the_table() -> None:
    table = reference.session_states()
    named = {state.__name__ for state in get_args(states.State)}
    assert named == set(re.findall(r"^([A-Z]\w+)", table, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ["managed-cluster", "reauth-proxy", "sasl-cluster"])
def test_the_example_configurations_can_be_used(name: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text((ROOT / "deploy" / f"{name}.example.yaml").read_text())
    assert load(file).listeners


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed


def test_files_that_the_file_map_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for named in re.findall(r"`((?:proxy|sasl|metrics|tests)/[\w./]*)`", page):
        assert (ROOT / named).exists(), named


def test_the_commands_of_the_readme_are_the_makefiles() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", readme, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_pyspark_is_named_as_the_extra_names_it() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["spark"]
    packages = " ".join(f"'{each.replace(' ', '')}'" for each in extra)
    assert f"install {packages}" in (ROOT / "docs" / "readiness.md").read_text()


def test_nothing_is_installed_from_an_index_before_a_release() -> None:
    """The package is in none yet: people install from a checkout, or what an error names."""
    texts = [
        *PAGES,
        *(file for name in ("proxy", "metrics") for file in (ROOT / name).rglob("*.py")),
    ]
    named = {relative(file) for file in texts if "install 'kafka-reauth-proxy" in file.read_text()}
    assert named == set()


def test_locks_name_no_index_and_hash_everything() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "://" not in text
        assert "--index" not in text
        for entry in re.split(r"\n(?=[a-z])", text)[1:]:
            assert "--hash=sha256:" in entry, entry


def block(language: str, containing: str) -> str:
    """Return the only block of *Getting started* in this language that contains a text."""
    page = (ROOT / "docs" / "getting-started.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


@pytest.mark.slow
def test_getting_started_without_sasl_runs(tmp_path: Path) -> None:
    """With other ports, a password from a file, and three messages instead of 150."""
    first = free_port_range(6)
    brokers = Program("broker", "proxy.demo.broker", [], tmp_path / "broker.log")
    programs = [brokers]
    try:
        upstream = brokers.wait_for_line(START_SECONDS)
        config = tmp_path / "proxy.yaml"
        init, add, serve = (
            block("sh", containing).splitlines()[-1].split()[1:]
            for containing in ("config init", "users add", " serve ")
        )
        for words in (init, add, serve):
            words[words.index("proxy.yaml")] = str(config)
        init[-1] = upstream.split(",")[0]
        run(["-m", "proxy", *init], stdin="")
        settings = parse(config.read_bytes())
        assert settings["upstream"]["security.protocol"] == "PLAINTEXT"
        settings["listeners"][0] |= {
            "address": f"127.0.0.1:{first + 4}",
            "broker.ports": f"{first}-{first + 3}",
        }
        settings["http"]["address"] = f"127.0.0.1:{first + 5}"
        config.write_text(yaml.safe_dump(settings))
        run(["-m", "proxy", *add, "--password-file", "-"], stdin="secret\n")
        programs.append(Program("proxy", "proxy", serve, tmp_path / "proxy.log"))
        programs[-1].wait_for_line(START_SECONDS)
        client = block("python", "Producer").replace("127.0.0.1:9094", f"127.0.0.1:{first + 4}")
        client = client.replace("range(150)", "range(3)")
        assert run(["-c", client], stdin="") == "0 messages left\n"
        with urllib.request.urlopen(
            f"http://127.0.0.1:{first + 5}/metrics", timeout=START_SECONDS
        ) as answer:
            assert b"successful_authentication_total" in answer.read()
    finally:
        for program in reversed(programs):
            program.terminate()
            program.ended(time.monotonic() + START_SECONDS)
    assert list((tmp_path / "events").glob("*.jsonl"))


def run(arguments: list[str], *, stdin: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_free_ports_are_free() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
