"""Commands `reauth-proxy config`: check, show and begin a configuration file; its JSON Schema."""

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import (
    ConfigArgument,
    Exit,
    SameConfigOption,
    config_file,
    explained,
    fail,
    note,
    printable,
    say,
    unlogged,
)
from proxy.cli.listing import Listing, Output, OutputOption, print_document, print_list
from proxy.errors import ConfigError

if TYPE_CHECKING:
    from proxy.config import Config, Located, Routing
    from proxy.config.changes import SettingInForce

app = typer.Typer(
    help="Check, show and begin the configuration.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def check(
    file: ConfigArgument = None,
    config: SameConfigOption = None,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Also try ports, brokers, login, signing keys and store."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check whether a configuration file, and the files that it names, can be used.

    FILE is by default the one that REAUTH_PROXY_CONFIG names. Every mistake is a line with its
    place; exit status 2 if there is one, 1 if --connect fails.
    """
    path = config_file(file, config)
    warnings: list[str] = []
    works: list[str] = []
    with explained(path):
        from proxy.config import judged_entirely, located, read
        from proxy.config.exposure import exposures
        from proxy.process.preflight import certificate_warnings, problems_of_named

        text = read(path)
        checked, problems = judged_entirely(text, path)
        if checked is not None and not problems:
            problems = list(problems_of_named(checked, time.time()))
    status = Exit.USAGE
    if checked is not None and not problems:
        warnings = [*exposures(checked), *certificate_warnings(checked)]
        if connect:
            works, problems = _connect(checked)
            status = Exit.REFUSED
    found = located(problems, text)
    listed = [{"key": one.key, "line": one.line, "problem": one.problem} for one in found]
    document = {"file": str(path), "ok": not found, "problems": listed}
    if not print_document(document | {"warnings": warnings, "works": works}, output):
        _print_findings(path, found, warnings, works)
    if found:
        raise typer.Exit(status)


def _print_findings(
    path: Path, problems: "list[Located]", warnings: list[str], works: list[str]
) -> None:
    """Print results on stdout, problems and warnings on stderr."""
    for line in works:
        say(printable(f"{path}: {line}"))
    for one in problems:
        note(one.described(path))
    for line in warnings:
        typer.echo(printable(f"{path}: warning: {line}"), err=True)
    if not problems:
        say(f"{path}: ok")


def _connect(config: "Config") -> tuple[list[str], list[ConfigError]]:
    """Return what works, and what does not."""
    from proxy.process.connectivity import outcomes

    async def collect() -> list[str | ConfigError]:
        return [one async for one in outcomes(config)]

    with unlogged():
        every = asyncio.run(collect())
    works = [one for one in every if isinstance(one, str)]
    return works, [one for one in every if isinstance(one, ConfigError)]


@app.command()
def show(
    file: ConfigArgument = None,
    config: SameConfigOption = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only the settings that the file sets.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every setting in force, defaults included, and where each value is from.

    FILE is by default the one that REAUTH_PROXY_CONFIG names.
    """
    path = config_file(file, config)
    with explained(path):
        from proxy.config import judged, read
        from proxy.config.changes import settings_in_force
        from proxy.config.document import Lines

        text = read(path)
        every = settings_in_force(judged(text, path), Lines(text))
        found = [one for one in every if one.line is not None or not changed]
    listing: Listing[SettingInForce] = Listing(
        items="settings",
        headings=("Setting", "Value", "From"),
        lines=lambda one: [(one.key, _value(one.value), _origin(one))],
        document=lambda one: {"key": one.key, "value": one.value, "from": _origin(one)},
        name=lambda one: one.key,
    )
    print_list(listing, found, output)


def _value(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return ", ".join(map(_value, value))
    return json.dumps(value, ensure_ascii=False)


def _origin(one: "SettingInForce") -> str:
    return "default" if one.line is None else f"line {one.line}"


@app.command()
def init(
    routing: Annotated[
        str,
        typer.Argument(metavar="ROUTING", hidden=True),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", hidden=True),
    ] = None,
) -> None:
    """Write a first configuration file, with comments.

    ROUTING is gateway: in front of a cluster, sidecar: beside one broker, or transparent:
    connections are redirected to it. Without FILE it is printed.
    """
    from proxy.config.first_file import first_file

    text = first_file(_routing(routing))
    if file is None:
        say(text.rstrip("\n"))
        return
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise fail(f"{file} already exists", Exit.REFUSED) from None
    except OSError as error:
        raise fail(f"{file}: cannot be written: {error.strerror}", Exit.REFUSED) from None
    say(f"{printable(str(file))} is written; next: reauth-proxy config check {file}")


def _routing(name: str) -> "Routing":
    from proxy.config import Routing

    try:
        return Routing(name)
    except ValueError:
        known: Iterable[str] = Routing
        raise typer.BadParameter(f"must be one of {', '.join(known)}") from None


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from proxy.config import json_schema

    say(json.dumps(json_schema(), indent=2))
