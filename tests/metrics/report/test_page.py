"""The page contains names that clients chose, and is self-contained."""

import re
from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from metrics.events import MAX_TEXT_CHARS
from metrics.report.facts import build_facts
from metrics.report.formats import duration, moment, name_of, number, rate, share, span
from metrics.report.page import block, page
from tests.support.metrics import collected, facts_of, first_screen

DAY_MS = 86_400_000

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202egnp'


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: dict[str, list[str | None]] = defaultdict(list)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            self.attributes[name].append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags_of(written: str) -> Tags:
    tags = Tags()
    tags.feed(written)
    assert tags.open == []
    return tags


def test_a_name_that_a_client_chose_is_text_and_nothing_else() -> None:
    required = {"require": HOSTILE, "met": False, "found": "was not seen"}
    facts = build_facts(collected(HOSTILE)) | {"requirements": [required]}
    written = page(facts)
    tags = tags_of(written)
    assert written.count("<script>") == 1, "the page's own"
    assert not tags.seen & {"img", "iframe", "link", "object"}
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "\x1b" not in written
    assert "\u202e" not in written


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0c"], ids=ascii)
def test_a_line_to_copy_stays_one_line(end: str) -> None:
    """Where Python sees the end of a line a shell sees none: one command would become two."""
    assert block("text", f"one{end}line\nanother\n").count("\n") == 1


def test_the_page_needs_no_network() -> None:
    written = page(build_facts(collected("User:alice")))
    assert "default-src 'none'" in written
    assert re.findall(r'src=|href="[^#]|url\(|@import|https?://', written) == []


@pytest.mark.parametrize("verdict", ["not_capable", "failing", "unproven", "ready", "unknown"])
def test_what_a_link_promises_is_on_the_page(verdict: str) -> None:
    """The first screen names what is to be done, and where it is explained."""
    tags = tags_of(page(facts_of(verdict)))
    ids = tags.attributes["id"]
    assert len(ids) == len(set(ids))
    assert {f"#{each}" for each in ids} >= set(tags.attributes["href"])


@pytest.mark.parametrize(
    ("verdict", "answers"),
    [
        ("not_capable", ["1 of 1 client would break", "WhoUser:alice (1 not capable)", "upgrade"]),
        ("failing", ["1 of 1 client would break", "WhoUser:alice (1 failing)", "upgrade"]),
        ("unproven", ["1 of 1 client has not been proven", "Not proven: User:alice", "prove 1"]),
        ("ready", ["The one client is ready", "Nowenforce 1 principal"]),
        ("unknown", ["No client has logged in.", "1 client never logged in: User:alice"]),
    ],
)
def test_the_first_screen_says_who_breaks_and_what_to_do(verdict: str, answers: list[str]) -> None:
    said = first_screen(facts_of(verdict))
    for answer in answers:
        assert answer in said


def lifetime(
    minutes: int,
    killed: int,
    *,
    unproven: int = 0,
    cut_short: int = 0,
    a_day: tuple[float, float] | tuple[None, None] = (None, None),
    observed_minutes: int = 120,
) -> dict[str, Any]:
    (row,) = collected("User:alice").rows["what_if"]
    judged = killed or observed_minutes >= minutes
    return row | {
        "lifetime_ms": minutes * 60_000,
        "killed_connections": killed if judged else None,
        "killed_clients": 1 if judged else None,
        "unproven_connections": unproven if judged else None,
        "cut_short_connections": cut_short,
        "kills_per_day_least": a_day[0],
        "kills_per_day_most": a_day[1],
        "observed_ms": observed_minutes * 60_000,
    }


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        (
            [lifetime(5, 3, a_day=(80.2, 99.6)), lifetime(15, 0)],
            "A lifetime of 5 min would have killed 3 connections of 1 client, 80 to 100 times a "
            "day; from 15 min on no connection.",
        ),
        (
            [lifetime(5, 3), lifetime(15, 1)],
            "A lifetime of 5 min would have killed 3 connections of 1 client; one of 15 min would "
            "have killed 1 connection of 1 client.",
        ),
        (
            [lifetime(5, 3), lifetime(15, 0, cut_short=3), lifetime(30, 0, cut_short=4)],
            "A lifetime of 5 min would have killed 3 connections of 1 client. From 15 min on "
            "the figures are incomplete: 4 connections were cut short, by a kill or a failed "
            "re-authentication.",
        ),
        (
            [lifetime(5, 3), lifetime(15, 0), lifetime(30, 0), lifetime(60, 0, cut_short=1)],
            "A lifetime of 5 min would have killed 3 connections of 1 client; from 15 min to 30 "
            "min no connection. From 1 h on the figures are incomplete: 1 connection was cut ",
        ),
        ([lifetime(5, 1)], "A lifetime of 5 min would have killed 1 connection of 1 client."),
        (
            [lifetime(5, 0, unproven=2), lifetime(15, 0)],
            "No connection that is known to break was used longer than 5 min, and 2 unproven ones.",
        ),
        ([lifetime(5, 0)], "No connection that is known to break was used longer than 5 min."),
        (
            [lifetime(5, 1, observed_minutes=9), lifetime(15, 0, observed_minutes=9)],
            "A lifetime of 5 min would have killed 1 connection of 1 client. Events cover "
            "only 9 min, too little to judge 15 min.",
        ),
        (
            [lifetime(5, 0, observed_minutes=1), lifetime(15, 0, observed_minutes=1)],
            "Events cover only 1 min, too little to judge 5 min or more.",
        ),
    ],
)
def test_the_first_screen_says_when(rows: list[Any], answer: str) -> None:
    assert f"When{answer}" in first_screen(facts_of(what_if=rows))


