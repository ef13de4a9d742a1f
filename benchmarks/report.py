"""Tables of the results, beside the goals."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles

from rich.table import Table

from benchmarks.acl_administration import Administered
from benchmarks.figures import (
    HandshakeCost,
    IdleMemory,
    Reauthenticated,
    Relayed,
    RewriteCost,
    Shape,
)
from benchmarks.logins import Authenticated, EarlyAuthentication
from benchmarks.targets import OAUTHBEARER, SCRAM, Row

#: CPU per authentication to reach, as a share of that of Kafka's own listener.
_AUTH_LIMITS = {SCRAM: 1 / 3, OAUTHBEARER: 1 / 2}
#: CPU per relayed login to reach, as a share of one that the proxy ends.
_RELAYED_LIMIT = 1 / 2
#: CPU per TLS handshake to reach, as a multiple of the baseline's.
_HANDSHAKE_LIMIT = 1.1
_RUNS = {True: "compiled", False: "Python", None: ""}
_KIB_PER_CONNECTION_LIMIT = 8
_KIB_PER_TLS_CONNECTION_LIMIT = 16
_WORKER_MIB_LIMIT = 60
_SIDECAR_MIB_LIMIT = 64
_REWRITE_MS_LIMIT = 3
_PAUSE_MS_LIMIT = 20


def machine(description: Mapping[str, str]) -> Table:
    """Return the table of the machine and the programs' versions."""
    table = Table("machine", "", show_header=False, title="Machine")
    for name, value in description.items():
        table.add_row(name, value)
    return table


def relay(
    found: Mapping[str, Mapping[str, Relayed]],
    shapes: Sequence[Shape],
    rows: Sequence[Row],
) -> Table:
    """One line per shape and row."""
    known = {row.name: row for row in rows}
    table = _table(
        "Relaying (medians)",
        ("shape", "row", "runs"),
        ("CPU µs/request", "ratio", "to reach", "requests/s", "p50 µs", "p99 µs"),
    )
    for shape in shapes:
        for row, each in found[shape.name].items():
            values = each.medians()
            ratio = values["ratios"]
            limit = getattr(shape.limits, known[row].limit)
            table.add_row(
                shape.name,
                row,
                _RUNS[each.compiled],
                _number(values["cpu_us"] or None, 1),
                _coloured(ratio, limit, 2),
                "" if ratio is None or limit is None else f"≤ {limit} x {known[row].baseline}",
                _number(values["per_second"], 0),
                _number(values["p50_us"], 0),
                _number(values["p99_us"], 0),
            )
        table.add_section()
    return table


def relay_markdown(
    found: Mapping[str, Mapping[str, Relayed]],
    shapes: Sequence[Shape],
    rows: Sequence[Row],
    caption: str,
) -> str:
    """Return a table of ratios in Markdown; one above its limit is bold.

    `caption` names the machine and the command.
    """
    compared = [row for row in rows if row.baseline in {each.name for each in rows}]
    bases = list(dict.fromkeys(row.baseline for row in compared if row.baseline))
    kinds = list(dict.fromkeys(row.limit for row in compared))
    heads = ["shape", *(f"{base}, CPU µs" for base in bases), *(row.name for row in compared)]
    heads += [f"to reach: {kind}" for kind in kinds]
    lines = [heads, ["---"] * len(heads)]
    spreads: list[float] = []
    for shape in shapes:
        cells = [shape.name]
        cells += [_number(_median(found[shape.name].get(base), "cpu_us"), 1) for base in bases]
        for row in compared:
            each = found[shape.name].get(row.name)
            cells.append(_cell(_median(each, "ratios"), getattr(shape.limits, row.limit)))
            spreads += [] if each is None else _spread(each.ratios)
        cells += [_number(getattr(shape.limits, kind), 2) for kind in kinds]
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    noise = ""
    if spreads:
        noise = (
            f" Half of a cell's rounds lie within {median(spreads):.0%} of its median,"
            f" in the noisiest cell within {max(spreads):.0%}."
        )
    return f"{caption}{noise}\n\n{table}\n"


def _median(each: Relayed | None, series: str) -> float | None:
    return None if each is None else each.medians()[series]


def _cell(ratio: float | None, limit: float | None) -> str:
    missed = ratio is not None and limit is not None and ratio > limit
    text = _number(ratio, 2)
    return f"**{text}**" if missed else text


def _spread(ratios: Sequence[float]) -> list[float]:
    """Return half the distance between quartiles as a share of the median; empty: one round."""
    if len(ratios) < 2:
        return []
    low, middle, high = quantiles(ratios, n=4)
    return [(high - low) / 2 / middle]


def auth(found: Mapping[str, Mapping[str, Authenticated]]) -> Table:
    """One line per mechanism and listener; a relayed login is compared with one that the proxy
    ends."""
    table = _table(
        "Authentication, connect to close (medians)",
        ("mechanism", "row"),
        ("CPU µs", "ratio", "to reach", "per second", "p50 µs", "p99 µs"),
    )
    for mechanism, rows in found.items():
        for row, each in rows.items():
            base, limit = "kafka", _AUTH_LIMITS[mechanism]
            if row.startswith("relayed-"):
                base, limit = row.removeprefix("relayed-"), _RELAYED_LIMIT
            compared = base in rows and base != row
            ratio = each.cpu_us / rows[base].cpu_us if compared else None
            table.add_row(
                mechanism,
                row,
                _number(each.cpu_us, 0),
                _coloured(ratio, limit, 2),
                f"≤ {limit:.2f} x {base}" if compared else "",
                _number(each.per_second, 0),
                _number(each.p50_us, 0),
                _number(each.p99_us, 0),
            )
        table.add_section()
    return table


