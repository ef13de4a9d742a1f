"""Hadoop's file system of an address, or of a folder as Spark finds it."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metrics.readiness.folder import PATTERNS


class HadoopFiles:
    """File system of an address. All methods raise `SPARK_ERRORS`."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        context: Any = spark.sparkContext
        hadoop = context._jvm.org.apache.hadoop.fs  # noqa: SLF001 - PySpark has no other way
        self._path, self._copy = hadoop.Path, hadoop.FileUtil.copy
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files = self._path(address).getFileSystem(self._configuration)
        self._files.setWriteChecksum(False)  # a folder would have a file of it beside each file

    def make(self, address: str) -> None:
        """Make a folder, and those that it is in."""
        self._files.mkdirs(self._path(address))

    def upload(self, local: str, address: str) -> None:
        """Copy a file or folder of this machine, in place of what is there."""
        # as any file is written: S3A's own copyFromLocalFile takes another client, which fails with
        # the Netty that Spark has (it takes "100 Continue" for the response)
        source, target = self._path(f"file:{local}"), self._path(address)
        self._files.mkdirs(target.getParent())
        local_files = source.getFileSystem(self._configuration)
        self._copy(local_files, source, self._files, target, False, True, self._configuration)

    def delete(self, address: str) -> None:
        """Delete a file or folder; nothing happens if it is not there."""
        self._files.delete(self._path(address), True)

    def exists(self, address: str) -> bool:
        """Return True if there is a file or folder."""
        return bool(self._files.exists(self._path(address)))

    def names(self, address: str) -> list[str]:
        """List what is in a folder."""
        return [
            str(each.getPath().getName()) for each in self._files.listStatus(self._path(address))
        ]

    def download(self, address: str, folder: Path) -> None:
        """Copy the event files below an address into a folder, their names after numbers.

        As Spark does, it passes over names that begin with `_` or `.`: of writers not yet done.
        """
        folder.mkdir(parents=True)
        root = self._files.makeQualified(self._path(address)).toString()
        found = self._files.listFiles(self._path(address), True)
        number = 0
        while found.hasNext():
            path = found.next().getPath()
            below = str(path.toString()).removeprefix(root).strip("/") or path.getName()
            *folders, name = below.split("/")
            is_hidden = any(each.startswith(("_", ".")) for each in (*folders, name))
            if not is_hidden and any(fnmatchcase(name, pattern) for pattern in PATTERNS):
                number += 1
                local = self._path(f"file:{folder.absolute()}/{number:07}-{name}")
                self._files.copyToLocalFile(False, path, local, True)
