"""Denials, added up by principal and resource."""

from dataclasses import replace

from metrics.events import EventKind
from tests.support.readiness import answers, later, login

ORDERS = {"resource_type": "TOPIC", "resource_name": "orders"}


def test_denials_are_added_up_by_principal_resource_and_operation() -> None:
    would_be = EventKind.WOULD_BE_DENIED
    given = [
        login(),
        later(would_be, 1, operation="READ", denials=3, **ORDERS),
        later(
            would_be, 2, sequence=2, operation="READ", denials=2, client_host="10.0.0.8", **ORDERS
        ),
        later(EventKind.DENIED, 3, sequence=3, operation="READ", **ORDERS),
        later(would_be, 3, sequence=4, operation="WRITE", denials=-7, **ORDERS),
    ]
    read, write = answers(given).table("denials", "operation")
    assert (read["operation"], read["denied"], read["would_be_denied"]) == ("READ", 1, 5)
    assert read["hosts"] == ["10.0.0.7", "10.0.0.8"]
    assert (write["operation"], write["would_be_denied"]) == ("WRITE", 1)


def test_who_was_denied_a_great_deal_pushes_out_nobody_else() -> None:
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
    found = answers(given).shown["denied_resources"]
    assert [(row["principal"], row["resource_name"]) for row in found] == [
        ("User:alice", "orders"),
        ("User:bob", "orders"),
        *(("User:alice", f"junk-{n}") for n in range(3)),
    ]
    assert found[0]["operations"] == ["READ", "WRITE"]
    assert (found[0]["denied"], found[0]["would_be_denied"]) == (5, 2)
