"""The data file beside the release of Kafka that the tests run, and beside its Java classes."""

import re
from pathlib import Path

import pytest

from tests.drift.generate import CLIENTS, ERROR_CODES, MESSAGES, error_codes_of, messages_of
from tests.drift.settings import read_settings
from tests.support.kafka.java import KAFKA_VERSION, class_path

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_kafka")]


def clients_jar() -> Path:
    return Path(class_path().removesuffix("/*")) / f"{CLIENTS}-{KAFKA_VERSION}.jar"


def test_the_files_are_those_that_are_generated(tmp_path: Path) -> None:
    text = MESSAGES.read_text()
    found = re.match(r"# Messages of Apache Kafka (\S+),", text)
    assert found is not None
    if found[1] != KAFKA_VERSION:
        pytest.skip(f"the messages are those of {found[1]}")
    assert text == messages_of(KAFKA_VERSION, clients_jar(), tmp_path)
    assert ERROR_CODES.read_text() == error_codes_of(KAFKA_VERSION)


def test_its_settings_are_found() -> None:
    settings = read_settings([clients_jar()])
    assert {"sasl.oauthbearer.jwks.endpoint.url", "ssl.truststore.certificates"} <= settings
