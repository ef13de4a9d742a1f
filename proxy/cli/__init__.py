"""Command line, a thin layer: each command imports what it needs when it runs.

Exit status: 0 done, 1 refused or not found, 2 usage or configuration. Errors are one line on
stderr.
"""

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from proxy import __version__
from proxy.cli.common import (
    ConfigArgument,
    Exit,
    SameConfigOption,
    config_file,
    fail,
    option,
    output_failed,
    require_extra,
    require_linux,
    say,
    usage_explained,
)
from proxy.demo import MIN_SECONDS

NAME: Final = "reauth-proxy"
GROUPS: Final = (
    "config",
    "users",
    "acls",
    "quotas",
    "token",
    "sessions",
    "why",
    "rollout",
    "events",
    "audit",
    "report",
)
"""Commands with a module of their own, `proxy.cli.NAME`."""
REMOVED: Final = {
    ("webhook",): "admission policies add the sidecar: docs/kubernetes.md#injection",
    ("events", "topic", "status"): "kafka-topics.sh --describe shows the topic",
    ("report", "serve"): "a web server serves the report's folder: docs/fleet.md#seeing-it",
}
"""Commands of earlier versions, and what replaces them."""


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

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the options before the command."""
        with usage_explained():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command."""
        with usage_explained():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and its own arguments."""
        for words, instead in REMOVED.items():
            if tuple(args[: len(words)]) == words:
                raise fail(f"{' '.join(words)} was removed; {instead}", Exit.USAGE)
        return super().resolve_command(ctx, args)

    def _import_others(self) -> None:
        for name in GROUPS:
            if name not in self.commands:
                command = get_command(import_module(f"proxy.cli.{name}").app)
                command.name = name
                self.add_command(command)
        blocks = get_command(import_module("proxy.cli.blocks").app)
        assert isinstance(blocks, TyperGroup)
        self.commands.update(blocks.commands)


app = typer.Typer(
    name=NAME,
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from proxy.connection.frames import BUILD

        say(f"reauth-proxy {__version__} ({BUILD})")
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
    file: ConfigArgument = None,
    config: SameConfigOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also reload when the file is replaced.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take over from a running proxy without refusing a connection."
        ),
    ] = False,
) -> None:
    """Run the proxy in the foreground until SIGTERM; SIGHUP reloads.

    FILE is the configuration; by default the one that REAUTH_PROXY_CONFIG names.
    """
    require_linux()
    from proxy.process.start import serve as run

    raise typer.Exit(run(config_file(file, config), follow=follow, take_over=take_over))


@app.command()
def demo(
    seconds: Annotated[
        float,
        option("SECONDS", "Seconds for which the clients work, at least 20.", min=MIN_SECONDS),
    ] = 60.0,
) -> None:
    """Show re-authentication on real traffic, in a minute.

    It needs no cluster: brokers, clients and the report are included.
    """
    require_linux()
    require_extra("demo", "the demo")
    from proxy.demo.run import play

    raise typer.Exit(play(seconds))


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name=NAME)
    except OSError as error:  # of help, which is not printed with `say`
        if error.filename is not None:
            raise
        sys.exit(output_failed(error).exit_code)
