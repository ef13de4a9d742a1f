"""From denials to commands; the names in them are a stranger's choice."""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metrics.events import EventKind
from metrics.spark.denials import denials, denied_resources
from metrics.spark.missing_acls import missing_acls
from tests.metrics.spark.given import frame, later, login, rows

ORDERS = {"resource_type": "TOPIC", "resource_name": "orders"}


def denial(**more: Any) -> dict[str, Any]:
    fields = {"principal": "User:alice", "operations": ["READ"], "denied": 0, "would_be_denied": 2}
    return fields | ORDERS | {"place": 1} | more


def test_denials_are_added_up_by_principal_resource_and_operation(spark: SparkSession) -> None:
    would_be = EventKind.WOULD_BE_DENIED
    given = [
        login(),
        later(would_be, 1, operation="READ", denials=3, **ORDERS),
        later(would_be, 2, operation="READ", denials=2, client_host="10.0.0.8", **ORDERS),
        later(EventKind.DENIED, 3, operation="READ", **ORDERS),
        later(would_be, 3, operation="WRITE", denials=-7, **ORDERS),
    ]
    read, write = rows(frame(spark, given).transform(denials))
    assert (read["operation"], read["denied"], read["would_be_denied"]) == ("READ", 1, 5)
    assert read["hosts"] == ["10.0.0.7", "10.0.0.8"]
    assert (write["operation"], write["would_be_denied"]) == ("WRITE", 1)


def test_who_was_denied_a_great_deal_pushes_out_nobody_else(spark: SparkSession) -> None:
    """Each principal's resources have places, the most denied first."""
    noise = [
        later(EventKind.DENIED, 1, sequence=n, operation="READ", resource_type="TOPIC")
        for n in range(3)
    ]
    given = [
        *(replace(each, resource_name=f"junk-{n}") for n, each in enumerate(noise)),
        later(EventKind.DENIED, 1, sequence=3, operation="WRITE", denials=5, **ORDERS),
        later(EventKind.WOULD_BE_DENIED, 1, sequence=4, operation="READ", denials=2, **ORDERS),
        later(EventKind.DENIED, 1, sequence=5, operation="READ", principal="User:bob", **ORDERS),
    ]
    found = rows(frame(spark, given).transform(denials).transform(denied_resources))
    found.sort(key=lambda row: (row["place"], row["principal"]))
    assert [(row["principal"], row["resource_name"]) for row in found] == [
        ("User:alice", "orders"),
        ("User:bob", "orders"),
        *(("User:alice", f"junk-{n}") for n in range(3)),
    ]
    assert found[0]["operations"] == ["READ", "WRITE"]
    assert (found[0]["denied"], found[0]["would_be_denied"]) == (5, 2)


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


@pytest.mark.parametrize(
    "more",
    [
        {"resource_name": "*"},
        {"resource_name": "orders-*"},
        {"principal": "User:*"},
        {"resource_name": "x" * 255 + "…"},
        {"resource_type": "A_LATER_TYPE"},
        {"resource_type": None},
        {"operations": []},
        {"resource_type": "GROUP", "resource_name": "* "},
        {"resource_type": "GROUP", "resource_name": "\x00orders"},
        {"principal": "User:alice "},
        {"principal": "User:*\t"},
        {"resource_type": "GROUP", "resource_name": "a\nb"},
        {"resource_type": "GROUP", "resource_name": "pay\u2028ments"},
        {"principal": "User:al\u200bice"},
    ],
)
def test_no_command_allows_more_than_was_asked_for(more: dict[str, Any]) -> None:
    """To kafka-acls `*` is every topic, no operation is all of them, and blanks are nothing.

    A name that was cut is another's.
    What is not printable stands on the page as an escape, which names something else.
    `orders-*` is denied to who subscribes to `orders-.*`, and is no topic's name.
    """
    (row,) = missing_acls([denial(**more)])
    assert row["command"] is None
    assert row["note"]
