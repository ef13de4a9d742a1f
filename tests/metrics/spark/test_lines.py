"""Files and lines as Spark reads them: the same ones as DuckDB, judged by the same text in SQL."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from metrics.readiness.events import classified
from metrics.readiness.settings import Settings
from metrics.spark.files import HadoopFiles
from metrics.spark.lines import event_rows, parsed
from tests.support.readiness import LINES, SEEN_FILES, hidden_among_others


def test_a_line_is_judged_by_what_it_says(spark: SparkSession) -> None:
    given = [*LINES, ("", None), ("  ", None)]
    lines = spark.createDataFrame([(line,) for line, _ in given], "value STRING")
    found = spark.sql(
        classified("{rows}", as_of_ms=2**62), rows=parsed(lines.coalesce(1))
    ).collect()
    assert [row["problem"] for row in found] == [problem for _, problem in LINES]


def test_hidden_files_are_the_same_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Read by Spark itself, and fetched for DuckDB."""
    events, fetched = tmp_path / "events", tmp_path / "fetched"
    hidden_among_others(events)
    given = Settings(events=str(events), out="report", as_of_ms=0)
    rows = event_rows(spark, given).collect()
    assert {row["connection_id"] for row in rows} == SEEN_FILES
    HadoopFiles(spark, events.as_uri()).download(events.as_uri(), fetched)
    found = {json.loads(file.read_text())["connection_id"] for file in fetched.iterdir()}
    assert found == SEEN_FILES
