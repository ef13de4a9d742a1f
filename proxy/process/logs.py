"""Log of the proxy: its format and level, and the lines at its start."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

from proxy import __version__
from proxy.config import Config, Listener
from proxy.config.model import Log, LogFormat

TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def configure(settings: Log) -> None:
    """Put format and level into effect; for this process, and those that are forked later."""
    root = logging.getLogger()
    root.setLevel(settings.level.value.upper())
    if settings.format is LogFormat.JSON:
        for handler in root.handlers:
            handler.setFormatter(JsonFormatter())


def banner(config: Config) -> Iterator[str]:
    """Yield what runs, where, and in which modes."""
    from proxy.connection.frames import BUILD

    yield f"reauth-proxy {__version__} ({BUILD}), workers: {config.workers}"
    for one in config.listeners:
        yield f"listener {one.name}: {_listener(one)}"
    yield f"authorizer.mode: {config.authorizer.mode}, quotas.mode: {config.quotas.mode}"
    yield (
        "no HTTP endpoint (http.address)"
        if config.http.address is None
        else f"status page and metrics: http://{config.http.address}/"
    )
    yield (
        "no event log (events.directory)"
        if config.events.directory is None
        else f"events: {config.events.directory}"
    )


def _listener(one: Listener) -> str:
    parts = [f"{one.address}", f"{one.routing}", f"{one.security_protocol}"]
    if one.sasl:
        lifetime = one.connections_max_reauth_ms
        parts += [
            " ".join(one.sasl_enabled_mechanisms) or "the brokers' mechanisms",
            f"reauth.enforcement: {one.enforcement_in_effect()}",
            f"sessions of {lifetime} ms" if lifetime else "sessions as long as their tokens",
        ]
        if one.reauth_overrides:
            parts.append(f"overrides: {len(one.reauth_overrides)}")
    return ", ".join(parts)
