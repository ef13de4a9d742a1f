"""Verdict on what each client saw, from its own report and the proxy's event log."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proxy.demo.setup import INTRUDER, LEDGER, ORDERS, PAYMENTS, Report


@dataclass(slots=True, kw_only=True)
class ObservedSessions:
    """Sessions of one client, as the event log records them."""

    client_id: str
    principal: str | None = None
    """The principal, such as `User:alice`; None if the client never authenticated."""
    mechanism: str | None = None
    authentications: int = 0
    reauthentications: int = 0
    kills: int = 0
    refusals: int = 0
    is_promoted: bool = False
    """True if a session was renewed in `enforce`."""

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply one event."""
        self.principal = event.get("principal") or self.principal
        self.mechanism = event.get("mechanism") or self.mechanism
        match event["kind"]:
            case "authenticated":
                self.authentications += 1
            case "reauthenticated":
                self.reauthentications += 1
                self.is_promoted |= event["enforcement"] == "enforce"
            case "failed":
                self.refusals += 1
            case "expired-killed":
                self.kills += 1

    def milestones(self) -> Iterator[str]:
        """Yield the events that the client has met at least once."""
        if self.authentications:
            yield f"logged in as {self.principal} with {self.mechanism}"
        if self.reauthentications:
            yield "re-authenticated on its open connection, for the first time"
        if self.is_promoted:
            yield "is enforced from now on: `auto` has seen it re-authenticate in time"
        if self.kills:
            yield "was cut off: it used a connection past the end of its session"
        if self.refusals:
            yield "was refused: it cannot prove who it is"


def observed(directory: Path) -> dict[str, ObservedSessions]:
    """Return the sessions by client id from the files of an event log, oldest client first."""
    clients: dict[str, ObservedSessions] = {}
    for path in sorted(directory.glob("events-*")):
        *lines, _ = path.read_text().split("\n")  # the last line may not be whole
        for event in map(json.loads, lines):
            if event["kind"] != "summary":  # a summary repeats known facts
                name = event.get("client_id") or "(no client id)"
                clients.setdefault(name, ObservedSessions(client_id=name)).apply(event)
    return clients


def totals(clients: Mapping[str, ObservedSessions]) -> str:
    """Return the totals of all clients in one line."""
    every = clients.values()
    return (
        f"{sum(one.reauthentications for one in every)} re-authentications;"
        f" {sum(one.kills for one in every)} expired connections killed;"
        f" {sum(one.refusals for one in every)} authentications failed."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Outcome of one client."""

    good: bool
    text: str


def judge(reports: Mapping[str, Report], clients: Mapping[str, ObservedSessions]) -> list[Finding]:
    """Compare the observations of clients and proxy with the expected ones."""
    findings = []
    for name, judge_client in _CLIENTS.items():
        sessions = clients.get(name, ObservedSessions(client_id=name))
        if name in reports:
            findings.append(judge_client(reports[name], sessions))
        else:
            findings.append(Finding(good=False, text=f"{name} sent no report."))
    return findings


def _finding(text: str, *expectations: tuple[bool, str]) -> Finding:
    """Return the outcome; an expectation is a condition, and the problem if it does not hold."""
    wrong = [problem for holds, problem in expectations if not holds]
    if wrong:
        text = f"{text} But {', and '.join(wrong)}."
    return Finding(good=not wrong, text=text)


def _modern(report: Report, sessions: ObservedSessions) -> Finding:
    return _finding(
        f"{sessions.client_id} ({sessions.mechanism}) re-authenticated"
        f" {sessions.reauthentications} times while it worked: {report.delivered} messages"
        f" written, {report.received} read back, {report.out_of_order} out of order.",
        (sessions.reauthentications > 0, "it never re-authenticated"),
        (report.delivered > 0, "nothing was written"),
        (report.undelivered == 0, f"{report.undelivered} messages were given up"),
        (report.received == report.delivered, "messages were lost"),
        (report.out_of_order == 0, f"{report.out_of_order} messages came twice or out of order"),
        (report.connections_lost == 0, f"it lost {report.connections_lost} connections"),
        (report.refused == 0, f"it was refused {report.refused} times"),
        (sessions.kills == 0, f"the proxy killed {sessions.kills} of its connections"),
    )


def _old(report: Report, sessions: ObservedSessions) -> Finding:
    return _finding(
        f"{sessions.client_id} ({sessions.mechanism}, SaslAuthenticate v0) cannot re-authenticate:"
        f" it went on using {sessions.kills} sessions past their end, and the proxy closed these"
        f" connections. The client saw {report.connections_lost} lost connections, logged in again"
        f" each time, and has read {report.received} messages.",
        (sessions.kills > 0, "the proxy killed none of its connections"),
        (report.connections_lost > 0, "it noticed no lost connection"),
        (sessions.reauthentications == 0, "it re-authenticated"),
        (report.received > 0, "it read nothing"),
        (report.refused == 0, f"it was refused {report.refused} times"),
    )


def _rejected(report: Report, sessions: ObservedSessions) -> Finding:
    return _finding(
        f"{sessions.client_id} (OAUTHBEARER, tokens signed with an unknown key) tried"
        f" {sessions.refusals} times, and logged in {sessions.authentications} times.",
        (sessions.authentications == 0, "the proxy let it in"),
        (report.delivered + report.received == 0, "it wrote or read messages"),
        (sessions.refusals > 0, "the proxy never refused it"),
        (report.refused > 0, "it never heard that it was refused"),
    )


_CLIENTS: Final[Mapping[str, Callable[[Report, ObservedSessions], Finding]]] = {
    PAYMENTS: _modern,
    ORDERS: _modern,
    LEDGER: _old,
    INTRUDER: _rejected,
}
