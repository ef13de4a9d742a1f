"""Code blocks of the pages: configurations load, commands run or parse, imports work."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, NamedTuple

import jsonschema
import pytest
import yaml
from click import Group
from typer.main import get_command
from typer.testing import CliRunner

from proxy.admin.properties import parse_properties
from proxy.cli import app
from proxy.config import load

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK: Final = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

NOT_RUN: Final = {
    "auditwheel": "needs a built wheel",
    "curl": "needs a running proxy",
    "docker": "needs a container engine; tests/deploy builds the images without one",
    "export": "sets a variable",
    "helm": "tests/deploy renders the chart, tests/cluster installs it",
    "keytool": "needs a Java key store",
    "kill": "needs a running proxy",
    "kubectl": "tests/cluster applies the manifests",
    "mvn": "downloads from Maven Central",
    "pip": "installs",
    "sh": "the script that the command before has printed",
    "spark-submit": "tests/metrics/spark runs it",
    "uv": "installs",
    **dict.fromkeys(
        ("cosign", "diff", "gh", "pypi-attestations", "tar"), "needs a published release"
    ),
    **dict.fromkeys(
        ("kafka-acls.sh", "kafka-configs.sh", "kafka-console-producer.sh"),
        "tests/kafka runs Kafka's tools",
    ),
    **dict.fromkeys(("chown", "chmod", "cp", "mv", "rm"), "a file of the proxy's host"),
    "deploy/transparent/redirect.sh": "changes the network's rules; tests/deploy runs it",
}
"""Programs that are not run, and why."""
NEEDS: Final = {
    "audit": "needs events; tests/proxy/cli",
    "demo": "takes a minute; `make demo`",
    "events": "needs Kafka; tests/kafka",
    "report": "needs events; tests/metrics/readiness",
    "serve": "runs until a signal; tests/test_docs.py starts it",
    "sessions": "needs a running proxy; tests/proxy",
    "token": "needs a token; tests/proxy/cli",
    "why": "needs events; tests/proxy/cli",
}
"""Our commands that are only parsed, and why."""
ELSEWHERE: Final = (
    "--bootstrap-server",
    "--connect",
    "--from-kraft",
    "--watch",
    "--claims",
    "FILE",
)
"""Options, and a placeholder, of commands that need a server or a file from elsewhere."""

PROXY: Final = """
upstream: {bootstrap.servers: 127.0.0.1:9092}
listeners:
  - name: clients
    address: 127.0.0.1:9094
    routing: sidecar
    sasl.enabled.mechanisms: [SCRAM-SHA-256]
