"""What a verdict rests on, in words."""

import pytest

from metrics.report.evidence import day_name, evidence
from tests.support.metrics import client
from tests.support.tables import table


@pytest.mark.parametrize(("fields", "said"), table(__file__, "evidence"))
def test_a_verdict_is_explained(fields: dict[str, object], said: str) -> None:
    assert evidence(client(**fields)) == said


def test_a_day_beyond_the_calendar_has_a_number() -> None:
    assert day_name(10**9) == "day 1000000000"
