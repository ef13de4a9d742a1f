"""Client library versions and how they compare."""

import pytest

from metrics.report.libraries import LIBRARIES, is_older, library_of
from metrics.report.tables import failures


@pytest.mark.parametrize(
    ("version", "since", "older"),
    [
        ("1.9.2", "2.2.0", True),
        ("2.2.0", "2.2.0", False),
        ("v1.0", "1.0.0", False),
        ("2.10.0", "2.2.0", False),
        ("2.6.1-librdkafka-2.6.1", "2.2.0", False),
        ("4.1.0-rc1", "2.2.0", False),
        ("unknown", "2.2.0", None),
        (None, "2.2.0", None),
        ("9" * 5000, "2.2.0", None),
    ],
)
def test_versions_are_compared_by_their_numbers(
    version: str | None, since: str, older: bool | None
) -> None:
    assert is_older(version, since) is older


def test_every_library_has_a_source_and_its_names_are_its_own() -> None:
    names = [name for each in LIBRARIES for name in each.software]
    assert len(names) == len(set(names))
    assert all(each.source for each in LIBRARIES)
    assert library_of("Apache-Kafka-Java") is LIBRARIES[0]
    assert library_of(None) is library_of("mystery") is None


def test_a_principal_that_changes_is_named_as_the_cause() -> None:
    row = {"mechanism": "OAUTHBEARER", "reauthentication": True, "count": 3}
    page = failures([row | {"failure_reason": "principal_changed"}])
    assert "principal changes at re-authentication, as with an IAM role" in page
    assert "session name" not in failures([row | {"failure_reason": "expired"}])