authorizer: {mode: enforce, super.users: [User:admin]}
quotas: {mode: enforce}
store: {url: sqlite:state.db}
"""


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text())
    return [Block(language, dedent(text)) for _, language, text in found]


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_blocks_have_a_language(page: Path) -> None:
    """Blocks without a language cannot be checked."""
    known = {"sh", "yaml", "json", "python", "properties", "text", "sql"}
    assert {block.language for block in blocks(page)} <= known
    prose = BLOCK.sub("", page.read_text())
    assert not re.search(r"^(?! |-|\d+\.).+\n\n    \S.*$", prose, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_data_and_programs_parse(page: Path) -> None:
    for language, text in blocks(page):
        if language == "json":
            json.loads(text)
        elif language == "properties":
            assert parse_properties(text)
        elif language == "python":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    module = import_module(node.module)
                    assert all(hasattr(module, name.name) for name in node.names), node.module


SCHEMA: Final = json.loads((ROOT / "deploy/helm/kafka-reauth-proxy/values.schema.json").read_text())
SECTIONS: Final = {
    "upstream",
    "listeners",
    "authorizer",
    "quotas",
    "store",
    "block",
    "events",
    "http",
}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_yaml_is_a_configuration_or_values_of_the_chart(page: Path, tmp_path: Path) -> None:
    """Parts of a configuration count as well; manifests and other files must only parse."""
    for block in blocks(page):
        if block.language != "yaml":
            continue
        data = yaml.safe_load(block.text)
        if block.text.startswith("# in the listener"):
            data = {"listeners": [data]}
        if data.keys() <= SECTIONS:
            assert loads(data, tmp_path)
        elif "values.yaml" in block.text or "report.yaml" in block.text:
            errors = jsonschema.Draft7Validator(SCHEMA).iter_errors(data)
            assert [error.message for error in errors if error.validator != "required"] == []


def loads(data: dict[str, Any], directory: Path) -> bool:
    """Complete a part of a configuration and load it."""
    (directory / "groups.json").write_text('{"groups": {}}')
    (directory / "users.json").write_text('{"secret": "c2VjcmV0", "users": {}}')
    base = yaml.safe_load(PROXY)
    listeners = [complete(each, directory) for each in data.get("listeners", base["listeners"])]
    upstream = data.get("upstream", base["upstream"])
    if (
        str(upstream.get("security.protocol")).startswith("SASL")
        and "sasl.mechanism" not in upstream
    ):
        listeners[0] |= {"sasl.termination": "broker"}
    if listeners[0].get("sasl.termination") == "broker":
        upstream = {"security.protocol": "SASL_SSL"} | upstream
        if "listeners" not in data:
            del listeners[0]["sasl.enabled.mechanisms"]
    whole = base | data | {"listeners": listeners, "upstream": upstream}
    file = directory / "proxy.yaml"
    file.write_text(yaml.safe_dump(whole).replace("/etc/reauth-proxy-users/", ""))
    return bool(load(file).listeners)


def complete(listener: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return a listener with the settings that a page leaves out."""
    whole: dict[str, Any] = {
        "name": "clients",
        "address": "127.0.0.1:9094",
        "routing": "sidecar",
    } | listener
    files = {"groups.file", "sasl.plain.htpasswd.file", "sasl.plain.ldap.ssl.truststore.location"}
    for key in whole.keys() & files:
        whole[key] = str(directory / "groups.json")
    tokens = any(key.startswith("sasl.oauthbearer") for key in whole)
    if str(whole.get("security.protocol", "SASL_")).startswith("SASL_"):
        if whole.get("sasl.termination") != "broker":
            mechanisms = ["SCRAM-SHA-256", *(["OAUTHBEARER"] if tokens else [])]
            whole.setdefault("sasl.enabled.mechanisms", mechanisms)
        if tokens and "sasl.oauthbearer.issuers" not in whole:
            whole = {
                "sasl.oauthbearer.jwks.endpoint.url": "https://idp.example.com/jwks.json",
                "sasl.oauthbearer.expected.audience": "kafka",
                "sasl.oauthbearer.expected.issuer": "https://idp.example.com",
            } | whole
    return whole


def commands(text: str) -> Iterator[tuple[list[str], str | None]]:
    """Yield each command of a shell block, and the file to which its output goes."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for command in re.split(r" && | \| ", re.sub(r'"\$\([^)]*\)"', "VALUE", line)):
            lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
            lexer.wordchars += "$:%@,…{}[]\\^+!"
            words = list(lexer)
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            output = words[words.index(">") + 1] if ">" in words else None
            for redirection in ("<", ">"):
                if redirection in words:
                    del words[words.index(redirection) :]
            if words:
                yield words, output


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_run_or_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "init gateway proxy.yaml\n" not in page.read_text():  # which makes it
        Path("proxy.yaml").write_text(PROXY)
    if page.stem == "store":  # which exports users
        add = "users add bob --mechanism SCRAM-SHA-256 --config proxy.yaml"
        try_command(["reauth-proxy", *add.split()], None)
    for name in ("filters", "quota-filters"):
        for block in blocks(page):
            if block.text.startswith(f"# {name}\n"):
                Path(name).write_text(block.text)
    for block in blocks(page):
        if block.language == "sh":
            for words, output in commands(block.text):
                try_command(words, output)


def try_command(words: list[str], output: str | None) -> None:
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments[0] in targets
    elif program == "python":
        target = arguments[1] if arguments[0] == "-m" else None
        assert find_spec(target) if target else (ROOT / arguments[0]).exists(), words
    elif program == "reauth-proxy":
        if arguments != ["--version"]:
            parses(arguments)
        if arguments[0] not in NEEDS and not {*ELSEWHERE} & {*arguments}:
            if arguments[:2] == ["users", "add"]:  # would prompt at the terminal
                arguments += ["--password-file", "-"]
            result = CliRunner().invoke(app, arguments, input="y\n")
            assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
            if output:
                Path(output).write_text(result.stdout)
    else:
        assert program in NOT_RUN, shlex.join(words)


def parses(arguments: list[str]) -> None:
    """Fail if the command or an option does not exist, or a value is not valid."""
    command: Any = get_command(app)
    while isinstance(command, Group):
        context = command.make_context("reauth-proxy", [*arguments], allow_interspersed_args=False)
        if not context._protected_args and not context.args:
            return
        _, command, arguments = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    command.make_context("reauth-proxy", [*arguments])