def test_where_events_are_missing_nothing_is_a_most() -> None:
    facts = facts_of(what_if=[lifetime(5, 3, a_day=(80.2, 99.6))])
    lines = facts["lines"] | {"missing": 1}
    assert "1 client, at least 80 times a day." in first_screen(facts | {"lines": lines})
    assert ">at least 80</td>" in page(facts | {"lines": lines})
    assert ">80 to 100</td>" in page(facts)


def test_where_events_are_missing_the_lack_of_kills_is_unknown() -> None:
    lines = facts_of()["lines"] | {"missing": 1}
    some = first_screen(facts_of(what_if=[lifetime(5, 3), lifetime(15, 0)], lines=lines))
    assert "from 15 min on the number is unknown, as events are missing." in some
    facts = facts_of(what_if=[lifetime(5, 0), lifetime(15, 0)], lines=lines)
    assert "No kill is known from 5 min on, but events are missing." in first_screen(facts)
    assert "Kills by lifetimes from 5 min to 15 min are unknown: events are missing." in page(facts)


@pytest.mark.parametrize(("minimum_ms", "advice"), [(60_000, "enforce"), (60_001, "observe")])
def test_enforcing_is_advised_only_after_the_minimum_time(minimum_ms: int, advice: str) -> None:
    given = replace(collected("User:alice", verdict="ready"), min_observed_ms=minimum_ms)
    written = page(build_facts(given))
    head = first_screen(build_facts(given))
    assert f"Now{advice} {'1 principal' if advice == 'enforce' else 'for 1 min'}" in head
    assert ("reauth.enforcement: enforce" in written) == (advice == "enforce")
    assert ("events cover only 1 min" in written) == (advice == "observe")


def test_a_client_that_never_logged_in_counts_nowhere_among_the_others() -> None:
    facts = facts_of("unknown")
    written = page(facts)
    assert re.findall(r"<b>(\d+)</b><span>([a-z ,]+)", written)[-2:] == [
        ("0", "unknown"),
        ("1", "never logged in"),
    ]
    assert "<summary>1 client: never logged in</summary>" in written


def test_a_client_has_a_timeline() -> None:
    """Days with the same verdict are one bar."""
    given = collected("User:alice")
    days = [(20_003, "ready"), (20_002, "failing"), (20_001, "failing"), (2**40, "ready")]
    rows = dict(given.rows) | {"timelines": [{"client_key": "0123", "days": days}]}
    written = page(build_facts(replace(given, rows=rows)))
    (details,) = re.findall(
        r'<details><summary>details</summary><div id="client-0123">.*?</details>', written
    )
    assert '<a href="#client-0123">' in details
    assert re.findall(r'<li class="(\w+)" style="flex-grow:(\d)">([^<]+)', details) == [
        ("failing", "2", "2024-10-05 to 2024-10-06: failing"),
        ("ready", "1", "2024-10-07: ready"),
    ]
    assert "<dt>requests</dt><dd>5,000</dd>" in details


def test_only_the_pages_own_script_runs() -> None:
    """Also where nginx serves the page, which adds a policy of its own."""
    written = page(facts_of())
    (script,) = re.findall("<script>(.*?)</script>", written, re.DOTALL)
    expected = f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    policy = re.findall(r"content=\"(default-src [^\"]*)\"", written)[0]
    assert f"script-src {expected};" in policy
    nginx = Path("deploy/report/nginx.conf").read_text()
    assert f"script-src {expected};" in nginx


