"""The status page, and the status as text."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ops.status.page import (
    _RUNBOOKS,
    MAX_CHARACTERS,
    MAX_SESSIONS,
    POLICY,
    joined,
    name,
    render,
    tag,
    text,
)
from proxy.ops.status.session_facts import EVERY_SESSION, Condition, Selector
from proxy.ops.status.snapshot import Overview, WorkerFacts
from proxy.ops.status.text import ago, duration, moment, rate, size
from tests.support.status import ABOUT, busy, incident, listener, overview, session

LARGEST = 200_000

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "<!--",
    "]]>",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\N{RIGHT-TO-LEFT OVERRIDE}evil",
    "\ud800 lone",
    "a\0b\r\nc",
)


class Elements(HTMLParser):
    """The elements of a page and their attributes, as a browser would find them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def named(who: str) -> Overview:
    """An overview in which everything that a client can choose is this."""
    one = session(
        principal=f"User:{who}",
        client_id=who,
        client_software_name=who,
        client_software_version=who,
        client_host=who,
    )
    worker = WorkerFacts(
        listeners=[listener()],
        incidents=[incident(what=who, principal=f"User:{who}", client_id=who)],
        reasons=[who],
    )
    return overview(one, worker0=worker)


PLAIN = Elements(render(named("x"), Selector(principal="User:x"), ABOUT))


@pytest.mark.parametrize("who", HOSTILE)
def test_names_are_text(who: str) -> None:
    """The same elements and attributes, whatever clients are called."""
    page = render(named(who), Selector(principal=f"User:{who}", client_id=who), ABOUT)
    found = Elements(page).found
    assert [element for element, _ in found] == [element for element, _ in PLAIN.found]
    allowed = {key for _, attributes in PLAIN.found for key in attributes}
    assert {key for _, attributes in found for key in attributes} <= allowed
    links = [attributes["href"] for element, attributes in found if element == "a"]
    assert all(
        link is not None and re.match(r"/(\?principal=|metrics$|readyz$|sessions\.json$|$)", link)
        for link in links
    )
    page.encode()


@given(st.text())
def test_markup_of_any_text_reads_as_that_text(given_text: str) -> None:
    elements = Elements(tag("p", given_text, title=given_text))
    assert [element for element, _ in elements.found] == ["p"]
    expected = given_text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    assert "".join(elements.texts).replace("\r\n", "\n") == expected


def test_markup_is_escaped_once() -> None:
    assert joined([text("<"), "<"]) == "&lt;&lt;"
    assert name("x" * 1_000) == f"<bdi>{'x' * (MAX_CHARACTERS - 1)}…</bdi>"
    assert name(None) == '<span class="none">-</span>'


