"""Command line, a thin layer: each command imports what it needs when it runs.

Exit status: 0 done, 1 refused or not found, 2 usage or configuration. Errors are one line on
stderr.
"""

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from proxy import __version__
from proxy.cli.common import ConfigFile, require_linux

GROUPS: Final = ("config", "users", "acls", "quotas", "sessions", "report", "webhook")
"""Commands with a module of their own, `proxy.cli.NAME`."""


class Commands(TyperGroup):
    """Group that imports the commands other than `serve` only when one of them is called."""

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Return a command by its name."""
        if cmd_name != "serve":
            self._import_others()
        return super().get_command(ctx, cmd_name)  # type: ignore[return-value]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._import_others()
        return super().list_commands(ctx)

    def _import_others(self) -> None:
        for name in GROUPS:
            if name not in self.commands:
                command = get_command(import_module(f"proxy.cli.{name}").app)
                command.name = name
                self.add_command(command)


app = typer.Typer(
    name="reauth-proxy",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reauth-proxy {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A SASL re-authentication proxy for Apache Kafka."""


@app.command()
def serve(
    config: ConfigFile,
    follow: Annotated[
        bool, typer.Option("--follow", help="Reload when the file is replaced, too.")
    ] = False,
) -> None:
    """Run the proxy in the foreground until SIGTERM; SIGHUP reloads."""
    require_linux()
    from proxy.process.start import serve as run

    raise typer.Exit(run(config, follow=follow))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the clients work, at least 20.")] = 60.0,
) -> None:
    """Show re-authentication on real traffic, with nothing else to install; takes a minute."""
    require_linux()
    from proxy.demo import main as run

    raise typer.Exit(run(seconds))


def main() -> None:
    """Run the command line."""
    app()
