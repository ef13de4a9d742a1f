"""Verdict on what each client saw, as sentences; pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from proxy.demo.observed import ObservedSessions
from proxy.demo.report import Report

PAYMENTS: Final = "payments"
"""Client with OAUTHBEARER that re-authenticates."""
ORDERS: Final = "orders"
"""Client with SCRAM that re-authenticates."""
LEDGER: Final = "ledger"
"""Client with SCRAM that is too old to re-authenticate."""
INTRUDER: Final = "intruder"
"""Client with OAUTHBEARER whose tokens are signed by an unknown key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Outcome of one client."""

    good: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The proxy's metrics at the end of the demo."""

    reauthentications: float
    kills: float
    refusals: float


Expectation = tuple[bool, str]
"""Pair of a condition, and the text of the problem if it is False."""


def judge(
    reports: Mapping[str, Report], clients: Mapping[str, ObservedSessions], counted: Counted
) -> list[Finding]:
    """Compare what the clients and the proxy saw with what they should have seen."""
    findings = []
    for name, (summary, expected) in _CLIENTS.items():
        report = reports.get(name)
        sessions = clients.get(name, ObservedSessions(client_id=name))
        if report is None:
            findings.append(Finding(good=False, text=f"{name} never said what it saw."))
            continue
        findings.append(_finding(summary(report, sessions), list(expected(report, sessions))))
    findings.append(_metrics_agree(clients, counted))
    return findings


def _finding(text: str, expectations: list[Expectation]) -> Finding:
    wrong = [what for holds, what in expectations if not holds]
    if wrong:
        text = f"{text} But {', and '.join(wrong)}."
    return Finding(good=not wrong, text=text)


def _modern_text(report: Report, sessions: ObservedSessions) -> str:
    return (
        f"{sessions.client_id} ({sessions.mechanism}) re-authenticated"
        f" {sessions.reauthentications} times while it worked: {report.delivered} messages"
        f" written, {report.received} read back, none lost, none out of order."
        if report.received == report.delivered and not report.out_of_order
        else f"{sessions.client_id} ({sessions.mechanism}) wrote {report.delivered} messages and"
        f" read {report.received} back."
    )


def _modern(report: Report, sessions: ObservedSessions) -> Iterator[Expectation]:
    yield sessions.reauthentications > 0, "it never re-authenticated"
    yield report.delivered > 0, "nothing was written"
    yield report.undelivered == 0, f"{report.undelivered} messages were given up"
    yield report.received == report.delivered, "messages were lost"
    yield report.out_of_order == 0, f"{report.out_of_order} messages came twice or out of order"
    yield report.connections_lost == 0, f"it lost {report.connections_lost} connections"
    yield report.refused == 0, f"it was refused {report.refused} times"
    yield sessions.kills == 0, f"the proxy killed {sessions.kills} of its connections"


def _old_text(report: Report, sessions: ObservedSessions) -> str:
    return (
        f"{sessions.client_id} ({sessions.mechanism}, SaslAuthenticate v0) cannot re-authenticate:"
        f" it went on using {sessions.kills} sessions past their end, and the proxy closed these"
        f" connections. The client saw {report.connections_lost} lost connections, logged in again"
        f" each time, and has read {report.received} messages."
    )


def _old(report: Report, sessions: ObservedSessions) -> Iterator[Expectation]:
    yield sessions.kills > 0, "the proxy killed none of its connections"
    yield report.connections_lost > 0, "it noticed none of that"
    yield sessions.reauthentications == 0, "it re-authenticated"
    yield report.received > 0, "it read nothing"
    yield report.refused == 0, f"it was refused {report.refused} times"


def _rejected_text(report: Report, sessions: ObservedSessions) -> str:
    return (
        f"{sessions.client_id} (OAUTHBEARER, tokens signed with an unknown key) tried"
        f" {sessions.refusals} times and never got in."
        if not report.delivered and not sessions.authentications
        else f"{sessions.client_id} (OAUTHBEARER, tokens signed with an unknown key) got in."
    )


def _rejected(report: Report, sessions: ObservedSessions) -> Iterator[Expectation]:
    yield sessions.authentications == 0, "the proxy let it in"
    yield report.delivered + report.received == 0, "it wrote or read messages"
    yield sessions.refusals > 0, "the proxy never refused it"
    yield report.refused > 0, "it never heard that it was refused"


_CLIENTS: Final[
    Mapping[
        str,
        tuple[
            Callable[[Report, ObservedSessions], str],
            Callable[[Report, ObservedSessions], Iterator[Expectation]],
        ],
    ]
] = {
    PAYMENTS: (_modern_text, _modern),
    ORDERS: (_modern_text, _modern),
    LEDGER: (_old_text, _old),
    INTRUDER: (_rejected_text, _rejected),
}


def _metrics_agree(clients: Mapping[str, ObservedSessions], counted: Counted) -> Finding:
    logged = Counted(
        reauthentications=sum(client.reauthentications for client in clients.values()),
        kills=sum(client.kills for client in clients.values()),
        refusals=sum(client.refusals for client in clients.values()),
    )
    return _finding(
        f"The metrics count {counted.reauthentications:.0f} re-authentications,"
        f" {counted.kills:.0f} kills and {counted.refusals:.0f} refusals.",
        [(counted == logged, f"the event log holds {logged}")],
    )
