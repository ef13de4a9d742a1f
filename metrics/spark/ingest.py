"""Table of valid events from lines, with the counts of what was set aside.

The table (Parquet) is what the analysis reads. A batch fills it anew; a stream adds to it, each
micro-batch in a folder of its own that is overwritten if the micro-batch is repeated: so nothing
is lost or doubled by a crash. The analysis reads the whole table, in whatever order it came.
"""

from dataclasses import dataclass
from pathlib import PurePath

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from metrics.readiness.errors import ReportError
from metrics.readiness.events import AT_READING, DDL, FIELDS, classified
from metrics.readiness.folder import is_remote
from metrics.spark.sources import LineSource, literal

_CORRUPT = "_corrupt_record"

_NOTHING_YET = (
    "nothing to report on yet: with --state event files are read once they are closed (.jsonl), and"
    " none is"
)


def parsed(lines: DataFrame, fields: str = DDL) -> DataFrame:
    """Read JSON lines (column `value`) into fields of the log; a bad one into nulls."""
    schema = f"{fields}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    event = f.from_json("value", schema, options).alias("event")
    unreadable = f.col(_CORRUPT).isNotNull()
    return (
        lines.where(f.trim("value") != "")
        .select(event)
        .select("event.*")
        .withColumn("kind", f.when(~unreadable, f.col("kind")))
        .drop(_CORRUPT)
    )


@dataclass(frozen=True, slots=True)
class EventTable:
    """Valid events in `<root>/events`, what was counted at reading in `<root>/counts`."""

    root: str

    @property
    def events_path(self) -> str:
        """The folder of the events."""
        return _below(self.root, "events")

    @property
    def counts_path(self) -> str:
        """The folder of the counts."""
        return _below(self.root, "counts")

    @property
    def checkpoint_path(self) -> str:
        """The folder in which a stream keeps its progress."""
        return _below(self.root, "checkpoint")

    def add(self, lines: DataFrame, batch_id: int) -> None:
        """Write a batch of lines; the same `batch_id` again replaces it."""
        spark = lines.sparkSession
        rows = spark.sql(classified("{lines}"), lines=parsed(lines))
        problems = {each.value: f.count_if(f.col("problem") == each.value) for each in AT_READING}
        counted = {"lines": f.count(f.lit(1))} | problems
        observation = Observation(f"lines of batch {batch_id}")
        rows = rows.observe(observation, *(each.alias(name) for name, each in counted.items()))
        kept = rows.where("problem IS NULL").select(*FIELDS)
        folder = f"batch={batch_id}"
        kept.write.mode("overwrite").parquet(_below(self.events_path, folder))
        # a DataFrame of Python's own values would have executors start a Python to read them
        pairs = [
            f.struct(f.lit(name).alias("name"), f.lit(int(count)).cast("long").alias("count"))
            for name, count in observation.get.items()
        ]
        counts = spark.range(1).select(f.inline(f.array(*pairs)))
        counts.coalesce(1).write.mode("overwrite").parquet(_below(self.counts_path, folder))

    def events(self, spark: SparkSession) -> DataFrame:
        """Read the events."""
        # files without a row leave no trace of their schema: it is given
        schema = f"{DDL}, batch BIGINT"
        return spark.read.schema(schema).parquet(literal(self.events_path)).drop("batch")

    def counts(self, spark: SparkSession) -> dict[str, int]:
        """Add up what was counted at reading; raises ReportError if nothing ever was."""
        try:
            counts = spark.read.parquet(literal(self.counts_path))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise ReportError(_NOTHING_YET) from None
        return dict(counts.groupBy("name").agg(f.sum("count")).collect())


def ingest_batch(spark: SparkSession, source: LineSource, table: EventTable) -> None:
    """Read all there is, once."""
    table.add(source.batch(spark), 0)


def ingest_new(spark: SparkSession, source: LineSource, table: EventTable) -> None:
    """Read what has come since the last time, then end; the table remembers how far."""
    query = (
        source.stream(spark)
        .writeStream.foreachBatch(table.add)
        .option("checkpointLocation", table.checkpoint_path)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _below(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}" if is_remote(root) else str(PurePath(root) / name)
