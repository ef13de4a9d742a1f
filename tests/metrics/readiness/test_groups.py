"""Clients added up by the groups of their last logins."""

import pytest

from metrics.report.requirements import judged, requirement
from tests.support.readiness import IN_GROUPS, answers, login


def test_a_client_counts_in_each_group_of_its_last_login() -> None:
    found = answers(IN_GROUPS).table("groups", "principal")
    assert [
        (row["principal"], row["verdict"], row["principals"], row["clients"], row["ready"])
        for row in found
    ] == [("Group:a", "not_capable", 2, 2, 1), ("Group:c", "ready", 1, 1, 1)]


def test_a_client_with_other_groups_on_another_connection_is_in_all_of_them_once() -> None:
    given = [login(groups=("Group:a", "Group:b")), login(connection_id="c-2", groups=("Group:a",))]
    found = answers(given).table("groups", "principal")
    assert [(row["principal"], row["clients"], row["connections"]) for row in found] == [
        ("Group:a", 1, 2),
        ("Group:b", 1, 2),
    ]


def test_the_worst_group_is_shown_first() -> None:
    shown = answers(IN_GROUPS).shown
    assert [row["principal"] for row in shown["groups"]] == ["Group:a", "Group:c"]
    assert shown["group_count"] == [{"groups": 2}]


def test_where_nobody_has_groups_there_are_none() -> None:
    shown = answers([login()]).shown
    assert (shown["groups"], shown["group_count"]) == ([], [{"groups": 0}])


@pytest.mark.parametrize(
    ("group", "met", "text"),
    [
        ("Group:a", False, "1 of 2 clients are ready"),
        ("Group:c", True, "1 of 1 client is ready"),
        ("Group:b", False, "was not seen"),
    ],
)
def test_a_group_may_be_required_to_be_ready(group: str, met: bool, text: str) -> None:
    asked = answers(IN_GROUPS, principals=[group]).shown["asked_for"]
    (row,) = judged([requirement(group)], {}, asked)
    assert (row["met"], row["found"]) == (met, text)
