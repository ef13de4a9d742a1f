"""Rate limit on reports of denials, per principal and in total.

Laws: for each kind of denial (principal, operation, resource, would-be or not) at most one notice
is given per interval, with the number of denials since the last; all denials are counted. The
number of kinds is bounded per principal and in total: denials beyond it are reported as of other
resources, without a name. Invented names can thus fill neither memory nor log.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from proxy.acl.authorizer import Denial
from proxy.acl.model import Operation, ResourceType

INTERVAL: Final = 60.0
"""Minimum time in seconds between two notices of one kind."""
MAX_KINDS_OF_PRINCIPAL: Final = 50
"""Maximum number of kinds per principal that are reported separately within an interval."""
MAX_KINDS: Final = 5_000
"""Maximum number of kinds that are reported separately within an interval."""

_Kind = tuple[str, Operation | None, ResourceType | None, str | None, bool]
"""Principal, operation, resource type and name of the resource (None for any others), and whether
the denial was only counted."""
_ANY_PRINCIPAL: Final = ""
"""Principal of the kind for denials beyond the bounds, of any principals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialNotice:
    """Notice of denials, for the log."""

    denial: Denial
    """Last of the denials."""
    count: int
    """Number of denials since the last notice of this kind, including this one."""
    others: bool = False
    """True if `denial` is an example of denials beyond the bounds, of any resources."""


class _Entry:
    __slots__ = ("count", "last", "noticed_at", "others")

    def __init__(self, denial: Denial, now: float, *, others: bool) -> None:
        self.count = 0
        self.last = denial
        self.others = others
        self.noticed_at = now

    def notice(self, now: float) -> DenialNotice:
        count, self.count, self.noticed_at = self.count, 0, now
        return DenialNotice(denial=self.last, count=count, others=self.others)


class Denials:
    """Recent denials. `now` is monotonic seconds."""

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        max_kinds_of_principal: int = MAX_KINDS_OF_PRINCIPAL,
        max_kinds: int = MAX_KINDS,
    ) -> None:
        self._interval = interval
        self._max_kinds_of_principal = max_kinds_of_principal
        self._max_kinds = max_kinds
        self._entries: OrderedDict[_Kind, _Entry] = OrderedDict()
        """Entries by kind, in the order of their last notice."""
        self._of_principal: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, denial: Denial, now: float) -> DenialNotice | None:
        """Count a denial; return a notice if one is due."""
        kind: _Kind = (
            denial.principal,
            denial.operation,
            denial.resource_type,
            denial.name,
            denial.would_be,
        )
        entry = self._entries.get(kind)
        if entry is None:
            kind = self._reported_kind(kind)
            entry = self._entries.get(kind)
        if entry is None:
            entry = _Entry(denial, now - self._interval, others=kind[3] is None)
            self._entries[kind] = entry
            self._of_principal[kind[0]] += 1
        entry.count += 1
        entry.last = denial
        if now - entry.noticed_at < self._interval:
            return None
        self._entries.move_to_end(kind)
        return entry.notice(now)

    def sweep(self, now: float) -> list[DenialNotice]:
        """Return the notices that are due, and remove kinds without denials for an interval.

        Called about once a second; the cost is proportional to what is due.
        """
        due: list[DenialNotice] = []
        while self._entries:
            kind, entry = next(iter(self._entries.items()))
            if now - entry.noticed_at < self._interval:
                break
            if entry.count:
                due.append(entry.notice(now))
                self._entries.move_to_end(kind)
            else:
                self._forget(kind)
        return due

    def rest(self, now: float) -> list[DenialNotice]:
        """Return all pending notices, due or not, before the end."""
        return [entry.notice(now) for entry in self._entries.values() if entry.count]

    def _reported_kind(self, kind: _Kind) -> _Kind:
        """Return the kind under which a new one is reported."""
        principal, would_be = kind[0], kind[4]
        if len(self._entries) < self._max_kinds:
            if self._of_principal[principal] < self._max_kinds_of_principal:
                return kind
            return principal, None, None, None, would_be
        own: _Kind = (principal, None, None, None, would_be)
        return own if own in self._entries else (_ANY_PRINCIPAL, None, None, None, would_be)

    def _forget(self, kind: _Kind) -> None:
        del self._entries[kind]
        self._of_principal[kind[0]] -= 1
        if not self._of_principal[kind[0]]:
            del self._of_principal[kind[0]]