def test_a_lifetime_longer_than_what_was_observed_is_not_said_to_kill_nothing() -> None:
    brief = [lifetime(minutes, 0, observed_minutes=1) for minutes in (5, 15)]
    rows = page(facts_of(what_if=brief)).split("<tbody>")[1].split("</tr>")
    cells = [re.sub("<[^>]*>", "", cell) for cell in rows[0].split("</td>")]
    assert cells == ["5 min", *["unknown"] * 4, "1 min 1 s", *["unknown"] * 2, ""]
    assert "Events cover only 1 min, too little to judge these lifetimes" in page(
        facts_of(what_if=brief)
    )
    partly = [lifetime(5, 0, observed_minutes=9), lifetime(15, 0, observed_minutes=9)]
    said = page(facts_of(what_if=partly))
    assert "No connection would have been killed by a lifetime of 5 min" in said
    cut = page(facts_of(what_if=[lifetime(5, 0, cut_short=2)]))
    assert "No connection would" not in cut
    assert "2 cut short" in cut


def test_the_first_screen_says_by_what_a_requirement_is_not_met() -> None:
    required = {"require": "95%", "met": False, "found": "0 of 1 client is ready, 0.0%"}
    assert "95%: not met (0 of 1 client is ready, 0.0%)" in first_screen(
        facts_of(requirements=[required])
    )


def test_the_first_screen_says_what_makes_it_doubtful() -> None:
    """A duplicate does not: every log that is delivered at least once has some."""
    facts = facts_of()
    assert "1 line was set aside; see" in first_screen(facts)
    whole = dict(facts["lines"]) | {"future": 0, "duplicate": 7}
    assert "Mind" not in first_screen(facts | {"lines": whole})
    late = {"lines": whole | {"missing": 2}, "as_of_ms": facts["observed"]["to_ms"] + 2 * DAY_MS}
    assert "Mind: the newest event is 2 d old, 2 events are missing" in first_screen(facts | late)
    bounded = {"observed": facts["observed"] | {"left_out_connections": 2}}
    assert "2 connections were left out, of clients with too many" in first_screen(facts | bounded)


