"""Properties files as Kafka's own tools read them."""

from pathlib import Path

import pytest

from proxy.admin import ClientSettings, OAuthBearer, Plain, Scram, read_client_properties
from proxy.admin.properties import parse_properties
from proxy.errors import ConfigError
from sasl.credentials import ScramMechanism
from tests.support.tables import table

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = f'sasl.jaas.config={MODULE} required username="alice" password="secret";\n'
JAAS, ENDPOINT = "sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url"
TOKENS = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
PLAIN = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
SCRAM = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"


def settings(tmp_path: Path, text: str) -> ClientSettings:
    file = tmp_path / "client.properties"
    file.write_text(text)
    return read_client_properties(file)


@pytest.mark.parametrize(("text", "expected"), table(__file__, "properties_syntax"))
def test_the_syntax_of_java(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_scram(tmp_path: Path) -> None:
    login = (
        f'sasl.jaas.config={MODULE} required \\\n  username="alice" \\\n  password="a=\\\\"b; c";\n'
    )
    found = settings(tmp_path, SCRAM + login + "bootstrap.servers=h:1\nrequest.timeout.ms=1500\n")
    assert found == ClientSettings(
        bootstrap_servers="h:1",
        login=Scram(username="alice", password='a="b; c', mechanism=ScramMechanism.SCRAM_SHA_512),
        request_timeout_s=1.5,
    )


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_plain(tmp_path: Path, protocol: str) -> None:
    """As Kafka's clients do, also where nothing hides the password."""
    text = (PLAIN + LOGIN).replace("SASL_SSL", protocol).replace(MODULE, PLAIN_MODULE)
    found = settings(tmp_path, text)
    assert found.login == Plain(username="alice", password="secret")
    assert "secret" not in repr(found)
    assert (found.ssl_context is not None) == (protocol == "SASL_SSL")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "sasl_ssl"])
def test_tls(tmp_path: Path, protocol: str) -> None:
    """`test_tls` covers the content of the context."""
    found = settings(tmp_path, SCRAM.replace("SASL_PLAINTEXT", protocol) + LOGIN)
    assert found.ssl_context is not None
    assert (found.login is None) == (protocol == "SSL")


def test_a_token_file(tmp_path: Path) -> None:
    found = settings(tmp_path, TOKENS + f"{ENDPOINT}=file:///etc/a%20token\n")
    assert found.login == OAuthBearer(token=Path("/etc/a token"))


@pytest.mark.parametrize("text", ["", "security.protocol=PLAINTEXT\nsasl.mechanism=PLAIN"])
def test_no_login(tmp_path: Path, text: str) -> None:
    assert settings(tmp_path, text) == ClientSettings()


@pytest.mark.parametrize(("text", "key"), table(__file__, "properties_mistakes"))
def test_mistakes_name_the_key_and_no_secret(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text)
    assert caught.value.path == key
    assert "secret" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_client_properties(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_client_properties(tmp_path / "binary")
