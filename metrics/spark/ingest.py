"""Table of valid events from lines, with the counts of what was set aside.

The table (Parquet) is what the analysis reads. A batch fills it anew; a stream adds to it, each
micro-batch in a folder of its own that is overwritten if the micro-batch is repeated: so nothing
is lost or doubled by a crash. The analysis reads the whole table, in whatever order it came.

    ROOT/events/batch=N, ROOT/counts/batch=N    a micro-batch
    ROOT/events/upto=N,  ROOT/counts/upto=N     all up to it, once the first has its `_SUCCESS`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from metrics.readiness.errors import ReportError
from metrics.readiness.events import AT_READING, DDL, FIELDS, bounded, classified
from metrics.readiness.folder import is_remote
from metrics.spark.files import HadoopFiles
from metrics.spark.sources import LineSource, literal

MOST_FOLDERS = 24
"""The number of folders of batches at which a table is made one folder again."""

_BATCH, _UP_TO = "batch", "upto"

_NOTHING_YET = (
    "nothing to report on yet: with --state event files are read once they are closed (.jsonl), and"
    " none is"
)


def parsed(lines: DataFrame, fields: Mapping[str, str] = FIELDS) -> DataFrame:
    """Read JSON lines (column `value`) into fields of the log; a bad one into nulls.

    A line is valid exactly if DuckDB's reader takes it: one JSON object, which may end in a comma,
    and nothing after it. A number that is written otherwise is converted or null.
    """
    schema = ", ".join(f"{name} STRING" for name in fields)
    # in a list, nothing but another element can follow the object
    alone = f.expr("try_parse_json(concat('[', value, ']'))")
    more = f.try_variant_get("alone", "$[1]", "variant")
    rows = (
        lines.where(f.trim("value") != "")
        .select(f.expr("CASE WHEN is_valid_utf8(value) THEN value END").alias("value"))
        .select(f.regexp_replace("value", r",\s*\}\s*$", "}").alias("value"))
        .select("value", alone.alias("alone"))
        .select(f.when(f.col("alone").isNotNull() & more.isNull(), f.col("value")).alias("line"))
        .select(f.from_json("line", schema).alias("event"))
        .select("event.*")
        .select(*(_typed(name, kind).alias(name) for name, kind in fields.items()))
    )
    return rows.withColumns({name: f.expr(text) for name, text in bounded().items()})


def _typed(name: str, kind: str) -> Column:
    match kind:
        case "string":
            return f.col(name)
        case "long":
            rounded = f"try_cast(bround(try_cast({name} AS DOUBLE)) AS BIGINT)"
            return f.expr(f"coalesce(try_cast({name} AS BIGINT), {rounded})")
        case "boolean":
            return f.expr(f"coalesce(try_cast({name} AS BOOLEAN), try_cast({name} AS DOUBLE) <> 0)")
        case _:
            return f.from_json(f.when(f.col(name).startswith("["), f.col(name)), kind)


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
        folder = f"{_BATCH}={batch_id}"
        kept.write.mode("overwrite").parquet(_below(self.events_path, folder))
        # a DataFrame of Python's own values would have executors start a Python to read them
        pairs = [
            f.struct(f.lit(name).alias("name"), f.lit(int(count)).cast("long").alias("count"))
            for name, count in observation.get.items()
        ]
        counts = spark.range(1).select(f.inline(f.array(*pairs)))
        counts.coalesce(1).write.mode("overwrite").parquet(_below(self.counts_path, folder))

    def folders(self, spark: SparkSession) -> list[str]:
        """Name the folders of batches that count; those before a compaction do not."""
        files = HadoopFiles(spark, self.root)
        if not files.exists(self.events_path):
            return []
        numbers: dict[str, list[int]] = {_BATCH: [], _UP_TO: []}
        for name in files.names(self.events_path):
            kind, _, number = name.partition("=")
            if kind in numbers and number.isdecimal():
                numbers[kind].append(int(number))
        last = max(
            (
                each
                for each in numbers[_UP_TO]
                if files.exists(_below(self.events_path, f"{_UP_TO}={each}/_SUCCESS"))
            ),
            default=None,
        )
        later = [each for each in sorted(numbers[_BATCH]) if last is None or each > last]
        compacted = [] if last is None else [f"{_UP_TO}={last}"]
        return [*compacted, *(f"{_BATCH}={each}" for each in later)]

    def compact(self, spark: SparkSession) -> None:
        """Make one folder of many. To be called when the stream has ended: no batch comes again.

        The events are written last, and count instead of the batches when they are whole.
        """
        folders = self.folders(spark)
        if len(folders) < MOST_FOLDERS:
            return
        whole = f"{_UP_TO}={folders[-1].partition('=')[2]}"
        counts = _sums(self._counts(spark, folders))
        counts.coalesce(1).write.mode("overwrite").parquet(_below(self.counts_path, whole))
        self.events(spark).write.mode("overwrite").parquet(_below(self.events_path, whole))
        for place in (self.events_path, self.counts_path):
            files = HadoopFiles(spark, place)
            for name in files.names(place):
                if name != whole:
                    files.delete(_below(place, name))

    def event_folders(self, spark: SparkSession) -> list[str]:
        """Give the folders of the events that count."""
        return [_below(self.events_path, name) for name in self.folders(spark)]

    def events(self, spark: SparkSession) -> DataFrame:
        """Read the events."""
        # files without a row leave no trace of their schema: it is given
        return spark.read.schema(DDL).parquet(*map(literal, self.event_folders(spark)))

    def counts(self, spark: SparkSession) -> dict[str, int]:
        """Add up what was counted at reading; raises ReportError if nothing ever was."""
        folders = self.folders(spark)
        if not folders:
            raise ReportError(_NOTHING_YET)
        return dict(_sums(self._counts(spark, folders)).collect())

    def _counts(self, spark: SparkSession, folders: list[str]) -> DataFrame:
        paths = [literal(_below(self.counts_path, name)) for name in folders]
        return spark.read.parquet(*paths)


def _sums(counts: DataFrame) -> DataFrame:
    return counts.groupBy("name").agg(f.sum("count").alias("count"))


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
