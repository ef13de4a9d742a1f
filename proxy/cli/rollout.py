"""Commands `reauth-proxy rollout`: progress and decisions of `reauth.enforcement: auto`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from metrics.rollout import Stage
from proxy.cli.common import (
    DefaultConfigOption,
    explained,
    group,
    loaded_config,
    operator,
    option,
    principal_name,
    printable,
    say,
)
from proxy.cli.listing import Output, OutputOption, print_list
from proxy.rollout import Decision, Pause, Record, Rollout, Standing
from proxy.store import Store

app = group("Follow and steer reauth.enforcement: auto.")

PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", hidden=True, callback=principal_name)
]
BY_HAND: Final = "by hand"
Reason = Annotated[str, option("TEXT", "Why; `rollout status` shows it.")]


@contextmanager
def _opened(config: Path | None) -> Iterator[tuple[Store, Rollout]]:
    """Yield the store of a configuration, and its evidence. Raises BadParameter and Exit."""
    from proxy.cli.administration import opened_store

    settings = loaded_config(config, "--config")
    rollout = Rollout(settings.auto.rules())
    url = f"sqlite:{settings.store.path()}"
    with explained(), opened_store(url, settings.admin_socket()) as store:
        rollout.read(store.rollout_rows(0)[1])
        yield store, rollout


@app.command()
def status(*, config: DefaultConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """List principals with their stage, and what is missing for the next one."""
    now_ms, stages = _now_ms(), list(Stage)
    with _opened(config) as (_, rollout):
        pass
    standings = {name: rollout.standing(name, now_ms) for name in rollout.records}
    found = sorted(standings, key=lambda name: (stages.index(standings[name].stage), name))
    print_list(
        found,
        output,
        items="principals",
        columns={
            "Principal": str,
            "Stage": lambda name: standings[name].stage.value,
            "Clients": lambda name: str(len(rollout.records[name].clients)),
            "Reason": lambda name: _reason(rollout, name, standings[name]),
        },
        document=lambda name: _document(rollout, name, now_ms),
        name=str,
    )
    if output is Output.TABLE:
        counts = rollout.funnel(now_ms).items()
        say(", ".join(f"{count} {stage}" for stage, count in counts if count) or "none")
        if rollout.pause.paused:
            say(f"paused by {rollout.pause.author}: {rollout.pause.reason}")
        elif rollout.rules.pause:
            say("paused by auto.pause")


def _reason(rollout: Rollout, principal: str, standing: Standing) -> str:
    parts = [standing.reason] if standing.reason else []
    for lifetime_ms, count in rollout.would_be_killed(principal).items():
        if count:
            parts.append(f"{lifetime_ms} ms would disconnect {count}")
    return "; ".join(parts)


def _document(rollout: Rollout, principal: str, now_ms: int) -> dict[str, Any]:
    record = rollout.records[principal]
    since_ms = record.decision.since_ms
    return {
        "principal": principal,
        **rollout.standing(principal, now_ms)._asdict(),
        "decision": record.decision._asdict(),
        "kills": record.kills,
        "would_be_killed": rollout.would_be_killed(principal),
        "clients": [
            kind._asdict()
            | one._asdict()
            | rollout.client_standing(one, since_ms, now_ms)._asdict()
            for kind, one in record.clients.items()
        ],
    }


@app.command()
def promote(
    *, principal: PrincipalArgument, config: DefaultConfigOption = None, reason: Reason = BY_HAND
) -> None:
    """Enforce a principal now, whatever its evidence is; kills demote it."""
    _decide(config, principal, reason, probes=False)
    say(f"{printable(principal)} is enforced")


@app.command()
def demote(
    *, principal: PrincipalArgument, config: DefaultConfigOption = None, reason: Reason = BY_HAND
) -> None:
    """Probe a principal until it is promoted by hand."""
    _decide(config, principal, reason, probes=True)
    say(f"{printable(principal)} is probed")


def _decide(config: Path | None, principal: str, reason: str, *, probes: bool) -> None:
    """Store an operator's decision about a principal, later than any other."""
    with _opened(config) as (store, rollout):
        before = rollout.records.get(principal, Record()).decision
        now_ms = max(_now_ms(), before.at_ms + 1)
        decision = Decision(now_ms, probes, 0, now_ms, operator(), reason)
        rollout.add(principal, Record(decision=decision))
        _write(store, rollout, principal)


@app.command()
def pause(
    *,
    config: DefaultConfigOption = None,
    off: Annotated[bool, typer.Option("--off", help="Promote again.")] = False,
    reason: Reason = BY_HAND,
) -> None:
    """Promote no principal until `rollout pause --off`; demotions continue."""
    with _opened(config) as (store, rollout):
        now_ms = max(_now_ms(), rollout.pause.at_ms + 1)
        rollout.pause = Pause(now_ms, not off, operator(), reason)
        _write(store, rollout)
    say("principals are promoted again" if off else "nothing is promoted")


def _write(store: Store, rollout: Rollout, *principals: str) -> None:
    """Write the rows of principals, merged with the rows that others have written."""

    def change(rows: dict[str, str]) -> dict[str, str | None]:
        rollout.read(rows)
        return rollout.rows(principals)

    store.change_rollout(0, change)


def _now_ms() -> int:
    return round(time.time() * 1000)
