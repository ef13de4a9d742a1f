"""Verdict on what each client saw, from its own report, the proxy's event log and metrics."""

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from proxy.demo.setup import INTRUDER, LEDGER, ORDERS, PAYMENTS, Report

_PREFIX: Final = "kafka_reauth_proxy_"
_LATENCY: Final = f"{_PREFIX}reauthentication_latency_seconds"
SCRAPE_SECONDS: Final = 5.0
"""Timeout of a scrape in seconds."""


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

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply one event."""
        self.principal = event.get("principal") or self.principal
        self.mechanism = event.get("mechanism") or self.mechanism
        match event["kind"]:
            case "authenticated":
                self.authentications += 1
            case "reauthenticated":
                self.reauthentications += 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Totals of all clients."""

    reauthentications: float
    kills: float
    refusals: float


class Metrics:
    """Values of the proxy's `/metrics`, as last read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.text = ""
        self._values: dict[str, float] = {}
        """The sum of each metric over its labels."""

    def scrape(self) -> None:
        """Read the metrics; if the proxy does not answer, the last values stay."""
        try:
            with urllib.request.urlopen(self._url, timeout=SCRAPE_SECONDS) as answer:  # noqa: S310 - our own http:
                self.text = answer.read().decode()
        except OSError:
            return
        self._values = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                self._values[sample.name] = self._values.get(sample.name, 0.0) + sample.value

    def counted(self) -> Counted:
        """Return the totals."""
        return Counted(
            reauthentications=self._values.get(f"{_PREFIX}successful_reauthentication_total", 0.0),
            kills=self._values.get(f"{_PREFIX}expired_connections_killed_total", 0.0),
            refusals=self._values.get(f"{_PREFIX}failed_authentication_total", 0.0),
        )

    def sentence(self) -> str:
        """Return the totals in one line."""
        totals, count = self.counted(), self._values.get(f"{_LATENCY}_count", 0.0)
        latency = f", {self._values[f'{_LATENCY}_sum'] / count * 1000:.1f} ms each" if count else ""
        return (
            f"{totals.reauthentications:.0f} re-authentications{latency};"
            f" {totals.kills:.0f} expired connections killed;"
            f" {totals.refusals:.0f} authentications failed."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Outcome of one client."""

    good: bool
    text: str


def judge(
    reports: Mapping[str, Report], clients: Mapping[str, ObservedSessions], counted: Counted
) -> list[Finding]:
    """Compare the observations of clients and proxy with the expected ones."""
    findings = []
    for name, judge_client in _CLIENTS.items():
        sessions = clients.get(name, ObservedSessions(client_id=name))
        if name in reports:
            findings.append(judge_client(reports[name], sessions))
        else:
            findings.append(Finding(good=False, text=f"{name} sent no report."))
    logged = Counted(
        reauthentications=sum(client.reauthentications for client in clients.values()),
        kills=sum(client.kills for client in clients.values()),
        refusals=sum(client.refusals for client in clients.values()),
    )
    text = (
        f"The metrics count {counted.reauthentications:.0f} re-authentications,"
        f" {counted.kills:.0f} kills and {counted.refusals:.0f} refusals."
    )
    return [*findings, _finding(text, (counted == logged, f"the event log holds {logged}"))]


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