def first_auth(found: Mapping[str, Mapping[str, Sequence[EarlyAuthentication]]]) -> Table:
    """One line per mechanism, row and age."""
    table = _table(
        "Authentication, connect to close, after a start",
        ("mechanism", "row"),
        ("authentications before", "CPU µs"),
    )
    for mechanism, rows in found.items():
        for row, windows in rows.items():
            for each in windows:
                table.add_row(mechanism, row, f"{each.seen:,}", _number(each.cpu_us, 0))
            table.add_section()
    return table


def handshakes(found: Mapping[str, HandshakeCost], baselines: Mapping[str, str]) -> Table:
    """One line per row and kind of connection."""
    table = _table(
        "TLS: connect, handshake, one request, close (medians)",
        ("row", "handshake"),
        ("CPU µs", "of it TLS", "ratio", "to reach", "connections/s per core"),
    )
    for row, each in found.items():
        plain = each.plain_cpu_us
        table.add_row(row, "none", _number(plain, 0), "", "", "", "")
        for kind, cpu_us in each.cpu_us.items():
            ratio = each.ratios.get(kind)
            table.add_row(
                "",
                kind,
                _number(cpu_us, 0),
                _number(None if plain is None else cpu_us - plain, 0),
                _coloured(ratio, _HANDSHAKE_LIMIT, 2),
                "" if ratio is None else f"≤ {_HANDSHAKE_LIMIT} x {baselines[row]}",
                _number(1e6 / cpu_us, 0),
            )
        table.add_section()
    return table


def idle(found: Mapping[str, IdleMemory]) -> Table:
    """One line per process."""
    table = _table(
        "Memory",
        ("row", "process"),
        ("base PSS MiB", "base RSS MiB", "to reach", "KiB per idle connection", "to reach "),
    )
    for row, each in found.items():
        ours = row not in ("haproxy", "haproxy-tls")
        limit = _KIB_PER_TLS_CONNECTION_LIMIT if "tls" in row else _KIB_PER_CONNECTION_LIMIT
        for number, (role, process) in enumerate(each.base.items()):
            bounded = ours and role.startswith("worker")
            pss_mib = process.pss_kib / 1024
            growth = _coloured(each.kib_per_connection, limit if ours else None, 1)
            table.add_row(
                row if number == 0 else "",
                role,
                _coloured(pss_mib, _WORKER_MIB_LIMIT if bounded else None, 1),
                _number(process.rss_kib / 1024, 1),
                f"< {_WORKER_MIB_LIMIT}" if bounded else "",
                f"{growth} (over {each.connections:,})" if number == 0 else "",
                f"≤ {limit}" if ours and number == 0 else "",
            )
        if ours:
            whole = sum(process.pss_kib for process in each.base.values()) / 1024
            to_reach = f"≤ {_SIDECAR_MIB_LIMIT}"
            table.add_row("", "all", _coloured(whole, _SIDECAR_MIB_LIMIT, 1), "", to_reach, "", "")
        table.add_section()
    return table


def reauth(found: Mapping[str, Reauthenticated]) -> Table:
    """One line per mechanism, and what else `found` distinguishes; none is to be late.

    `side` is the largest number of side connections that the broker saw at once.
    """
    table = _table(
        "Re-authentication of many connections at once",
        ("mechanism",),
        (
            "connections",
            "within s",
            "late",
            "failed",
            "answered after",
            "p50 ms",
            "p99 ms",
            "max ms",
            "CPU µs each",
            "side",
        ),
    )
    for mechanism, each in found.items():
        table.add_row(
            mechanism,
            f"{each.connections:,}",
            _number(each.within_seconds, 1),
            _coloured(each.late, 0, 0),
            _coloured(each.failed, 0, 0),
            f"{each.answered_after:,}",
            _number(each.p50_us / 1_000, 1),
            _number(each.p99_us / 1_000, 1),
            _number(each.max_us / 1_000, 1),
            _number(each.cpu_us, 0),
            _number(each.side_connections, 0),
        )
    return table


def metadata(found: RewriteCost, topics: int, partitions: int) -> Table:
    """One line."""
    table = _table(
        "Rewriting the addresses of a Metadata response (median)",
        ("topics x partitions",),
        ("bytes", "ms", "to reach"),
    )
    table.add_row(
        f"{topics:,} x {partitions}",
        f"{found.size_bytes:,}",
        _coloured(found.milliseconds, _REWRITE_MS_LIMIT, 3),
        f"≤ {_REWRITE_MS_LIMIT}",
    )
    return table


def _table(title: str, names: Iterable[str], values: Iterable[str]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, no_wrap=True)
    for value in values:
        table.add_column(value, justify="right")
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def acls(found: Mapping[str, Administered]) -> Table:
    """One line per piece of administration."""
    table = _table(
        "Administering ACLs beside 100,000, while requests are relayed",
        ("meanwhile",),
        ("seconds", "p99 µs", "max µs", "more than without", "to reach"),
    )
    quiet = found["nothing"].max_us
    for work, each in found.items():
        pause = (each.max_us - quiet) / 1000
        table.add_row(
            work,
            _number(each.seconds, 2),
            _number(each.p99_us, 0),
            _number(each.max_us, 0),
            f"{_coloured(pause, _PAUSE_MS_LIMIT, 1)} ms",
            f"≤ {_PAUSE_MS_LIMIT} ms",
        )
    return table


def _coloured(value: float | None, limit: float | None, digits: int) -> str:
    """Return a number in green if it keeps the limit, in red if not, plain without a limit."""
    text = _number(value, digits)
    if value is None or limit is None:
        return text
    colour = "green" if value <= limit else "red"
    return f"[{colour}]{text}[/{colour}]"
