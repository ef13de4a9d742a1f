from typing import Any

import pytest
import yaml

from metrics.events import MAX_TEXT_CHARS
from metrics.spark.gate import duration_ms, judged, requirement
from metrics.spark.libraries import LIBRARIES, is_older, library_of
from metrics.spark.next_steps import overrides_block, to_probe, upgrades
from proxy.config.listener import ReauthOverride


@pytest.mark.parametrize(
    "name",
    [
        "User:alice",
        "User:a: b",
        'User:"x"',
        "User:#1",
        "User:é\u2028",
        "User:\n- x: 1",
        "User:\N{ROCKET}",
    ],
)
def test_the_block_is_what_the_configuration_reads(name: str) -> None:
    """A principal's name comes from a stranger's token: it must stay a name."""
    block = overrides_block([name], of=1)
    (override,) = yaml.safe_load(block)["reauth.overrides"]
    assert override == {"principal": name, "reauth.enforcement": "enforce"}
    assert ReauthOverride.model_validate(override).principal == name


def test_a_name_that_was_cut_would_match_nobody_and_is_left_out() -> None:
    cut = "User:" + "x" * MAX_TEXT_CHARS
    assert overrides_block([cut], of=1) == ""
    block = overrides_block([cut, "User:alice"], of=2)
    assert "their names are cut in the log: 1" in block
    assert [each["principal"] for each in yaml.safe_load(block)["reauth.overrides"]] == [
        "User:alice"
    ]


def test_nobody_to_enforce_is_no_block() -> None:
    assert overrides_block([], of=0) == ""
    assert to_probe([{"principal": "User:bob", "verdict": "unproven"}]) == ["User:bob"]


def test_what_are_too_many_to_name_are_counted() -> None:
    assert "in the table tables/principals: 5" in overrides_block(["User:alice"], of=6)


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


def test_what_to_upgrade_is_said_once_for_each_version() -> None:
    versions = [("librdkafka", "1.9.2"), ("librdkafka", "2.6.0"), (None, None)]
    given = [
        {"client_software_name": name, "client_software_version": version}
        | {"clients": 2, "principals": ["User:a", "User:b"], "principal_count": 2}
        for name, version in versions
    ]
    old, new, nameless = upgrades(given)
    assert (old["clients"], old["principals"]) == (2, ["User:a", "User:b"])
    assert old["advice"].startswith("upgrade to 2.2.0")
    assert "should re-authenticate" in new["advice"]
    assert nameless["library"] is None


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
    "what_if": [
        lifetime(1),
        lifetime(2, unproven=2),
        lifetime(3, killed=12, unproven=3, cut_short=2),
        lifetime(4, killed=1, cut_short=1),
        lifetime(5),
        lifetime(6),
    ],
}
PRINCIPALS = [
    {"principal": "User:alice", "clients": 3, "ready": 3, "enforceable": True},
    {"principal": "User:bob", "clients": 3, "ready": 2, "enforceable": False},
    {"principal": "User:carol", "clients": 1, "ready": 0, "enforceable": False},
]


@pytest.mark.parametrize(
    ("text", "met", "found"),
    [
        ("71.4%", True, "5 of 7 clients are ready, 71.4%"),
        ("71.5%", False, "5 of 7 clients are ready, 71.4%"),
        ("71.43%", False, "5 of 7 clients are ready, 71.4%"),
        ("0%", True, "5 of 7 clients are ready, 71.4%"),
        ("User:alice", True, "3 of 3 clients are ready"),
        ("User:bob", False, "2 of 3 clients are ready"),
        ("User:carol", False, "0 of 1 client is ready"),
        ("User:dave", False, "was not seen"),
        ("no-kills@1m", True, "no connections would be killed"),
        ("no-kills@2m", False, "no connections would be killed, 2 are unproven"),
        (
            "no-kills@3m",
            False,
            "12 connections would be killed, 3 are unproven, 2 were cut short",
        ),
        ("no-kills@4m", False, "1 connection would be killed, 1 was cut short"),
        ("no-kills@5m", True, "no connections would be killed"),
        ("no-kills@6m", False, "no connections would be killed, only 5 min were observed"),
    ],
)
def test_a_requirement_is_held_against_the_facts(text: str, met: bool, found: str) -> None:
    assert judged([requirement(text)], FACTS, PRINCIPALS) == [
        {"require": text, "met": met, "found": found}
    ]


def test_nothing_seen_meets_nothing() -> None:
    """Nor do strangers, of whom no share is ready and no principal known."""
    nothing = {"clients_by_verdict": {"ready": 0, "unknown": 3}, "what_if": []}
    texts = ("0%", "User:alice", "no-kills@1m")
    found = judged([requirement(text) for text in texts], nothing, [])
    assert [row["met"] for row in found] == [False, False, False]
    assert [row["found"] for row in found] == [
        "no client logged in",
        "was not seen",
        "no client logged in",
    ]


@pytest.mark.parametrize("text", ["", "alice", "100.5%", "120%", "no-kills@", "no-kills@1x", "-1%"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (no requirement|no duration|more than 100%)"):
        requirement(text)


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("4h", 14_400_000)])
def test_durations_carry_their_unit(text: str, ms: int) -> None:
    assert duration_ms(text) == ms
