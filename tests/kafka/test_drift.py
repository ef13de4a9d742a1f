"""The comparison with a release of Kafka, on the jars that the tests run."""

from pathlib import Path

import pytest

from tests.drift.comparison import unknown_apis, unknown_fields, unknown_versions
from tests.drift.definitions import read_definitions
from tests.drift.settings import read_settings
from tests.support.kafka.java import KAFKA_VERSION, class_path, is_since

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_kafka")]


def clients_jar() -> Path:
    return Path(class_path().removesuffix("/*")) / f"kafka-clients-{KAFKA_VERSION}.jar"


@pytest.mark.skipif(not is_since("4.0"), reason="what Kafka 4 dropped is not known by fields")
def test_the_release_of_the_tests_has_no_message_that_is_unknown() -> None:
    definitions = read_definitions(clients_jar())
    assert len(definitions.messages) > 150
    assert not definitions.unreadable
    for unknown in (unknown_apis, unknown_versions, unknown_fields):
        assert not list(unknown(definitions))


def test_its_settings_are_found() -> None:
    settings = read_settings([clients_jar()])
    assert {"sasl.oauthbearer.jwks.endpoint.url", "ssl.truststore.certificates"} <= settings
