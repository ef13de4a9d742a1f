"""Command `reauth-proxy report`: the readiness report from the session events."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from metrics.extras import missing
from metrics.readiness import job
from metrics.readiness.analysis import Progress
from metrics.readiness.errors import ReportError, explained
from metrics.readiness.settings import EngineName, Settings
from metrics.report.write import PAGE_NAME
from proxy.cli.common import BootstrapServer, CommandConfig, Exit, fail, option, say
from proxy.cli.common import explained as config_explained

app = typer.Typer(rich_markup_mode=None)


@app.command()
def report(
    events: Annotated[str, option("PATH", "Folder of event files or Parquet, or kafka:TOPIC.")],
    out: Annotated[str, option("DIR", "Where the report goes: index.html is the page.")],
    lifetime: Annotated[
        list[str] | None,
        option(
            "15m",
            "A further candidate lifetime, beside 5, 15, 30, 60 and 240 minutes; may be repeated.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        option(
            "SPEC",
            "95% (of the clients are ready), User:alice, no-kills@60m or kafka4-ready; may be "
            "repeated. Exit status 1 if one is not met.",
        ),
    ] = None,
    as_of: Annotated[
        str | None, option("TIME", "The present time for the report, by default now (UTC).")
    ] = None,
    since: Annotated[
        str | None, option("TIME", "Leave out events before, e.g. 2026-06-01T12:00 (UTC).")
    ] = None,
    until: Annotated[str | None, option("TIME", "Leave out events from then on.")] = None,
    min_observed: Annotated[
        str, option("24h", "Advise to enforce only if events cover this time.")
    ] = "24h",
    engine: Annotated[
        EngineName,
        option(
            "ENGINE",
            "duckdb, spark, or auto: DuckDB for a topic or a folder of this machine, Spark for"
            " the rest.",
        ),
    ] = EngineName.AUTO,
    master: Annotated[str | None, option("URL", "Spark master, for Spark: local[*].")] = None,
    state: Annotated[str | None, option("DIR", "Read only what is new since the last run.")] = None,
    history: Annotated[
        Path | None, option("DIR", "Add the tables to those of earlier runs.")
    ] = None,
    history_days: Annotated[
        int | None,
        option("DAYS", "Remove what the history has of earlier days.", min=1, max=36_500),
    ] = None,
    acls: Annotated[
        Path | None, option("FILE", "Compare the use with the ACLs of acls export -o json.")
    ] = None,
    users: Annotated[
        Path | None, option("FILE", "Find unused credentials among users list -o json.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Write who breaks under which lifetime, and what to do.

    The report is a page, JSON, metrics for Prometheus and Parquet tables.

    Exit status 0: ready, or nothing was required; 1: a requirement is not met; 2: an error.
    """
    try:
        settings = job.settings_of(
            events=events,
            out=out,
            lifetime=lifetime or [],
            require=require or [],
            as_of=as_of,
            since=since,
            until=until,
            min_observed=min_observed,
            engine=engine,
            master=master,
            state=state,
            history=history,
            history_days=history_days,
            acls=acls,
            users=users,
        )
        with config_explained(command_config):
            kafka = topic_settings(settings, bootstrap_server, command_config)
        settings = replace(settings, kafka=kafka)
        with job.sigterm_as_sigint(lambda step: typer.echo(f"{step} …", err=True)) as progress:
            _, unmet = run(settings, progress)
    except KeyboardInterrupt:
        raise fail("interrupted", Exit.USAGE) from None
    except (ValueError, *job.FAILURES) as error:
        raise fail(explained(error), Exit.USAGE) from None
    say(f"{out.rstrip('/')}/{PAGE_NAME}")
    if unmet:
        raise fail(f"not met: {', '.join(unmet)}", Exit.REFUSED)


def run(settings: Settings, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Make the report with the engine that it takes. Raises `job.FAILURES`."""
    extras = ["spark" if settings.is_for_spark else "report"]
    if settings.topic is not None and not settings.is_for_spark:
        extras.append("kafka")
    if problems := [problem for extra in extras if (problem := missing(extra)) is not None]:
        raise ReportError(f"this report {', and '.join(problems)}")
    if not settings.is_for_spark:
        return job.run(settings, progress)
    settings.check()  # before the import, which takes seconds
    from metrics.spark import job as on_spark

    return on_spark.run(settings, progress)


def topic_settings(
    settings: Settings, servers: str | None, command_config: Path | None
) -> Mapping[str, Any]:
    """Return the settings for a topic; Spark's connector knows Kafka's own.

    Raises ConfigError, and ValueError for a topic that cannot be one.
    """
    if settings.topic is None:
        return {}
    from metrics.delivery.selection import parse_target
    from proxy.admin.properties import read_properties
    from proxy.delivery.kafka_settings import of_options

    parse_target(settings.events)
    if not settings.is_for_spark:
        return of_options(servers, command_config)
    properties = {} if command_config is None else read_properties(command_config)
    if servers is not None:
        properties["bootstrap.servers"] = servers
    return {f"kafka.{name}": value for name, value in properties.items()}
