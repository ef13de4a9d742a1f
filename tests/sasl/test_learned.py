"""Names of principals learned from logins that brokers judge: those that Kafka makes of them."""

import pytest

from sasl.learned import reader_of
from tests.support.frames import bearer


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("alice", "alice"),
        ("\u0000 \t alice \u001f\n", "alice"),  # what Java's `String.trim` removes
        ("\u00a0admin", "\u00a0admin"),  # and what it does not
        ("admin\u3000", "admin\u3000"),
        ("\u2028admin", "\u2028admin"),
        ("\ud800", None),  # a lone surrogate, which no answer could name
        (" \n", None),
        (7, None),
        (None, None),
    ],
)
def test_the_subject_of_a_token_is_trimmed_as_by_kafka(subject: object, name: str | None) -> None:
    """Or a client of an identity provider could be somebody else here than to the broker."""
    reader = reader_of("OAUTHBEARER", "sub")
    reader.heard(bearer(sub=subject))
    assert reader.name == name
