"""Command `reauth-proxy report`: the readiness report from the session events."""

import time
from pathlib import Path
from typing import Annotated

import typer

from metrics.spark import PYSPARK
from proxy.cli.common import Exit, fail

app = typer.Typer(add_completion=False)


@app.command()
def report(
    events: Annotated[
        str,
        typer.Option(metavar="PATH", help="Folder of event files or Parquet, or kafka:TOPIC."),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where the report goes: index.html is the page."),
    ],
    lifetime: Annotated[
        list[str] | None,
        typer.Option(
            metavar="15m",
            help="A further candidate lifetime, beside 5, 15, 30, 60 and 240 minutes; may be "
            "repeated.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="95% (of the clients are ready), User:alice, or no-kills@60m; may be repeated. "
            "Exit status 1 if one is not met.",
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    state: Annotated[
        str | None, typer.Option(metavar="DIR", help="Read only what is new since the last run.")
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="For kafka:TOPIC.")
    ] = None,
) -> None:
    """Write a page, JSON and Parquet tables: who breaks under which lifetime, and what to do.

    Exit status 0: ready, or nothing was required; 1: a requirement is not met; 2: an error.
    """
    try:
        from metrics.report.requirements import requirement
        from metrics.report.write import PAGE_NAME
        from metrics.spark import job
        from metrics.spark.error_messages import explained
    except ImportError:
        raise fail(f"the report needs PySpark: pip install '{PYSPARK}'", Exit.USAGE) from None
    try:
        settings = job.Settings(
            events=events,
            out=out,
            lifetimes_ms=job.lifetimes(lifetime or []),
            requirements=tuple(requirement(text) for text in require or []),
            as_of_ms=time.time_ns() // 1_000_000,
            master=master,
            state=state,
            bootstrap_servers=bootstrap_server,
        )
        with job.sigterm_as_sigint():
            _, unmet = job.run(settings, _print_progress)
    except KeyboardInterrupt:
        raise fail("interrupted", Exit.USAGE) from None
    except (ValueError, *job.FAILURES) as error:
        raise fail(explained(error), Exit.USAGE) from None
    typer.echo(str(out / PAGE_NAME))
    if unmet:
        raise fail(f"not met: {', '.join(unmet)}", Exit.REFUSED)


def _print_progress(step: str) -> None:
    typer.echo(f"{step} …", err=True)
