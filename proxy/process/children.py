"""Child processes of the parent: forked, watched, restarted when they die or hang.

Rules:

- No death of one child ends the others. One that keeps dying is started anew after pauses; the
  proxy ends only when no worker can be kept alive.
- A child that is silent for too long writes where each of its threads is (`faulthandler`), and is
  killed with the next look: what it had is lost, as if it had died.
"""

import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.child_process.heartbeats import Heartbeat, Watch

log = logging.getLogger(__name__)

MIN_LIFE: Final = 5.0
"""Seconds of life below which a child has died early."""
MAX_EARLY_DEATHS: Final = 5
"""Number of early deaths in a row that end the proxy if every worker has as many, and make another
child pause."""
PAUSE: Final = 5.0
"""Seconds before a child that has died early so often is started again."""
WHERE: Final = signal.SIGUSR2
"""Signal that makes a child write the stacks of its threads."""


@dataclass(slots=True, kw_only=True)
class Child:
    """Child process, and how to start it again."""

    name: str
    main: Callable[[], int]
    """The function that runs from the fork to the exit status, which it returns."""
    is_worker: bool = False
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    watch: Watch = field(init=False)
    pid: int = 0
    """The process id; 0: it does not run."""
    started_at: float = 0.0
    """The time of its start in monotonic seconds; while it pauses, when it is to be started."""
    early_deaths: int = 0
    """The number of early deaths in a row."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.heartbeat)


class Children:
    """Child processes of the proxy."""

    def __init__(self, children: Sequence[Child], alive: int, signals: frozenset[signal.Signals]):
        """`alive`: what the parent alone keeps open; `signals`: those that it blocks."""
        self._children = children
        self._alive = alive
        self._signals = signals

    def __iter__(self) -> Iterator[Child]:
        """Give each of them."""
        return iter(self._children)

    def start(self) -> None:
        """Start all of them."""
        for child in self._children:
            self._start(child)

    def _start(self, child: Child) -> None:
        child.started_at = time.monotonic()
        child.heartbeat.begin()
        sys.stdout.flush()
        child.pid = os.fork()
        if child.pid:
            return
        status = 1
        try:
            os.close(self._alive)
            faulthandler.register(WHERE)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
            status = child.main()
        except BaseException:
            log.exception("%s: failed", child.name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def bury(self) -> bool:
        """Start those anew who died; return whether there is a point in going on."""
        for child, how in self._dead():
            now = time.monotonic()
            lived = now - child.started_at
            child.early_deaths = child.early_deaths + 1 if lived < MIN_LIFE else 0
            if child.early_deaths < MAX_EARLY_DEATHS:
                log.error("%s %s, starting it anew", child.name, how)
                self._start(child)
                continue
            times = child.early_deaths
            if all(one.early_deaths >= MAX_EARLY_DEATHS for one in self if one.is_worker):
                log.error("%s %s, died %d times in a row, giving up", child.name, how, times)
                return False
            child.started_at = now + PAUSE
            message = "%s %s, died %d times in a row, starting it anew in %.0f s"
            log.error(message, child.name, how, times, PAUSE)
        return True

    def _dead(self) -> Iterator[tuple[Child, str]]:
        """Give those who died since, and how each did."""
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.pid = 0
                yield child, how_it_ended(os.waitstatus_to_exitcode(status))

    def look(self) -> None:
        """End those who hang, and start those whose pause is over; once in `LOOK_EVERY`."""
        now = time.monotonic()
        for child in self._children:
            child.watch.look()
            if not child.pid:
                if now >= child.started_at:
                    self._start(child)
            elif child.watch.is_hung:
                self._end_hung(child)
            elif now - child.started_at >= MIN_LIFE:
                child.early_deaths = 0

    def _end_hung(self, child: Child) -> None:
        if child.watch.silent == child.watch.patience:
            log.error("%s hangs, and will be killed; where it hangs follows", child.name)
            os.kill(child.pid, WHERE)
        else:
            os.kill(child.pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send all that run a signal."""
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)

    def stop(self, patience: float) -> None:
        """Have them end, and kill those who have not within `patience` seconds."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while any(child.pid for child in self._children) and time.monotonic() < deadline:
            signal.sigtimedwait(self._signals, max(0.0, deadline - time.monotonic()))
            for _ in self._dead():
                pass
        self.signal(signal.SIGKILL)


def how_it_ended(exitcode: int) -> str:
    """Say how a process ended: `exitcode` as `os.waitstatus_to_exitcode` has it."""
    if exitcode >= 0:
        return f"exited with status {exitcode}"
    try:
        return f"was ended by {signal.Signals(-exitcode).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-exitcode}"
