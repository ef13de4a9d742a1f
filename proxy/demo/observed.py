"""Reader of the proxy's event log and metrics, for the demo."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from metrics.event_files import OPEN_SUFFIX

PREFIX: Final = "kafka_reauth_proxy_"
REAUTHENTICATIONS: Final = f"{PREFIX}successful_reauthentication_total"
KILLS: Final = f"{PREFIX}expired_connections_killed_total"
REFUSALS: Final = f"{PREFIX}failed_authentication_total"
LATENCY_SUM: Final = f"{PREFIX}reauthentication_latency_seconds_sum"
LATENCY_COUNT: Final = f"{PREFIX}reauthentication_latency_seconds_count"
SCRAPE_SECONDS: Final = 5.0
"""Timeout of a scrape in seconds."""


@dataclass(slots=True, kw_only=True)
class ObservedSessions:
    """Sessions of one client, as the event log records them."""

    client_id: str
    principal: str | None = None
    """The principal, such as `User:alice`; None: it never authenticated."""
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
        """Yield what the client has met at least once."""
        if self.authentications:
            yield f"logged in as {self.principal} with {self.mechanism}"
        if self.reauthentications:
            yield "re-authenticated on its open connection, for the first time"
        if self.kills:
            yield "was cut off: it used a connection past the end of its session"
        if self.refusals:
            yield "was refused: it cannot prove who it is"


class ObservedEvents:
    """Reader of the files of an event log, which keeps the sessions of each client."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}
        self.clients: dict[str, ObservedSessions] = {}
        """The sessions by client id, in the order in which the clients appeared."""

    def follow(self) -> None:
        """Read the events that were written since the last call."""
        for event in self._events():
            if event["kind"] == "summary":  # repeats known facts
                continue
            client_id = event.get("client_id") or "(no client id)"
            client = self.clients.setdefault(client_id, ObservedSessions(client_id=client_id))
            client.apply(event)

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._directory.glob("events-*")):
            name = path.name.removesuffix(OPEN_SUFFIX)
            with path.open("rb") as file:
                file.seek(self._read.get(name, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[name] = self._read.get(name, 0) + len(whole)
            yield from map(json.loads, whole.splitlines())


class Metrics:
    """Values of the proxy's `/metrics`, as last read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.text = ""
        self._values: dict[str, float] = {}

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

    def value(self, name: str) -> float:
        """Return the sum of a metric over its labels; 0 if there is none."""
        return self._values.get(name, 0.0)

    def sentence(self) -> str:
        """Return the totals in one line."""
        count = self.value(LATENCY_COUNT)
        latency = f", {self.value(LATENCY_SUM) / count * 1000:.1f} ms each" if count else ""
        return (
            f"{self.value(REAUTHENTICATIONS):.0f} re-authentications{latency};"
            f" {self.value(KILLS):.0f} expired connections killed;"
            f" {self.value(REFUSALS):.0f} authentications failed."
        )
