"""Summary at the head of the page: who breaks, when, and what to do now."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from metrics.report.formats import (
    ABSENT,
    SHORT,
    by_verdict,
    count,
    duration,
    is_harmless,
    is_judged,
    is_observed,
    kills_a_day,
    logged_in,
    moment,
    name_of,
    number,
    plain,
    span,
    unanimous,
)
from metrics.report.verdicts import VERDICT_LABELS, VERDICT_MEANINGS

Facts = Mapping[str, Any]

_OLD_MS = 86_400_000
"""Age of the newest event in milliseconds at which the page shows a warning."""

_PRINCIPALS, _CLIENTS = 5, 3
"""Maximum numbers of principals and of clients in the summary; the sections below have all."""
_HARMLESS = ("lines", "missing", "duplicate", "outside")
"""The counts of lines that are not listed as set aside in the caution."""


def summary(facts: Facts) -> str:
    """Write the heading and the first section."""
    counts = [(each, VERDICT_LABELS[each], clients) for each, clients in logged_in(facts).items()]
    if facts["never_logged_in"]:
        counts.append(("unknown", "never logged in", facts["never_logged_in"]))
    tiles = "".join(
        f'<li class="tile {verdict}"><b>{number(clients)}</b><span>{label}</span></li>'
        for verdict, label, clients in counts
    )
    meanings = "".join(
        f"<dt>{VERDICT_LABELS[verdict]}</dt><dd>{plain(meaning)}</dd>"
        for verdict, meaning in VERDICT_MEANINGS.items()
    )
    parts = "".join(
        f"<dt>{title}</dt><dd>{text}</dd>"
        for title, text in (
            ("Who", " ".join(_who(facts))),
            ("When", " ".join(_when(facts))),
            ("Kafka 4.0", _kafka_4(facts)),
            ("Now", ", ".join(_now(facts))),
            ("Required", _required(facts)),
        )
        if text
    )
    return (
        "<header><h1>Who is ready for re&#8209;authentication?</h1>"
        f'<p class="soft">{_seen(facts)}</p>{_caution(facts)}</header>'
        f'<section aria-label="Summary"><p class="answer">{_answer(facts)}</p>'
        + (f'<dl class="first">{parts}</dl>' if parts else "")
        + f'<ul class="tiles" aria-label="Clients by verdict">{tiles}</ul>'
        "<details><summary>What a verdict means, and what a client is</summary>"
        f'<dl class="meanings">{meanings}<dt>client</dt><dd>connections with the same principal, '
        "client id, software, version and mechanism</dd></dl></details></section>"
    )


def _seen(facts: Facts) -> str:
    observed = facts["observed"]
    if not observed["connections"]:
        return f"No connection with SASL was recorded. As of {moment(facts['as_of_ms'])} UTC."
    return (
        f"{count(observed['connections'], 'connection')}, "
        f"{span(observed['from_ms'], observed['to_ms'])} UTC; as of {moment(facts['as_of_ms'])}."
    )


def _caution(facts: Facts) -> str:
    """Write the reasons for doubt in the answer."""
    lines, newest = facts["lines"], facts["observed"]["to_ms"]
    parts = []
    if newest is not None and facts["as_of_ms"] - newest >= _OLD_MS:
        parts.append(f"the newest event is {duration(facts['as_of_ms'] - newest)} old")
    aside = sum(amount for kind, amount in lines.items() if kind not in _HARMLESS)
    if aside:
        parts.append(f"{count(aside, 'line was', 'lines were')} set aside")
    if lines["missing"]:
        parts.append(f"{count(lines['missing'], 'event is', 'events are')} missing")
    if left_out := facts["observed"]["left_out_connections"]:
        of = "of clients with too many to judge all"
        parts.append(f"{count(left_out, 'connection was', 'connections were')} left out, {of}")
    if skipped := facts["files_set_aside"]["file_count"]:
        parts.append(f"{count(skipped, 'file was', 'files were')} not read")
    if not parts:
        return ""
    text = ", ".join(parts)
    return f'<p class="soft">Mind: {text}; see <a href="#read">what was read</a>.</p>'


def _answer(facts: Facts) -> str:
    verdicts = logged_in(facts)
    total = sum(verdicts.values())
    if not total:
        never = facts["never_logged_in"]
        return "No client has logged in." if never else "There is nothing to judge yet."
    breaking = verdicts["failing"] + verdicts["not_capable"]
    if breaking:
        return (
            f"<b>{number(breaking)} of {count(total, 'client')} would break</b> when "
            "sessions are enforced."
        )
    if verdicts["unproven"]:
        return (
            f"No client is known to break, but <b>{number(verdicts['unproven'])} of "
            f"{count(total, 'client')} {'has' if verdicts['unproven'] == 1 else 'have'} not been "
            "proven</b>."
        )
    if verdicts["ready"] == total:
        return f"<b>{unanimous(total)} ready.</b>"
    return f"{number(verdicts['ready'])} of {count(total, 'client is', 'clients are')} ready."


def _who(facts: Facts) -> Iterator[str]:
    """Name the principals that break, or else the unproven ones, most connections first."""
    for verdicts, title in ((("failing", "not_capable"), ""), (("unproven",), "Not proven: ")):
        rows = [row for row in facts["principals"] if any(row[each] for each in verdicts)]
        if rows:
            rows.sort(key=itemgetter("connections"), reverse=True)
            named = [
                f"<b>{name_of(row['principal'], SHORT)}</b> ({by_verdict(row, verdicts)})"
                for row in rows[:_PRINCIPALS]
            ]
            total = sum(facts["principals_by_verdict"][each] for each in verdicts)
            if total > len(named):
                rest = number(total - len(named))
                named.append(f'<a href="#principals">{rest} more</a>')
            yield f"{title}{'; '.join(named)}."
            break
    yield from _no_longer_ready(facts["regressed"])
    never_in = facts["never_logged_in"]
    if never_in:
        ids = [row["client_id"] for row in facts["clients"] if row["principal"] is None]
        named = [name_of(each, SHORT) for each in ids[:_CLIENTS]]
        if never_in > len(named):
            named.append(f'<a href="#clients">{number(never_in - len(named))} more</a>')
        yield f"{count(never_in, 'client')} never logged in: {', '.join(named)}."


def _no_longer_ready(regressed: Facts) -> Iterator[str]:
    total, rows = regressed["client_count"], regressed["clients"][:_CLIENTS]
    if total:
        were = (
            "1 client was ready and is"
            if total == 1
            else f"{number(total)} clients were ready and are"
        )
        named = [
            f"<b>{name_of(row['principal'], SHORT)}</b> ({name_of(row['client_id'], SHORT)}, until "
            f"{row['ready_until']})"
            for row in rows
        ]
        if total > len(named):
            named.append(f'<a href="#clients">{number(total - len(named))} more</a>')
        yield f"{were} not any more: {', '.join(named)}."


def _when(facts: Facts) -> Iterator[str]:
    """Describe the shortest and the longest lifetime that kills, and the limits of the data.

    As lifetimes become longer, kills decrease and connections that were cut short increase.
    """
    rows = facts["what_if"]
    killing = [row for row in rows if row["killed_connections"]]
    harmless = [row for row in rows if is_harmless(row)]
    cut_short = [row for row in rows if is_judged(row) and row["cut_short_connections"]]
    missing = facts["lines"]["missing"] > 0
    if killing:
        first, *more = (_killed(row, missing=missing) for row in killing)
        last = f"; one of {more[-1]}" if more else ""
        yield f"A lifetime of {first}{last}{_harmless(harmless, cut_short, missing=missing)}."
    elif harmless and missing:
        first_ms = harmless[0]["lifetime_ms"]
        yield f"No kill is known from {duration(first_ms)} on, but events are missing."
    elif harmless:
        unproven = harmless[0]["unproven_connections"]
        yield (
            f"No connection that is known to break was used longer than "
            f"{duration(harmless[0]['lifetime_ms'])}"
        ) + (f", and {count(unproven, 'unproven one')}." if unproven else ".")
    if cut_short:
        ended = count(cut_short[-1]["cut_short_connections"], "connection was", "connections were")
        yield (
            f"From {duration(cut_short[0]['lifetime_ms'])} on the figures are incomplete: "
            f"{ended} cut short, by a kill or a failed re-authentication."
        )
    too_long = [row for row in rows if not is_judged(row)]
    if too_long:
        yield (
            f"Events cover only {duration(too_long[0]['observed_ms'])}, too little to judge "
            f"{duration(too_long[0]['lifetime_ms'])}{' or more' if len(too_long) > 1 else ''}."
        )
    projected = facts["trend"]["projection"]
    if projected["ready_day"] is not None and projected["ready_share"] < 1:
        yield f'By the <a href="#trend">trend</a> all are ready on {projected["ready_day"]}.'


def _kafka_4(facts: Facts) -> str:
    breaking = facts["breaks_at_kafka_4"]["client_count"]
    if breaking:
        uses = count(breaking, "client</b> uses", "clients</b> use")
        return f'<b>{uses} <a href="#kafka-4">versions of APIs</a> that it dropped.'
    return "No client uses versions of APIs that it dropped." if facts["clients"] else ""


def _harmless(harmless: Sequence[Facts], cut_short: Sequence[Facts], *, missing: bool) -> str:
    """Write which lifetimes kill no connection; after connections cut short, longer ones might."""
    if not harmless:
        return ""
    first, last = (duration(harmless[at]["lifetime_ms"]) for at in (0, -1))
    which = f"from {first} to {last}"
    if not cut_short:
        which = f"from {first} on"
    elif first == last:
        which = f"for {first}"
    if missing:
        return f"; {which} the number is unknown, as events are missing"
    return f"; {which} no connection"


def _killed(row: Mapping[str, Any], *, missing: bool) -> str:
    often = kills_a_day(row, missing=missing)
    often = "" if often == ABSENT else f", {often} times a day"
    return (
        f"<b>{duration(row['lifetime_ms'])}</b> would have killed "
        f"{count(row['killed_connections'], 'connection')} of "
        f"{count(row['killed_clients'], 'client')}{often}"
    )


def _now(facts: Facts) -> Iterator[str]:
    steps, verdicts = facts["next_steps"], facts["principals_by_verdict"]
    if facts["enforceable_principals"] and not is_observed(facts):
        yield f'<a href="#enforce">observe for {duration(facts["observed"]["minimum_ms"])}</a>'
    elif steps["overrides"]:
        names = count(verdicts["ready"], "principal")
        yield f'<a href="#enforce">enforce {names}</a>'
    if steps["probe"]:
        names = count(verdicts["unproven"], "principal")
        yield f'<a href="#probe">prove {names}</a> with <code>probe</code>'
    if steps["upgrades"]:
        clients = sum(row["clients"] for row in steps["upgrades"])
        yield f'<a href="#upgrade">upgrade or repair {count(clients, "client")}</a>'
    if steps["missing_acls"]:
        denied = len(steps["missing_acls"]) + steps["missing_acls_left_out"]
        resources = count(denied, "denied resource")
        yield f'<a href="#acls">decide on {resources}</a>'
    elif not facts["observed"]["connections"]:
        yield (
            "see whether clients come through the proxy, and whether this is what it writes to "
            "(<code>events.directory</code>)"
        )


def _required(facts: Facts) -> str:
    return ", ".join(
        f"{plain(each['require'])}: {'met' if each['met'] else '<b>not met</b>'} "
        f"({plain(each['found'])})"
        for each in facts.get("requirements", ())
    )
