"""Items beyond the limit of collection are still counted."""

import re
from dataclasses import replace

import pytest

from metrics.report.facts import build_facts
from metrics.report.page import page
from tests.support.metrics import collected, first_screen


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        ("failing", "6,999 more"),
        ("unproven", "prove 7,000 principals"),
        ("ready", "enforce 7,000 principals"),
    ],
)
def test_principals_beyond_those_that_were_collected_are_counted(verdict: str, answer: str) -> None:
    given = collected("User:alice", verdict=verdict)
    counts = [{"verdict": verdict, "principals": 7000}]
    facts = build_facts(replace(given, rows=dict(given.rows) | {"principals_by_verdict": counts}))
    assert facts["principals_by_verdict"][verdict] == 7000
    assert answer in first_screen(facts)
    assert "and 6,999 more, not worse" in page(facts)


def test_who_was_denied_a_great_deal_hides_nobody_else() -> None:
    given = collected("User:zoe")
    (row,) = given.rows["denied_resources"]
    noise = [
        row | {"principal": "User:al", "resource_name": f"junk-{n}", "place": n}
        for n in range(1, 300)
    ]
    facts = build_facts(replace(given, rows=dict(given.rows) | {"denied_resources": [row, *noise]}))
    table = page(facts).split('aria-label="Missing ACLs"')[1].split("</table>")[0]
    assert table.count("User:zoe") == 2
    assert table.count("junk-") == 199


def test_denied_resources_beyond_those_that_were_collected_are_counted() -> None:
    given = collected("User:alice")
    rows = dict(given.rows) | {"denied_count": [{"resources": 6001}]}
    facts = build_facts(replace(given, rows=rows))
    assert facts["next_steps"]["missing_acls_left_out"] == 6000
    assert "decide on 6,001 denied resources" in first_screen(facts)
    said = re.sub("<[^>]*>", "", page(facts))
    assert "1 of 6,001; report.json has 1, the Parquet table tables/denials all." in said
