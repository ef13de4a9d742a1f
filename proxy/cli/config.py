"""Commands `reauth-proxy config`: check, show and begin a configuration file; its JSON Schema."""

import asyncio
import json
import time
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
    group,
    note,
    option,
    printable,
    say,
    unlogged,
)
from proxy.cli.listing import Output, OutputOption, print_document, print_list
from proxy.errors import ConfigError

if TYPE_CHECKING:
    from proxy.config import Config, Located, Routing
    from proxy.config.changes import SettingInForce

app = group("Check, show and begin the configuration.")


@app.command()
def check(
    file: ConfigArgument = None,
    config: SameConfigOption = None,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Also try ports, brokers, certificates, logins, keys and store."
        ),
    ] = False,
    command_config: Annotated[
        Path | None,
        option(
            "FILE",
            "With --connect: a Kafka client's properties file, whose login is tried at the"
            " brokers.",
        ),
    ] = None,
    principal: Annotated[
        str | None,
        option(
            "PRINCIPAL",
            "With --connect and upstream.identity: a client, such as User:alice, as which the"
            " proxy logs in to a broker; a delegation token is created, used and expired.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check whether a configuration file, and the files that it names, can be used.

    FILE is by default the one that REAUTH_PROXY_CONFIG names. Every mistake is a line with its
    place; exit status 2 if there is one, 1 if --connect fails.
    """
    path = config_file(file, config)
    if (command_config is not None or principal is not None) and not connect:
        raise typer.BadParameter("--command-config and --principal need --connect")
    warnings: list[str] = []
    works: list[str] = []
    with explained(path):
        from proxy.config import judged_entirely, located, read, unreported
        from proxy.config.exposure import exposures
        from proxy.process.preflight import problems_of_named, warnings_of_named

        text = read(path)
        checked, problems = judged_entirely(text, path)
        if checked is not None:
            problems += unreported(problems_of_named(checked, time.time()), problems)
    status = Exit.USAGE
    if checked is not None and not problems:
        warnings = [*exposures(checked), *warnings_of_named(checked)]
        if connect:
            works, doubts, problems = _connect(checked, command_config, principal)
            warnings += doubts
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


def _connect(
    config: "Config", command_config: Path | None, principal: str | None
) -> tuple[list[str], list[str], list[ConfigError]]:
    """Return what works, what may not, and what does not."""
    from proxy.process.connectivity import Doubt, outcomes

    if principal is not None and not any(one.presents_clients for one in config.listeners):
        raise typer.BadParameter("--principal needs a listener with upstream.identity")
    login = None
    if command_config is not None:
        from proxy.admin import read_client_properties

        with explained(command_config):
            login = read_client_properties(command_config).login
        if login is None or not any(one.relays_logins for one in config.listeners):
            raise typer.BadParameter(
                "--command-config needs a login, and a listener with sasl.termination: broker"
            )

    async def collect() -> list[str | ConfigError]:
        return [one async for one in outcomes(config, login, principal)]

    with unlogged():
        every = asyncio.run(collect())
    doubts = [str(one) for one in every if isinstance(one, Doubt)]
    works = [one for one in every if isinstance(one, str) and not isinstance(one, Doubt)]
    return works, doubts, [one for one in every if isinstance(one, ConfigError)]


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
    print_list(
        found,
        output,
        items="settings",
        columns={
            "Setting": lambda one: one.key,
            "Value": lambda one: _value(one.value),
            "From": _origin,
        },
        document=lambda one: {"key": one.key, "value": one.value, "from": _origin(one)},
        name=lambda one: one.key,
    )


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
    routing: Annotated[str, typer.Argument(metavar="ROUTING", hidden=True)],
    file: Annotated[Path | None, typer.Argument(metavar="FILE", hidden=True)] = None,
    bootstrap_server: Annotated[
        str | None,
        option("HOST:PORT", "Ask this cluster for its protocol, mechanisms and brokers."),
    ] = None,
    command_config: Annotated[
        Path | None,
        option(
            "FILE",
            "With --bootstrap-server: a Kafka client's properties file, with a login for"
            " clusters that reveal their brokers only after one.",
        ),
    ] = None,
    sasl: Annotated[
        str | None,
        option(
            "SIDE",
            "With --bootstrap-server: the side that authenticates clients, broker or proxy; by"
            " default broker, if the cluster has SASL.",
        ),
    ] = None,
) -> None:
    """Write a first configuration file, with comments.

    ROUTING is gateway: in front of a cluster, sidecar: beside one broker, or transparent:
    connections are redirected to it. Without FILE it is printed.
    """
    from proxy.config import Routing
    from proxy.config.first_file import first_file

    try:
        way = Routing(routing)
    except ValueError:
        raise typer.BadParameter(f"must be one of {', '.join(Routing)}") from None
    if bootstrap_server is not None:
        text = _matching_file(way, bootstrap_server, command_config, sasl)
    elif command_config is not None or sasl is not None:
        raise typer.BadParameter("--command-config and --sasl need --bootstrap-server")
    else:
        text = first_file(way)
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
    say(f"{printable(str(file))} is written; next: reauth-proxy config check --connect {file}")


def _matching_file(
    routing: "Routing", servers: str, command_config: Path | None, sasl: str | None
) -> str:
    """Return a first file for a running cluster, and print the next steps."""
    from proxy.admin import read_client_properties
    from proxy.admin.client import parse_servers
    from proxy.config import Routing
    from proxy.config.first_file import PROXY_MECHANISMS, first_file
    from proxy.config.listener import SaslTermination
    from proxy.process.cluster_probe import surroundings

    if routing is Routing.TRANSPARENT:
        raise typer.BadParameter("--bootstrap-server has no meaning with transparent")
    if sasl is not None and sasl not in list(SaslTermination):
        raise typer.BadParameter("--sasl must be broker or proxy")
    with explained(command_config):
        client = None if command_config is None else read_client_properties(command_config)
    with explained(), unlogged():
        found, cluster = asyncio.run(surroundings(parse_servers(servers), client))
    side = SaslTermination(sasl or ("broker" if found.mechanisms else "proxy"))
    offered = f" ({', '.join(found.mechanisms)})" if found.mechanisms else ""
    if side is SaslTermination.BROKER and not found.mechanisms:
        problem = f"{servers} speaks {found.protocol}, without logins; use --sasl proxy"
        raise fail(problem, Exit.REFUSED)
    logs_in = bool(found.mechanisms) and side is SaslTermination.PROXY
    if logs_in and not {*PROXY_MECHANISMS} & {*found.mechanisms}:
        problem = f"the proxy cannot log in with a password{offered}; use --sasl broker"
        raise fail(problem, Exit.REFUSED)
    brokers = "unknown without --command-config" if cluster is None else sorted(cluster.brokers)
    note(f"{servers} speaks {found.protocol}{offered}; ids of brokers: {brokers}")
    if found.private_authority:
        note("this machine does not trust its certificate: save its authority as brokers-ca.pem")
    if logs_in:
        note("write the proxy's user at the brokers to sasl.username, its password to the file")
    return first_file(routing, found, side)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from proxy.config import json_schema

    say(json.dumps(json_schema(), indent=2))
