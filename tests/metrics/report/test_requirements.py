"""Requirements that a pipeline makes of the report."""

from typing import Any

import pytest

from metrics.report.requirements import duration_ms, judged, requirement
from tests.support.tables import table


def lifetime(
    minutes: int, killed: int = 0, unproven: int = 0, cut_short: int = 0
) -> dict[str, Any]:
    return {
        "lifetime_ms": minutes * 60_000,
        "observed_ms": 300_000,
        "killed_connections": killed,
        "unproven_connections": unproven,
        "cut_short_connections": cut_short,
    }


FACTS = {
    "clients_by_verdict": {"ready": 5, "unproven": 1, "not_capable": 1, "unknown": 20},
    "never_logged_in": 20,
    "what_if": [
        lifetime(1),
        lifetime(2, unproven=2),
        lifetime(3, killed=12, unproven=3, cut_short=2),
        lifetime(4, killed=1, cut_short=1),
        lifetime(5),
        lifetime(6),
    ],
    "breaks_at_kafka_4": {"client_count": 2},
}
PRINCIPALS = [
    {"principal": "User:alice", "clients": 3, "ready": 3, "enforceable": True},
    {"principal": "User:bob", "clients": 3, "ready": 2, "enforceable": False},
    {"principal": "User:carol", "clients": 1, "ready": 0, "enforceable": False},
]


@pytest.mark.parametrize(("text", "met", "found"), table(__file__, "requirements"))
def test_a_requirement_is_held_against_the_facts(text: str, met: bool, found: str) -> None:
    assert judged([requirement(text)], FACTS, PRINCIPALS) == [
        {"require": text, "met": met, "found": found}
    ]


def test_nothing_seen_meets_nothing() -> None:
    """Nor do clients that never authenticated: they have no share and no principal."""
    nothing = {
        "clients_by_verdict": {"ready": 0, "unknown": 3},
        "never_logged_in": 3,
        "what_if": [],
        "breaks_at_kafka_4": {"client_count": 0},
    }
    texts = ("0%", "User:alice", "no-kills@1m", "kafka4-ready")
    found = judged([requirement(text) for text in texts], nothing, [])
    assert [row["met"] for row in found] == [False, False, False, False]
    assert [row["found"] for row in found] == [
        "no client logged in",
        "was not seen",
        "no client logged in",
        "no client logged in",
    ]


@pytest.mark.parametrize(
    ("clients", "met", "found"),
    [
        (0, True, "no client uses versions that it dropped"),
        (1, False, "1 client uses versions that it dropped"),
    ],
)
def test_kafka_4_needs_clients_that_use_nothing_it_dropped(
    clients: int, met: bool, found: str
) -> None:
    facts = FACTS | {"breaks_at_kafka_4": {"client_count": clients}}
    assert judged([requirement("kafka4-ready")], facts, []) == [
        {"require": "kafka4-ready", "met": met, "found": found}
    ]


@pytest.mark.parametrize("text", ["", "alice", "100.5%", "120%", "no-kills@", "no-kills@1x", "-1%"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not a requirement|not a duration|more than 100%)"):
        requirement(text)


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("4h", 14_400_000)])
def test_durations_carry_their_unit(text: str, ms: int) -> None:
    assert duration_ms(text) == ms
