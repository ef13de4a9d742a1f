"""Lines as Spark parses them, which is judged by the same text in SQL as DuckDB's rows."""

from pyspark.sql import SparkSession

from metrics.readiness.events import classified
from metrics.spark.ingest import parsed
from tests.support.readiness import LINES


def test_a_line_is_judged_by_what_it_says(spark: SparkSession) -> None:
    given = [*LINES, ("", None), ("  ", None)]
    lines = spark.createDataFrame([(line,) for line, _ in given], "value STRING")
    found = spark.sql(classified("{rows}"), rows=parsed(lines.coalesce(1))).collect()
    assert [row["problem"] for row in found] == [problem for _, problem in LINES]
