"""The page is made of names that strangers chose; and it needs nothing but itself."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from metrics.report.facts import Collected, build_facts
from metrics.report.page import page
from metrics.report.svg import nice_ceiling, short_number
from metrics.report.words import duration, moment, number

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202egnp'


def client(**more: Any) -> dict[str, Any]:
    fields = {
        "principal": "User:alice",
        "client_id": "app",
        "client_software_name": "librdkafka",
        "client_software_version": "1.9.2",
        "mechanism": "SCRAM-SHA-256",
        "connections": 2,
        "verdict": "not_capable",
        "evidence": "SaslAuthenticate v0 on 2 of 2 connections",
        "hosts": ["10.0.0.1"],
        "host_count": 3,
        "credential_lifetime_ms": 30_000,
        "outlived_ms": None,
        "used_ms": 9_000,
    }
    return fields | more


def collected(name: str, *, verdict: str = "not_capable") -> Collected:
    verdicts = {each: int(each == verdict) for each in ("ready", "unproven", "failing", "unknown")}
    one = client(
        principal=name, client_id=name, client_software_name=name, verdict=verdict, hosts=[name]
    )
    row = {"principal": name, "clients": 1, "verdict": verdict, "enforceable": verdict == "ready"}
    what_if = {
        "lifetime_ms": 900_000,
        "killed_connections": 2,
        "killed_clients": 1,
        "killed_principals": 1,
        "kills_per_day_least": 3.0,
        "kills_per_day_most": 5.5,
        "late_median_ms": 61_000,
        "unproven_connections": 1,
    }
    day = {"day": 20_000, "clients": 1, "ready": 0, "not_capable": 1, "ready_share": 0.0}
    storm = {"minute_ms": 0, "mechanism": name, "authentications": 3, "reauthentications": 1}
    rows: dict[str, list[dict[str, Any]]] = {
        "clients": [one],
        "clients_by_verdict": [
            {"verdict": verdict, "clients": 1, "connections": 2, "from_ms": 0, "to_ms": 60_000}
        ],
        "principals": [
            row | verdicts | {"not_capable": int(verdict == "not_capable"), "connections": 2}
        ],
        "what_if": [what_if],
        "session_lengths": [{"up_to_ms": 120_000, "standing": verdict, "connections": 2}],
        "storms": [storm | {"busy_us": 12_000}],
        "storm_profile": [storm],
        "latencies": [
            {"mechanism": name, "kind": "reauthenticated", "count": 3}
            | {"p50_us": 900.0, "p95_us": 1200.0, "p99_us": None}
        ],
        "by_day": [day],
        "short_tokens": [one],
        "failures": [
            {"mechanism": name, "failure_reason": name, "reauthentication": True, "count": 1}
        ],
        "denials": [
            {"principal": name, "resource_type": "TOPIC", "resource_name": name}
            | {"operation": "READ", "denied": 1, "would_be_denied": 2}
        ],
    }
    lines = dict.fromkeys(
        ("unreadable", "unknown_version", "unknown_kind", "impossible", "duplicate", "missing"), 0
    )
    return Collected(
        as_of_ms=120_000, source=name, lines=lines | {"lines": 9, "future": 1}, rows=rows
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_name_from_a_stranger_is_text_and_nothing_else() -> None:
    facts = build_facts(collected(HOSTILE)) | {"requirements": [{"require": HOSTILE, "met": False}]}
    written = page(facts)
    tags = Tags()
    tags.feed(written)
    assert tags.open == []
    assert not tags.seen & {"script", "img", "iframe", "link", "object", "a"}
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "\x1b" not in written
    assert "\u202e" not in written


def test_the_page_needs_no_network() -> None:
    written = page(build_facts(collected("User:alice")))
    assert "default-src 'none'" in written
    assert re.findall(r"(?:src|href)=|url\(|@import|https?://", written) == []


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        ("not_capable", "1 of 1 client would break"),
        ("failing", "1 of 1 client would break"),
        ("unproven", "have not been proven"),
        ("ready", "The one client is ready"),
    ],
)
def test_the_first_sentence_answers_the_question(verdict: str, answer: str) -> None:
    assert answer in page(build_facts(collected("User:alice", verdict=verdict)))


def test_the_json_says_which_schema_it_has() -> None:
    facts = build_facts(collected("User:alice"))
    assert facts["schema_version"] == 1
    assert facts["trend"]["days"][0]["day"] == "2024-10-04"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 ms"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (9e7, "1 d 1 h"),
    ],
)
def test_durations_are_written_in_their_largest_units(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_a_time_beyond_the_calendar_is_written_without_failing() -> None:
    assert moment(10**18) == "beyond the calendar"


@pytest.mark.parametrize(("value", "top"), [(0, 4), (4, 4), (5, 6), (11, 20), (950, 1000)])
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_ceiling(value) == top


def test_numbers_are_short() -> None:
    assert (short_number(1234), number(1234567), number(0.25)) == (
        "1.23 k",
        "1\u202f234\u202f567",
        "0.25",
    )
