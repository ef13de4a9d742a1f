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

from metrics.spark import event_rows
from metrics.spark.sources import LineSource, SourceError, is_remote, literal

_NOTHING_YET = (
    "nothing to report on yet: with --state event files are read once they are closed (.jsonl), and"
    " none is"
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
        observation = Observation(f"lines of batch {batch_id}")
        rows = event_rows.classified(event_rows.parsed(lines))
        kept = event_rows.valid_events(rows.observe(observation, *event_rows.problem_counts()))
        folder = f"batch={batch_id}"
        kept.write.mode("overwrite").parquet(_below(self.events_path, folder))
        # a DataFrame of Python's own values would have executors start a Python to read them
        pairs = [
            f.struct(f.lit(name).alias("name"), f.lit(int(count)).cast("long").alias("count"))
            for name, count in observation.get.items()
        ]
        counts = lines.sparkSession.range(1).select(f.inline(f.array(*pairs)))
        counts.coalesce(1).write.mode("overwrite").parquet(_below(self.counts_path, folder))

    def events(self, spark: SparkSession) -> DataFrame:
        """Read the events."""
        # files without a row leave no trace of their schema: it is given
        schema = f"{event_rows.FIELDS}, batch BIGINT"
        return spark.read.schema(schema).parquet(literal(self.events_path)).drop("batch")

    def classified(self, spark: SparkSession) -> DataFrame:
        """Read them as rows of which none has a problem."""
        return self.events(spark).withColumn("problem", f.lit(None).cast("string"))

    def counts(self, spark: SparkSession) -> dict[str, int]:
        """Add up what was counted at reading; raises SourceError if nothing ever was."""
        try:
            counts = spark.read.parquet(literal(self.counts_path))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise SourceError(_NOTHING_YET) from None
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
