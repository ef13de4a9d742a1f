"""Creations and filters, and what Kafka 4.1.0 answers; tests/kafka/test_acl_api.py asks it."""

from typing import Any

Result = tuple[str, str | None]
DONE: Result = ("none", "")
NOT_THE_CLUSTER: Result = (
    "invalid_request",
    "The only valid name for the CLUSTER resource is kafka-cluster",
)
NO_NAME: Result = ("invalid_request", "Invalid empty resource name")


def unknown(field: str, value: str = "UNKNOWN") -> Result:
    return ("invalid_request", f"Invalid {field} {value}")


def no_colon(principal: str) -> Result:
    return (
        "invalid_request",
        f"Could not parse principal from `{principal}` (no colon is present separating the"
        " principal type from the principal name)",
    )


def creation(**changes: Any) -> dict[str, Any]:
    """Fields of a CreateAcls item, v1 to v3: alice may read a topic, unless said otherwise."""
    return {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    } | changes


def asking(**changes: Any) -> dict[str, Any]:
    """Fields of a DescribeAcls request or DeleteAcls filter: everything, unless said otherwise."""
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    } | changes


CREATIONS_SEEN: list[tuple[dict[str, Any], Result]] = [
    ({}, DONE),
    # codes that a later Kafka may know
    *[({"resource_type": code}, unknown("resourceType")) for code in (-1, 8, 99)],
    *[({"resource_pattern_type": code}, unknown("patternType")) for code in (-3, 5)],
    *[({"operation": code}, unknown("operation")) for code in (-1, 16, 99)],
    *[({"permission_type": code}, unknown("permissionType")) for code in (-5, 4)],
    # names
    ({"resource_name": ""}, NO_NAME),
    ({"resource_name": "n" * 300}, DONE),
    ({"resource_type": 4}, NOT_THE_CLUSTER),
    ({"resource_type": 4, "resource_name": ""}, NOT_THE_CLUSTER),
    (
        {"resource_type": 4, "resource_name": "kafka", "resource_pattern_type": 4},
        NOT_THE_CLUSTER,
    ),
    ({"resource_type": 4, "resource_name": "kafka-cluster"}, DONE),
    ({"resource_type": 4, "resource_name": "kafka-cluster", "resource_pattern_type": 4}, DONE),
    ({"resource_type": 8, "resource_name": ""}, NO_NAME),
    ({"resource_type": 7}, DONE),
    # principals: anything with a colon
    *[({"principal": text}, no_colon(text)) for text in ("", "alice", "*")],
    *[({"principal": text}, DONE) for text in (":", "User:", ":x", "a:b:c")],
    # hosts: anything
    *[({"host": text}, DONE) for text in ("", "not an ip", "10.0.0.0/8", "*" * 300)],
    # every operation on every resource type
    *[({"operation": code}, DONE) for code in range(2, 16)],
    # which of several mistakes is told
    ({"operation": 99, "principal": "alice"}, unknown("operation")),
    ({"resource_type": 4, "operation": 99}, NOT_THE_CLUSTER),
    (
        {
            "resource_type": 99,
            "resource_pattern_type": 9,
            "operation": 99,
            "permission_type": 9,
            "principal": "alice",
        },
        unknown("resourceType"),
    ),
]

CREATIONS_BETTER: list[tuple[dict[str, Any], Result]] = [
    # Kafka closes the connection
    ({"resource_type": 0}, unknown("resourceType")),
    ({"resource_pattern_type": 0}, unknown("patternType")),
    ({"operation": 0}, unknown("operation")),
    ({"permission_type": 0}, unknown("permissionType")),
    # Kafka fails the whole request with UNKNOWN_SERVER_ERROR
    ({"resource_type": 1}, unknown("resourceType", "ANY")),
    ({"resource_pattern_type": 1}, unknown("patternType", "ANY")),
    ({"resource_pattern_type": 2}, unknown("patternType", "MATCH")),
    ({"operation": 1}, unknown("operation", "ANY")),
    ({"permission_type": 1}, unknown("permissionType", "ANY")),
]

UNKNOWN_PATTERN: Result = ("invalid_request", "Unknown patternFilter.")
UNKNOWN_ENTRY: Result = ("invalid_request", "Unknown entryFilter.")
APPLIED: Result = ("none", None)

FILTERS_SEEN: list[tuple[dict[str, Any], Result]] = [
    ({"resource_type_filter": 99}, UNKNOWN_PATTERN),
    ({"pattern_type_filter": 9}, UNKNOWN_PATTERN),
    ({"operation": 99}, UNKNOWN_ENTRY),
    ({"permission_type": 9}, UNKNOWN_ENTRY),
    ({"resource_type_filter": 99, "operation": 99}, UNKNOWN_PATTERN),
    ({"resource_type_filter": 4, "resource_name_filter": "x"}, APPLIED),
    ({"resource_name_filter": ""}, APPLIED),
    ({"principal_filter": ""}, APPLIED),
    ({"principal_filter": "x"}, APPLIED),
]
"""As deletions that find nothing; DescribeAcls answers all of them with nothing."""

FILTERS_BETTER: list[tuple[dict[str, Any], Result]] = [
    # Kafka closes the connection
    ({"resource_type_filter": 0}, UNKNOWN_PATTERN),
    ({"pattern_type_filter": 0}, UNKNOWN_PATTERN),
    ({"operation": 0}, UNKNOWN_ENTRY),
    ({"permission_type": 0}, UNKNOWN_ENTRY),
]
"""DescribeAcls answers these with the same error."""