def test_nothing_at_all_says_where_to_look() -> None:
    """A log with only denials is not empty."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in collected("User:alice").rows}
    rows["denied_count"] = [{"resources": 0}]
    rows["observed"] = [{"left_out": 0, "from_ms": None, "to_ms": None, "covered_ms": None}]
    nothing = build_facts(replace(collected("User:alice"), rows=rows))
    assert "Nowsee whether clients come through the proxy" in first_screen(nothing)
    given = collected("User:alice").rows
    denied = rows | {name: given[name] for name in ("denied_resources", "denied_count")}
    only_denied = build_facts(replace(collected("User:alice"), rows=denied))
    assert "Nowdecide on 1 denied resource" in first_screen(only_denied)
    assert "come through" not in first_screen(only_denied)
    tags_of(page(nothing))


def day(number: int, clients: int, ready: int) -> dict[str, Any]:
    return {"day": 20_000 + number, "clients": clients, "ready": ready} | {
        "ready_share": ready / clients
    }


@pytest.mark.parametrize(
    ("days", "outlook"),
    [
        ([day(0, 1, 1)], "Ready on 2024-10-04: 1 of the 1 client seen, of 60 in all."),
        (
            [day(0, 60, 20), day(1, 60, 30), day(2, 50, 30), day(3, 1, 1)],
            "Ready on 2024-10-06: 30 of the 50 clients seen, of 60 in all; by the present trend "
            "all on 2024-10-09. What came after saw less than half as many clients as the fullest "
            "day.",
        ),
        ([day(0, 60, 20)], "20 of the 60 clients seen; it takes three days to speak of a trend."),
        ([day(n, 60, 20) for n in range(3)], "the trend does not lead to all."),
    ],
)
def test_the_trend_says_how_many_of_how_many(days: list[Any], outlook: str) -> None:
    """One client that was ready on a day without the others is not all of them."""
    given = collected("User:alice")
    verdicts = [row | {"clients": 60, "logged_in": 60} for row in given.rows["clients_by_verdict"]]
    rows = dict(given.rows) | {"by_day": days, "clients_by_verdict": verdicts}
    assert outlook in page(build_facts(replace(given, rows=rows)))


def test_a_missing_name_is_unknown() -> None:
    assert name_of(None) == '<span class="none">unknown</span>'


def test_a_name_of_ten_thousand_characters_is_cut() -> None:
    assert len(name_of("x" * 10_000)) < 300
    assert name_of("x" * MAX_TEXT_CHARS) == f"<bdi>{'x' * MAX_TEXT_CHARS}</bdi>"


def test_the_json_says_which_schema_it_has() -> None:
    facts = build_facts(collected("User:alice"))
    assert facts["schema_version"] == 2
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


def test_numbers_are_short() -> None:
    assert [number(value) for value in (1234567, 0.25, 9.96, 99.6)] == [
        "1,234,567",
        "0.25",
        "10",
        "100",
    ]


def test_seldom_is_not_never() -> None:
    assert [rate(value) for value in (0, 0.03, 0.1)] == ["0", "&lt; 0.1", "0.1"]
    assert [share(value) for value in (0, 0.03, 12.3)] == ["0 %", "&lt; 0.1 %", "12 %"]


def test_a_span_within_a_day_names_the_day_once() -> None:
    assert span(0, 0) == "1970-01-01 00:00"
    assert span(0, 60_000) == "1970-01-01 00:00 to 00:01"
    assert span(0, DAY_MS) == "1970-01-01 00:00 to 1970-01-02 00:00"
    assert span(None, None) == "\N{EN DASH}"


def test_a_wrong_clock_is_named_with_its_dates() -> None:
    lines = facts_of()["lines"] | {"implausible": 12}
    clock = {"events": 12, "first_ms": 946_684_800_000, "last_ms": 946_771_200_000}
    written = page(facts_of(wrong_clocks=[clock], lines=lines))
    assert "12 of a wrong clock" in written
    assert (
        "12 events are dated 2000-01-01 00:00 to 2000-01-02 00:00, far from all others" in written
    )
    assert "set aside; see" in first_screen(facts_of(lines=lines))
    ahead = {"events": 1, "first_ms": 3_786_912_000_000, "last_ms": 3_786_912_000_000}
    assert "1 event is dated 2090-01-01 00:00, ahead of this report" in page(
        facts_of(ahead=[ahead])
    )


def test_contents_name_every_section_that_there_is() -> None:
    written = page(build_facts(collected("User:alice")))
    listed = re.findall(r'<li><a href="#([^"]+)">', written)
    assert listed == re.findall(r'<section id="([^"]+)">', written)
    assert {"principals", "lifetimes", "kafka-4", "trend", "next", "clients"} <= set(listed)


def test_clients_are_folded_but_for_a_few_that_are_worst() -> None:
    assert "<details open><summary>1 client: failing</summary>" in page(facts_of("failing"))
    many = page(facts_of("ready", clients=facts_of("ready")["clients"] * 11))
    assert "<details><summary>11 clients: ready</summary>" in many


def test_the_use_of_acls() -> None:
    shown = page(build_facts(collected("User:bob")))
    assert "enforce</code>: 1 principal ready." in shown
    assert "<summary>1 ACL not used</summary>" in shown
    assert "<summary>1 ACL wider than their use</summary>" in shown
    assert "1 principal never seen: " in shown
    command = "kafka-acls --bootstrap-server HOST:PORT --add --allow-principal=User:bob"
    assert f"{command} --operation=Read --topic=User:bob" in shown


def test_clients_that_are_not_ready_any_more_stand_at_the_head() -> None:
    given = collected("User:alice")
    rows: list[dict[str, Any]] = [
        {"principal": HOSTILE, "client_id": None, "ready_until": 20_000 - at} for at in range(4)
    ]
    more: dict[str, list[dict[str, Any]]] = {
        "regressed": rows,
        "regressed_count": [{"clients": 6000}],
    }
    facts = build_facts(replace(given, rows=dict(given.rows) | more))
    assert facts["regressed"]["client_count"] == 6000
    assert facts["regressed"]["clients"][0]["ready_until"] == "2024-10-04"
    head = first_screen(facts)
    assert "6,000 clients were ready and are not any more" in head
    assert "until 2024-10-04" in head
    assert "5,997 more" in head
    assert page(facts).count("<script>") == 1, "the page's own"
    one = {"regressed": rows[:1], "regressed_count": [{"clients": 1}]}
    facts = build_facts(replace(given, rows=dict(given.rows) | one))
    assert "1 client was ready and is not any more" in first_screen(facts)
