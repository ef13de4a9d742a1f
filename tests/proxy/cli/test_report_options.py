"""Options of `reauth-proxy report` for a topic, as either engine takes them."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from metrics.readiness.settings import EngineName, Settings
from proxy.cli import app
from proxy.cli.report import topic_settings
from tests.support.tables import table

PROPERTIES = """\
bootstrap.servers=a:9092,b:9092
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="report" password="made-up";
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(PROPERTIES)
    return path


def of_topic(**more: Any) -> Settings:
    given: dict[str, Any] = {"events": "kafka:t", "out": "report", "as_of_ms": 0}
    return Settings(**given | more)


def test_librdkafka_is_given_its_own_settings(file: Path) -> None:
    assert topic_settings(of_topic(), None, file) == {
        "bootstrap.servers": "a:9092,b:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "report",
        "sasl.password": "made-up",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"engine": EngineName.SPARK},
        {"master": "local[1]"},
        {"out": "s3a://bucket/report"},
        {"state": "s3a://bucket/state"},
    ],
)
def test_sparks_connector_is_given_kafkas_own(file: Path, more: dict[str, Any]) -> None:
    """Whatever the reason is that Spark reads the topic."""
    settings = of_topic(**more)
    found = topic_settings(settings, "c:9092", file)
    assert found.keys() == {
        "kafka.bootstrap.servers",
        "kafka.security.protocol",
        "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config",
    }
    assert found["kafka.bootstrap.servers"] == "c:9092"
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-256"


def test_a_folder_needs_none() -> None:
    assert topic_settings(of_topic(events="events"), None, None) == {}


@pytest.mark.parametrize(("more", "problem"), table(__file__, "report_mistakes"))
def test_mistakes_are_one_line(
    more: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["report", "--events", "kafka:t", "--out", "out", *more]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--events", "kafka:t", "--out", "report"],
        ["events", "topic", "create", "t"],
        ["events", "deliver", "--events", ".", "--to", "kafka:t"],
    ],
    ids=" ".join,
)
def test_a_token_that_is_not_there_is_said_at_once(arguments: list[str], tmp_path: Path) -> None:
    """Before librdkafka waits for one."""
    token, file = tmp_path / "token", tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    file.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism=OAUTHBEARER\nsasl.jaas.config={module} required;\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    result = CliRunner().invoke(app, [*arguments, "--command-config", str(file)])
    assert result.exit_code == 2
    problem = f"{token}: cannot be read: No such file or directory"
    assert result.stderr == f"reauth-proxy: {file}: {problem}\n"