def test_nothing_is_fetched_and_nothing_else_runs() -> None:
    page = render(busy(50, 5), EVERY_SESSION, ABOUT)
    elements = Elements(page)
    for element, attributes in elements.found:
        assert not {"src", "style", "onclick", "onload"} & attributes.keys()
        if element == "link":
            assert attributes["href"] == "data:,"
    assert "http:" not in page
    assert "https:" not in page
    for element in ("style", "script"):
        (source,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = b64encode(sha256(source.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in POLICY


@pytest.mark.parametrize("principals", [1, 250, 5_000])
def test_five_thousand_sessions_have_room(principals: int) -> None:
    assert len(render(busy(5_000, principals), EVERY_SESSION, ABOUT).encode()) < LARGEST


@pytest.mark.parametrize(
    ("left", "said"), [(2.0, "throttled for 2 s"), (-61.0, "throttled until 1 min 1 s ago")]
)
def test_throttling_of_a_session(left: float, said: str) -> None:
    alice = Selector(principal="User:alice")
    assert said in render(overview(session(throttle_left_s=left)), alice, ABOUT)


@pytest.mark.parametrize("sign", ["&", "'", "\N{PILE OF POO}", "\ud800", "<"])
def test_names_cannot_fill_it(sign: str) -> None:
    """A client may choose 5,000 names of any length."""
    who = sign * 5_000
    sessions = [
        session(
            number,
            principal=f"User:{number}{who}",
            client_id=f"{number}{who}",
            client_software_name=f"{number}{who}",
        )
        for number in range(5_000)
    ]
    worker = WorkerFacts(
        listeners=[listener(name=f"{number}") for number in range(500)],
        incidents=[incident(what=who, principal=who, client_id=who)] * 500,
    )
    page = render(overview(*sessions, worker0=worker), Selector(principal="x"), ABOUT)
    assert len(page.encode()) < LARGEST


def test_what_is_cut_is_counted() -> None:
    """Nobody takes the part for the whole."""
    page = render(busy(5_000, 5_000), EVERY_SESSION, ABOUT)
    shown = page.count('<tr><td data-label="Principal">')
    principals = len({one.principal for one in busy(5_000, 5_000).sessions})
    assert f"… and {principals - shown:,} more" in page


def test_chosen_sessions_are_listed_one_by_one() -> None:
    alice = Selector(principal="User:alice")
    each = overview(*(session(number) for number in range(500)))
    page = render(each.of(alice), alice, ABOUT)
    assert "00c0ffee00c0ffee-0<" in page
    shown = page.count('<tr><td data-label="Connection">')
    assert 50 < shown <= MAX_SESSIONS
    assert f"… and {500 - shown} more" in page
    assert "00c0ffee" not in render(each, EVERY_SESSION, ABOUT)


RUNBOOKS = Path(__file__).parents[4] / "docs" / "runbooks.md"
DELIVERY = Condition("delivery", "kafka:session-events", "2 h behind", good=False)


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (overview(), "No connection."),
        (overview(), 'class="badge good">ready<'),
        (replace(overview(), conditions=[DELIVERY]), 'badge warn">ready, with 1 problem below<'),
        (
            overview(
                *(session(listener="clients", authenticated_s=age) for age in (50.0, 61.0, 70.0)),
                session(listener="other", authenticated_s=70.0),
                session(mechanism=None, authenticated_s=70.0),
                worker0=WorkerFacts(listeners=[listener(terms_changed_s=60.0, overrides=1)]),
            ),
            "1 override, 2 sessions on terms before the last reload",
        ),
        (Overview(taken_ms=0, workers={}, sessions=()), ">not ready<"),
        (overview(worker0=WorkerFacts(reasons=["draining"])), "worker 0: draining"),
        (overview(worker1=WorkerFacts(reasons=["worker 1 is gone"])), "<li>worker 1 is gone"),
        (overview(session(lifetime_left_s=-90.0)), "expired 1 min 30 s ago"),
        (overview(session(lifetime_left_s=None)), "no end"),
        (overview(session(lifetime_announced=False)), ">cannot<"),
        (overview(session(throttle_left_s=2.0), session(throttle_left_s=-90.0)), "1 throttled"),
        (overview(session(), session(lifetime_announced=False)), "1 of 2 cannot"),
        (overview(session(reauthentications=1)), "yes, 1 time"),
        (overview(session(principal=None, lifetime_announced=None)), "not authenticated"),
        (overview(session(request_bytes=2048, response_bytes=0)), "2.0 KiB in, 0 B out"),
        (overview(worker0=WorkerFacts(listeners=[listener(enforcement="observe")])), ">observe<"),
        (replace(overview(), conditions=[DELIVERY]), '<span class="badge sentence bad">2 h behind'),
        (overview(worker0=WorkerFacts(incidents=[incident()])), "re-authentication failed"),
        (overview(worker0=WorkerFacts(incidents=[incident(principal=None)])), "login failed"),
    ],
)
def test_what_an_operator_asks_for_is_there(taken: Overview, said: str) -> None:
    assert said in render(taken, EVERY_SESSION, ABOUT)


def test_a_problem_has_a_link_to_its_runbook() -> None:
    """With `http.runbooks.url`; each section exists."""
    about = replace(ABOUT, runbooks_url="https://wiki.example/runbooks/")
    taken = replace(overview(), conditions=[DELIVERY, DELIVERY._replace(good=True)])
    page = render(taken, EVERY_SESSION, about)
    link = 'href="https://wiki.example/runbooks/#reauthproxyeventsnotdelivered"'
    assert page.count(link) == 1
    assert "#reauthproxy" not in render(taken, EVERY_SESSION, ABOUT)
    headings = re.findall(r"^## (\w+)", RUNBOOKS.read_text().lower(), re.MULTILINE)
    assert {f"reauthproxy{one}" for one in _RUNBOOKS.values()} <= {*headings}


def test_clients_without_sasl_are_not_said_to_be_able_to_reauthenticate_nor_not() -> None:
    """Their listener has the reason; "not yet" or "cannot" would count them to a migration."""
    plain = session(
        principal="User:ANONYMOUS",
        mechanism=None,
        enforcement="observe",
        lifetime_announced=None,
        reauthentications=0,
        lifetime_left_s=None,
    )
    workers = WorkerFacts(listeners=[listener(mechanisms=[], enforcement="observe")])
    page = render(overview(plain, worker0=workers), EVERY_SESSION, ABOUT)
    assert "none: no SASL" in page
    assert "not yet" not in page
    assert ">cannot<" not in page


#


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (duration(None), "-"),
        (duration(0), "0 s"),
        (duration(0.4), "0 s"),
        (duration(59.6), "1 min"),
        (duration(61), "1 min 1 s"),
        (duration(3_600), "1 h"),
        (duration(3_605), "1 h"),
        (duration(7_260), "2 h 1 min"),
        (duration(90_000), "1 d 1 h"),
        (duration(86_400 * 400), "400 d"),
        (duration(-75), "-1 min 15 s"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1_000), "1.0 KiB"),
        (size(10_188), "9.9 KiB"),
        (size(10_240), "10 KiB"),
        (size(1_048_576), "1.0 MiB"),
        (size(2**63), "8192 PiB"),
        (moment(1_760_000_000_000), "2025-10-09 08:53:20 UTC"),
        (ago(1_000, 62_000), "1 min 1 s ago"),
        (ago(62_000, 1_000), "0 s ago"),  # a clock that was set back
        (rate(0), "0 /s"),
        (rate(0.01), "0.6 /min"),
        (rate(0.5), "30 /min"),
        (rate(1.55), "1.6 /s"),
        (rate(12_345.6), "12,346 /s"),
    ],
)
def test_numbers_in_words(given: str, said: str) -> None:
    """Durations have two units, sizes three digits."""
    assert given == said
