"""Event files of a fleet: those of each proxy are copies of the same simulated connections.

A copy is moved in time by whole minutes and given to other clients, as in `copies`, but without
Spark.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.events.generate import EPOCH, Size, clients_of, simulated
from metrics.event_files import file_stem
from metrics.period import MINUTE_MS

CLIENT_GROUPS: Final = 5
"""Number of sets of clients; a proxy has those of one set."""

_TIME: Final = re.compile(
    r'"((?:timestamp|connected|authenticated|last_request|period_start|active_from)_ms)":(\d+)'
)
_NAME: Final = re.compile(r'"(connection_id|client_id|principal)":"([^"]*)"')
_PROXY_ID: Final = re.compile(r'"proxy_id":"[^"]*"')
_GROUP, _PROXY = "\x01", "\x02"
"""Places in the template of a set of clients' number, and of a proxy's."""
_SUFFIX: Final = {"connection_id": _PROXY, "client_id": _GROUP, "principal": _GROUP}


@dataclass(frozen=True, slots=True)
class Template:
    """Events of one proxy."""

    text: str
    """Lines in which each time is `%d`."""
    times: tuple[int, ...]
    """The times, epoch ms."""

    def of_proxy(self, number: int) -> str:
        """Return the lines of one proxy."""
        later = number * 7 % 1440 * MINUTE_MS
        text = self.text.replace(_PROXY, str(number))
        text = text.replace(_GROUP, str(number % CLIENT_GROUPS))
        return text % tuple(time + later for time in self.times)


def template(size: Size) -> Template:
    """Simulate the connections of one proxy."""
    lines = "".join(f"{line}\n" for line in simulated(size, clients_of(size)))
    lines = _PROXY_ID.sub(f'"proxy_id":"proxy-{_PROXY}"', lines.replace("%", "%%"))
    lines = _NAME.sub(lambda found: f'"{found[1]}":"{found[2]}-{_SUFFIX[found[1]]}"', lines)
    times = tuple(int(found[2]) for found in _TIME.finditer(lines))
    return Template(_TIME.sub(r'"\1":%d', lines), times)


def write_fleet(proxies: int, size: Size, out: Path) -> int:
    """Write a closed file for each proxy, with the events of `size`; return their number."""
    out.mkdir(parents=True)
    each = template(size)
    for number in range(proxies):
        path = out / f"{file_stem(f'proxy-{number}', 0, EPOCH)}-0.jsonl"
        path.write_text(each.of_proxy(number), encoding="ascii")
    return proxies * each.text.count("\n")
