"""Child processes of the parent: forked, watched, restarted when they die or hang.

Rules:

- The end of one child does not end the others. A child that keeps dying is restarted after pauses;
  the proxy ends only when no worker can be kept alive.
- A child that hangs writes the stacks of its threads (`faulthandler`), and is killed at the next
  check; its connections are lost, as if it had died.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.errors import ProxyError
from proxy.scheduling.heartbeats import Heartbeat, Watch
from proxy.scheduling.output import begin_child as begin_output

log = logging.getLogger(__name__)

MIN_LIFE: Final = 5.0
"""Seconds since its start before which a child has died early."""
MAX_EARLY_DEATHS: Final = 5
"""Number of early deaths in a row after which a child is restarted with a pause; the proxy ends if
every worker has as many."""
PAUSE: Final = 5.0
"""Seconds before a child that has died early so often is started again."""
DUMP_STACKS: Final = signal.SIGUSR2
"""Signal that makes a child write the stacks of its threads."""


@dataclass(slots=True, kw_only=True)
class Child:
    """Child process, and how to start it again."""

    name: str
    """The name of the process in the log, and in `/healthz`."""
    main: Callable[[Heartbeat], int]
    """The function that the child runs with its heartbeat; it returns the exit status."""
    is_worker: bool = False
    """True if the proxy cannot serve without a child of this kind."""
    ends_last: bool = False
    """True if it is asked to end when all others have."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    """The heartbeat of the process, in memory that it shares with its parent."""
    waits: bool = False
    """True if it is not to be started yet."""
    watch: Watch = field(init=False)
    """The parent's watch of the heartbeat."""
    pid: int = 0
    """The process id; 0 if it does not run."""
    started_at: float = 0.0
    """The time of its last start in monotonic seconds; during a pause, the time of the next."""
    early_deaths: int = 0
    """The number of its early deaths in a row."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.heartbeat)


class Children:
    """Child processes of the proxy."""

    def __init__(
        self,
        children: Sequence[Child],
        leave_to_parent: Callable[[], None],
        signals: frozenset[signal.Signals],
    ) -> None:
        """Manage `children`.

        `leave_to_parent` is called in each child, and closes what the parent alone keeps open;
        `signals` are those that it blocks.
        """
        self._children = children
        self._leave_to_parent = leave_to_parent
        self._signals = signals

    def __iter__(self) -> Iterator[Child]:
        """Iterate over the children, whether they run or not."""
        return iter(self._children)

    def start(self) -> None:
        """Start all children except those that wait."""
        for child in self._children:
            if not child.waits:
                self._start(child)

    def _start(self, child: Child) -> None:
        child.started_at = time.monotonic()
        child.heartbeat.begin()
        child.pid = os.fork()
        if child.pid:
            return
        status = 1
        try:
            begin_output(child.heartbeat)
            gc.enable()
            self._leave_to_parent()
            faulthandler.register(DUMP_STACKS)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `main` handles it
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
            status = child.main(child.heartbeat)
        except ProxyError as error:
            log.error("%s: %s", child.name, error)
        except BaseException:
            log.exception("%s: failed", child.name)
        finally:
            try:
                sys.stdout.close()
                sys.stderr.close()
            finally:
                os._exit(status)

    def restart_dead(self) -> bool:
        """Restart the children that have ended; False if no worker can be kept alive."""
        for child, ending in self._reap():
            now = time.monotonic()
            lived = now - child.started_at
            child.early_deaths = child.early_deaths + 1 if lived < MIN_LIFE else 0
            if child.early_deaths < MAX_EARLY_DEATHS:
                log.error("%s %s, restarting it", child.name, ending)
                self._start(child)
                continue
            times = child.early_deaths
            if all(one.early_deaths >= MAX_EARLY_DEATHS for one in self if one.is_worker):
                log.error("%s %s, died %d times in a row, giving up", child.name, ending, times)
                return False
            child.started_at = now + PAUSE
            message = "%s %s, died %d times in a row, restarting it in %.0f s"
            log.error(message, child.name, ending, times, PAUSE)
        return True

    def _reap(self) -> Iterator[tuple[Child, str]]:
        """Yield the children that have ended since the last call, and how each did."""
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.pid = 0
                yield child, describe_exit(os.waitstatus_to_exitcode(status))

    def check(self) -> None:
        """Kill children that hang, start those whose pause is over; called every `CHECK_EVERY`."""
        now = time.monotonic()
        for child in self._children:
            child.watch.check()
            if not child.pid:
                if now >= child.started_at and not child.waits:
                    self._start(child)
            elif child.watch.is_hung:
                self._end_hung(child)
            elif now - child.started_at >= MIN_LIFE:
                child.early_deaths = 0

    def _end_hung(self, child: Child) -> None:
        if child.watch.silent_checks == child.watch.max_silent_checks:
            log.error("%s hangs and will be killed; the stacks of its threads follow", child.name)
            os.kill(child.pid, DUMP_STACKS)
        else:
            os.kill(child.pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all children that run."""
        _signal(self._children, number)

    def stop(self, patience: float, patience_with_last: float) -> None:
        """Ask all children to end, and kill those that run after `patience` seconds; then, with
        `patience_with_last`, those that end last."""
        for last, seconds in ((False, patience), (True, patience_with_last)):
            self._stop([child for child in self._children if child.ends_last is last], seconds)

    def _stop(self, children: Sequence[Child], patience: float) -> None:
        _signal(children, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while any(child.pid for child in children) and time.monotonic() < deadline:
            signal.sigtimedwait(self._signals, max(0.0, deadline - time.monotonic()))
            for _ in self._reap():
                pass
        _signal(children, signal.SIGKILL)


def _signal(children: Iterable[Child], number: signal.Signals) -> None:
    for child in children:
        if child.pid:
            os.kill(child.pid, number)


def describe_exit(exitcode: int) -> str:
    """Return how a process ended; `exitcode` is that of `os.waitstatus_to_exitcode`."""
    if exitcode >= 0:
        return f"exited with status {exitcode}"
    try:
        return f"was ended by {signal.Signals(-exitcode).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-exitcode}"
