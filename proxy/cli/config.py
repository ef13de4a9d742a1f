"""Commands `reauth-proxy config`: check of a configuration file, and its JSON Schema."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.common import explained

app = typer.Typer(help="Check the configuration.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The configuration file.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The same.")
    ] = None,
) -> None:
    """Check whether a configuration file, and the files that it names, can be used."""
    if (file is None) == (config is None):
        raise typer.BadParameter("give either FILE or --config FILE")
    path = file or config
    assert path is not None
    with explained(path):
        from proxy.config import load
        from proxy.config.exposure import exposures
        from proxy.process.preflight import certificate_warnings, check_named

        checked = load(path)
        check_named(checked, time.time())
        warnings = (*exposures(checked), *certificate_warnings(checked))
    for line in warnings:
        typer.echo(f"{path}: warning: {line}", err=True)
    typer.echo(f"{path}: ok")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from proxy.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
