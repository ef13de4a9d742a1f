"""The verdicts of the demo, passed and failed."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.demo.setup import INTRUDER, LEDGER, ORDERS, PAYMENTS, Report
from proxy.demo.verdict import ObservedSessions, judge, totals

REPORTS = {
    PAYMENTS: Report(delivered=9, received=9),
    ORDERS: Report(delivered=8, received=8),
    LEDGER: Report(received=8, connections_lost=2),
    INTRUDER: Report(refused=3),
}
CLIENTS = {
    PAYMENTS: ObservedSessions(client_id=PAYMENTS, authentications=2, reauthentications=3),
    ORDERS: ObservedSessions(client_id=ORDERS, authentications=2, reauthentications=4),
    LEDGER: ObservedSessions(client_id=LEDGER, authentications=3, kills=2),
    INTRUDER: ObservedSessions(client_id=INTRUDER, refusals=3),
}


def complaints(
    reports: dict[str, Report] = REPORTS, clients: dict[str, ObservedSessions] = CLIENTS
) -> list[str]:
    return [finding.text for finding in judge(reports, clients) if not finding.good]


def test_all_as_it_should_be() -> None:
    assert complaints() == []
    assert len(judge(REPORTS, CLIENTS)) == len(REPORTS)


@pytest.mark.parametrize(
    ("client", "saw", "complaint"),
    [
        (PAYMENTS, {"received": 7}, "messages were lost"),
        (ORDERS, {"out_of_order": 1}, "came twice or out of order"),
        (ORDERS, {"connections_lost": 1}, "lost 1 connections"),
        (PAYMENTS, {"refused": 1}, "was refused 1 times"),
        (PAYMENTS, {"undelivered": 1}, "given up"),
        (PAYMENTS, {"delivered": 0, "received": 0}, "nothing was written"),
        (LEDGER, {"connections_lost": 0}, "noticed no lost connection"),
        (LEDGER, {"received": 0}, "read nothing"),
        (INTRUDER, {"delivered": 1}, "wrote or read messages"),
        (INTRUDER, {"refused": 0}, "never heard that it was refused"),
    ],
)
def test_a_client_that_saw_what_it_should_not(
    client: str, saw: dict[str, Any], complaint: str
) -> None:
    (only,) = complaints({**REPORTS, client: replace(REPORTS[client], **saw)})
    assert complaint in only


@pytest.mark.parametrize(
    ("client", "seen", "complaint"),
    [
        (PAYMENTS, {"reauthentications": 0}, "never re-authenticated"),
        (ORDERS, {"kills": 1}, "killed 1 of its connections"),
        (LEDGER, {"kills": 0}, "killed none of its connections"),
        (LEDGER, {"reauthentications": 1}, "it re-authenticated"),
        (INTRUDER, {"authentications": 1}, "the proxy let it in"),
        (INTRUDER, {"refusals": 0}, "the proxy never refused it"),
    ],
)
def test_a_proxy_that_did_what_it_should_not(
    client: str, seen: dict[str, Any], complaint: str
) -> None:
    clients = {**CLIENTS, client: replace(CLIENTS[client], **seen)}
    first, *_ = complaints(clients=clients)
    assert complaint in first


def test_a_client_that_said_nothing() -> None:
    reports = {name: report for name, report in REPORTS.items() if name != ORDERS}
    assert complaints(reports) == ["orders sent no report."]


def test_totals_are_those_of_all_clients() -> None:
    assert totals(CLIENTS) == (
        "7 re-authentications; 2 expired connections killed; 3 authentications failed."
    )
