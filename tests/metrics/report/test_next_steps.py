"""Recommended next steps, to paste as they are."""

import pytest
import yaml

from metrics.events import MAX_TEXT_CHARS
from metrics.report.next_steps import exceptions, overrides_block, to_probe, upgrades
from metrics.rollout import Stage
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
    """A principal's name comes from a client's token: it must stay a name."""
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


def test_waves_are_pasted_from_the_top() -> None:
    names = [f"User:{number}" for number in range(15)]
    block = overrides_block(names, of=15)
    found = yaml.safe_load(block)["reauth.overrides"]
    assert found == [{"principal": name, "reauth.enforcement": "enforce"} for name in names]
    sizes = [wave.count("principal") for wave in block.split("# wave")]
    assert sizes == [0, 1, 10, 4]
    first = yaml.safe_load(block[: block.index("  # wave 2")])
    assert [each["principal"] for each in first["reauth.overrides"]] == ["User:0"]


def test_exceptions_are_complete_or_not_written() -> None:
    """A principal that is left out would be enforced."""
    rows = [{"principal": f"User:{stage}", "stage": stage} for stage in map(str, Stage)]
    found = yaml.safe_load(exceptions(rows, of=6))
    assert found["reauth.enforcement"] == "enforce"
    probed = [each["principal"] for each in found["reauth.overrides"]]
    assert probed == ["User:seen", "User:undecided", "User:capable", "User:demoted"]
    assert exceptions(rows[4:], of=2) == "reauth.enforcement: enforce\n"
    assert exceptions(rows, of=7) == exceptions([], of=0) == ""
    cut = {"principal": "x" * MAX_TEXT_CHARS, "stage": "seen"}
    assert exceptions([cut], of=1) == ""


def test_what_are_too_many_to_name_are_counted() -> None:
    assert "in the tables: 5" in overrides_block(["User:alice"], of=6)


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
