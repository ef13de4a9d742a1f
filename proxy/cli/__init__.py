"""The command line: a thin layer. Each command imports what it needs when it runs.

Exit status: 0 done, 1 refused or not found, 2 usage or configuration. Errors are one line on
stderr.
"""

from typing import Annotated

import typer

from proxy.cli import acls, config, quotas, report, sessions, users
from proxy.cli.common import ConfigFile, explained

app = typer.Typer(
    name="reauth-proxy",
    help="A SASL re-authentication proxy for Apache Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(config.app, name="config")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(quotas.app, name="quotas")
app.add_typer(sessions.app, name="sessions")
app.command()(report.report)


@app.command()
def serve(config: ConfigFile) -> None:
    """Run the proxy in the foreground until SIGTERM; SIGHUP reloads."""
    with explained(config):
        from proxy.server import serve as run

        status = run(config)
    raise typer.Exit(status)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the clients work, at least 20.")] = 60.0,
) -> None:
    """Show re-authentication on real traffic, with nothing else to install; takes a minute."""
    from proxy.demo import main as run

    raise typer.Exit(run(seconds))


def main() -> None:
    """Run the command line."""
    app()
