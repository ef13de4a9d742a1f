"""Report at an address that Hadoop knows: a folder for each run, and the last one's page beside.

    OUT/index.html, OUT/report.json          of the last whole run
    OUT/runs/RUN/index.html, report.json     each run
    OUT/runs/RUN/tables/…                    its Parquet tables

An object store cannot rename folders, so nothing is moved: a run writes its own folder, and the
page and JSON are replaced when that is whole. The run before is kept, for whoever still reads it;
what older ones left, and runs that failed, goes.
"""

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError
from metrics.readiness.output import RUN_ID, RUNS, TABLES, Staging, run_of
from metrics.report.write import JSON_NAME, METRICS_NAME, PAGE_NAME
from metrics.spark.error_messages import SPARK_ERRORS, explained
from metrics.spark.files import HadoopFiles

_SCRATCH: Final = "scratch"


class RemoteRun:
    """Folder of one run below the address `out`."""

    def __init__(self, out: str, run_id: str) -> None:
        self._out = out.rstrip("/")
        self._run_id = run_id
        self._folder = f"{self._out}/{RUNS}/{run_id}"

    def begin(self, spark: SparkSession) -> None:
        """Make the folder: what is wrong with the address is known before the work. Raises
        `SPARK_ERRORS`."""
        HadoopFiles(spark, self._out).make(self._folder)

    @property
    def scratch(self) -> str:
        """Address for what is kept in between."""
        return f"{self._folder}/{_SCRATCH}"

    @property
    def tables(self) -> str:
        """Address of the run's tables."""
        return f"{self._folder}/{TABLES}"

    def publish(self, made: Staging) -> None:
        """Put the page, the JSON, and the tables that are in `made` to this address.

        Raises ReportError.
        """
        spark = SparkSession.active()
        try:
            files = HadoopFiles(spark, self._out)
            before = _last_run(spark, f"{self._out}/{JSON_NAME}")
            files.delete(self.scratch)
            for folder in sorted(made.tables.iterdir()):
                if folder.is_dir():
                    files.upload(str(folder), f"{self.tables}/{folder.name}")
            for place in (self._folder, self._out):  # the last run's are replaced last
                for name in (JSON_NAME, METRICS_NAME, PAGE_NAME):
                    files.upload(str(made.folder / name), f"{place}/{name}")
            for run_id in files.names(f"{self._out}/{RUNS}"):
                if run_id not in {self._run_id, before} and RUN_ID.fullmatch(run_id):
                    files.delete(f"{self._out}/{RUNS}/{run_id}")
        except SPARK_ERRORS as error:
            raise ReportError(explained(error)) from error


def _last_run(spark: SparkSession, address: str) -> str | None:
    """Return the run that a report is of; None: there is no report yet."""
    try:
        (row,) = spark.read.text(address, wholetext=True).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return run_of(row.value)
