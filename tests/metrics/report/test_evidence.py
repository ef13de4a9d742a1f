"""What a verdict rests on, in words."""

import pytest

from metrics.report.evidence import day_name, evidence
from tests.support.metrics import client

DAY = 20_771


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "SaslAuthenticate v0 on 2 of 2 connections"),
        (
            {"raw_token_connections": 1, "connections": 1},
            "raw SASL tokens (SaslHandshake v0) on 1 of 1 connection",
        ),
        (
            {"verdict": "failing", "killed": 1, "past_end_ms": 237_600_000, "failed_on": DAY},
            "used once past the end of a session by up to 2 d 18 h, last on 14 Nov 2026, "
            "3 re-authentications succeeded",
        ),
        (
            {"verdict": "failing", "killed": 0, "reauth_failures": 2, "failed_on": DAY}
            | {"reauthentications": 0},
            "2 re-authentications failed, last on 14 Nov 2026",
        ),
        ({"verdict": "ready"}, "re-authenticated 3 times, always in time"),
        ({"verdict": "ready", "reauthentications": 1}, "re-authenticated once, always in time"),
        (
            {"verdict": "ready", "failed_on": DAY, "ready_since": DAY + 1, "killed": 1}
            | {"past_end_ms": None},
            "ready since 15 Nov 2026, 3 re-authentications in all, used once past the end of a "
            "session, last on 14 Nov 2026",
        ),
        ({"verdict": "unproven"}, "speaks v1 or later, was never given a lifetime"),
        (
            {"verdict": "unproven", "announced_ms": 900_000},
            "was given a lifetime, but never stayed to its end",
        ),
        (
            {"verdict": "failing", "killed": 0, "hasty_ms": 5_000},
            "with lifetimes up to 5 s it re-authenticates within a second of the last time, which "
            "brokers refuse, 3 re-authentications succeeded",
        ),
        (
            {"verdict": "ready", "killed": 0, "hasty_ms": 5_000, "ready_from_ms": 30_000},
            "ready from 30 s, with lifetimes up to 5 s it re-authenticates within a second of the "
            "last time, which brokers refuse",
        ),
        (
            {"verdict": "failing", "reauthentications": 0, "failed_on": DAY}
            | {"throttled_ms": 90_000, "throttled_by": "producer_byte_rate of user=alice"},
            "used once past the end of a session by up to 1 min, throttled for 1 min 30 s beyond "
            "the end of a session, by the quota producer_byte_rate of user=alice, last on 14 Nov "
            "2026",
        ),
        (
            {"verdict": "unknown"},
            "a session was used past its end, or its lifetime is not in the log, and an older "
            "version of the proxy did not record on which days",
        ),
        ({"verdict": "unknown", "principal": None}, "never logged in"),
        (
            {"verdict": "unknown", "principal": None, "login_failures": 1},
            "1 login failed, none succeeded",
        ),
    ],
)
def test_a_verdict_is_explained(fields: dict[str, object], said: str) -> None:
    assert evidence(client(**fields)) == said


def test_a_day_beyond_the_calendar_has_a_number() -> None:
    assert day_name(10**9) == "day 1000000000"
