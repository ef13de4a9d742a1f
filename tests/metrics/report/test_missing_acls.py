"""Commands that allow what was denied; the names in them are the clients' choice."""

import shlex
from typing import Any

import pytest

from metrics.report.next_steps import missing_acls
from tests.support.tables import table

ORDERS = {"resource_type": "TOPIC", "resource_name": "orders"}


def denial(**more: Any) -> dict[str, Any]:
    fields = {"principal": "User:alice", "operations": ["READ"], "denied": 0, "would_be_denied": 2}
    return fields | ORDERS | {"place": 1} | more


def test_one_command_allows_all_that_a_principal_was_denied_on_a_resource() -> None:
    operations = ["DESCRIBE_CONFIGS", "READ"]
    bob, alice = denial(principal="User:bob"), denial(operations=operations)
    alices, bobs = missing_acls([bob, alice])
    assert alices["command"] == (
        "kafka-acls --bootstrap-server HOST:PORT --add --allow-principal=User:alice "
        "--operation=DescribeConfigs --operation=Read --topic=orders"
    )
    assert alices["would_be_denied"] == 2
    assert "User:bob" in bobs["command"]


def test_the_cluster_has_no_name_to_give() -> None:
    (row,) = missing_acls([denial(resource_type="CLUSTER", resource_name="kafka-cluster")])
    assert row["command"].endswith("--operation=Read --cluster")


@pytest.mark.parametrize(
    "name", ["a b", "'; rm -rf ~ #", "$(reboot)", "--force", "-", "`x`", '"', "é"]
)
def test_a_name_stays_one_word_of_the_command(name: str) -> None:
    """A client may ask for a topic or a group of any name, and is denied it by design."""
    (row,) = missing_acls([denial(resource_type="GROUP", resource_name=name)])
    assert shlex.split(row["command"])[-1] == f"--group={name}"


@pytest.mark.parametrize("more", table(__file__, "acl_commands"))
def test_no_command_allows_more_than_was_asked_for(more: dict[str, Any]) -> None:
    """To kafka-acls `*` is every topic, no operation is all of them, and blanks are nothing.

    A name that was cut is another's.
    The page escapes unprintable characters, and the escaped text is another name.
    `orders-*` is denied to a client that subscribes to `orders-.*`; no topic has this name.
    """
    (row,) = missing_acls([denial(**more)])
    assert row["command"] is None
    assert row["note"]
