"""Start of the proxy: its modules are loaded while a child validates the configuration.

This module is imported first and imports little: whatever is loaded before that child is forked
delays it, and stays in memory for as long as the proxy runs. The child alone loads pydantic and
YAML.
"""

import json
import logging
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, TypeVar

from proxy import __version__, declarations
from proxy.errors import ProxyError, printable
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.output import replace_standard_streams

if TYPE_CHECKING:
    from proxy.config import Config, Listener, Quotas
    from proxy.config.model import Log

T = TypeVar("T")


class ShortLived(Generic[T]):
    """Child process that does one piece of work. Only for a parent with a single thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Fork, and start the work; its result and `ProxyError`s must be picklable."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            _do(work, writing)
        os.close(writing)
        self._answer = os.fdopen(reading, "rb")

    def result(self) -> T:
        """Wait for the result. Raises the ProxyError that the work raised."""
        with self._answer:
            answer = self._answer.read()
        os.waitpid(self._pid, 0)
        if not answer:
            raise ProxyError("a child process failed, see above")
        result: T | ProxyError = pickle.loads(answer)  # noqa: S301 - written by this program
        if isinstance(result, ProxyError):
            raise result
        return result


def _do(work: Callable[[], T], writing: int) -> NoReturn:
    status = 1
    try:
        result: T | ProxyError
        try:
            result = work()
        except ProxyError as error:
            result = error
        with os.fdopen(writing, "wb") as answer:
            answer.write(pickle.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Validated(NamedTuple):
    """Valid configuration."""

    config: bytes
    """The `Config`, pickled."""
    exposures: tuple[str, ...]
    """Warnings about its exposure."""


class Changed(NamedTuple):
    """Valid configuration, compared with the previous ones."""

    config: bytes
    """The `Config` that is to be in effect, pickled."""
    needs_restart: tuple[str, ...]
    """The settings that differ from those in effect, and need a restart."""
    reloadable: tuple[str, ...]
    """The settings that differ from those of the last reload, and need no restart."""
    exposures: tuple[str, ...]
    """Warnings about its exposure that did not apply before."""


class InvalidFile(ProxyError):
    """The configuration file has problems."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems
        """One line for each, with the file and its line."""


def validate(path: Path) -> Validated:
    """Validate the file for a start. Raises InvalidFile, or ConfigError if it cannot be read."""
    config = _valid(path)
    from proxy.config.exposure import exposures

    return Validated(pickle.dumps(config), exposures(config))


def _valid(path: Path) -> "Config":
    declarations.validate_too()
    from proxy.config import judged_entirely, located, read

    text = read(path)
    config, problems = judged_entirely(text, path)
    if config is None or problems:
        raise InvalidFile(tuple(one.described(path) for one in located(problems, text)))
    return config


def validate_change(path: Path, in_effect: bytes, latest: bytes) -> Changed:
    """Validate the file for a reload. Raises InvalidFile, or ConfigError if it cannot be read."""
    config = _valid(path)
    from proxy.config import Config, compare
    from proxy.config.changes import in_force
    from proxy.config.exposure import exposures

    old: Config = pickle.loads(in_effect)  # noqa: S301 - written by this program, as the next is
    before: Config = pickle.loads(latest)  # noqa: S301
    reloaded = in_force(old, before, config)
    needs_restart = {*compare(old, config).needs_restart, *compare(reloaded, config).reloadable}
    return Changed(
        pickle.dumps(reloaded),
        tuple(sorted(needs_restart)),
        compare(before, reloaded).reloadable,
        tuple(sorted(set(exposures(reloaded)) - set(exposures(before)))),
    )


def check_callback(quotas: "Quotas") -> None:
    """Try the configured quota callback, if any, in a child. Raises ConfigError."""
    from proxy.config import QuotasMode
    from proxy.quota.callback import try_callback

    name = quotas.client_quota_callback_class
    if quotas.mode is not QuotasMode.OFF and name is not None:
        ShortLived(partial(try_callback, name, quotas.client_quota_callback_configs)).result()


# Log

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


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


def configure_log(settings: "Log") -> None:
    """Apply format and level to this process, and to those that it forks later."""
    from proxy.config.model import LogFormat

    root = logging.getLogger()
    root.setLevel(settings.level.value.upper())
    if settings.format is LogFormat.JSON:
        for handler in root.handlers:
            handler.setFormatter(JsonFormatter())


def banner(config: "Config") -> Iterator[str]:
    """Yield lines with the version, the listeners and the modes."""
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


def _listener(one: "Listener") -> str:
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


def without_users(config: "Config", mechanisms: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each listener to which nobody can log in with SCRAM.

    `mechanisms` are those of the users in the store.
    """
    for one in config.listeners:
        scram = [name for name in one.sasl_enabled_mechanisms if name.startswith("SCRAM-")]
        if scram and not one.relays_logins and set(scram).isdisjoint(mechanisms):
            yield (
                f"listener {one.name}: no user has a password for {' or '.join(scram)}: add one"
                " with reauth-proxy users add"
            )


# Start

UNUSABLE: Final = 2
"""Exit status if the configuration cannot be used."""


def serve(path: Path, *, follow: bool, take_over: bool = False) -> int:
    """Run the proxy that the file describes; return the exit status.

    `follow`: a file that is replaced is reloaded, as by SIGHUP. `take_over`: the sockets of a
    running proxy are taken over, which is then replaced.
    """
    status = _serve(path, follow=follow, take_over=take_over)
    if take_over and status == UNUSABLE:
        _say("nothing was taken over; a running proxy keeps serving")
    return status


def _serve(path: Path, *, follow: bool, take_over: bool) -> int:
    begun = time.monotonic()
    heartbeat = Heartbeat()
    replace_standard_streams(heartbeat)
    validating = ShortLived(partial(validate, path))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
    from proxy.process.supervisor import Server, raise_file_limit

    try:
        validated = validating.result()
        raise_file_limit()
        server = Server(path, validated, heartbeat, follow=follow, take_over=take_over, begun=begun)
    except InvalidFile as error:
        for line in error.problems:
            _say(printable(line))
        return UNUSABLE
    except ProxyError as error:
        _say(printable(f"{path}: {error}"))
        return UNUSABLE
    try:
        return server.run()
    except ProxyError as error:
        _say(str(error))
        return UNUSABLE


def _say(text: str) -> None:
    print(f"reauth-proxy: {text}", file=sys.stderr)  # noqa: T201 - the command's output
