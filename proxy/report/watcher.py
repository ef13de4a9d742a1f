"""Watcher of a report: keeps the last whole one in memory.

Requests never wait for the place, however slow it is. A report that cannot be used leaves the last
one that could be, and a sentence; one that was removed is not shown any more.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from proxy.report.place import MissingError, Place, UnusableReportError
from proxy.report.whole import WholeReport, read_whole

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at whether there is another report."""
REREAD_SECONDS: Final = 10.0
"""Seconds after which one that could not be used is read again, though it seems unchanged."""
SILENT_SECONDS: Final = 60.0
"""Seconds without the end of a look after which the place is said not to answer."""
_RETRIES: Final = (0.2, 1.0)
"""Seconds after which a report that is not whole is read again: a run may be replacing it."""


@dataclass(frozen=True, slots=True)
class ReportState:
    """What is known of the report."""

    report: WholeReport | None
    """The last whole one; None: there is none."""
    problem: str | None
    """What is wrong with the one that is there, or why there is none; None: nothing."""


class Watcher:
    """Thread that looks for a report again and again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._state = ReportState(None, "the report has not been read yet")
        self._signature: object = None
        self._read_at = float("-inf")
        self._looked_at = time.monotonic()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Look from now on, in a thread that does not keep the process alive."""
        threading.Thread(target=self._run, name="report", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def state(self) -> ReportState:
        """Return what is known now."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS + SILENT_SECONDS:
            return ReportState(self._state.report, "the place of the report does not answer")
        return self._state

    def look(self) -> None:
        """Look at the place once."""
        before = self._state
        try:
            signature = self._place.signature()
            is_due = time.monotonic() - self._read_at >= REREAD_SECONDS
            if signature != self._signature or (before.problem is not None and is_due):
                self._signature, self._read_at = signature, time.monotonic()
                self._state = ReportState(self._read(), None)
        except MissingError as error:
            self._state = ReportState(None, f"there is no report: {error}")
        except UnusableReportError as error:
            self._state = ReportState(before.report, str(error))
        except Exception:
            log.exception("the report cannot be looked at")
            problem = "the report cannot be looked at; the log says why"
            self._state = ReportState(before.report, problem)
        self._looked_at = time.monotonic()
        self._log(before)

    def _read(self) -> WholeReport:
        for pause in _RETRIES:
            try:
                return read_whole(self._place)
            except MissingError:
                raise
            except UnusableReportError:
                self._stopping.wait(pause)
        return read_whole(self._place)

    def _log(self, before: ReportState) -> None:
        state = self._state
        if state.problem is not None and state.problem != before.problem:
            log.warning("%s", state.problem)
        elif state.report is not None and state.report is not before.report:
            log.info("the report of run %s is shown", state.report.run_id)

    def _run(self) -> None:
        while True:
            self.look()
            if self._stopping.wait(LOOK_SECONDS):
                return
