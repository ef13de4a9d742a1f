"""Hadoop's file system for an address, or for a folder as Spark resolves it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError
from metrics.readiness.folder import is_event_file, is_hidden


class HadoopFiles:
    """File system of an address. All methods raise `SPARK_ERRORS`."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        context: Any = spark.sparkContext
        hadoop = context._jvm.org.apache.hadoop.fs  # noqa: SLF001 - PySpark has no other way
        self._path, self._copy = hadoop.Path, hadoop.FileUtil.copy
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files = self._path(address).getFileSystem(self._configuration)
        self._files.setWriteChecksum(False)  # otherwise there is a checksum file beside each file

    def make(self, address: str) -> None:
        """Create a folder and its parents."""
        self._files.mkdirs(self._path(address))

    def upload(self, local: str, address: str) -> None:
        """Copy a file or folder of this machine, and overwrite an existing one."""
        # a generic copy: S3A's own copyFromLocalFile uses another HTTP client, which fails with
        # Spark's version of Netty (it takes "100 Continue" for the response)
        source, target = self._path(f"file:{local}"), self._path(address)
        self._files.mkdirs(target.getParent())
        local_files = source.getFileSystem(self._configuration)
        self._copy(local_files, source, self._files, target, False, True, self._configuration)

    def delete(self, address: str) -> None:
        """Delete a file or folder if it exists."""
        self._files.delete(self._path(address), True)

    def exists(self, address: str) -> bool:
        """Return True if the file or folder exists."""
        return bool(self._files.exists(self._path(address)))

    def names(self, address: str) -> list[str]:
        """Return the names in a folder."""
        return [
            str(each.getPath().getName()) for each in self._files.listStatus(self._path(address))
        ]

    def matched(self, address: str) -> list[str]:
        """Return the files and folders that match an address, which may be a pattern."""
        found = self._files.globStatus(self._path(address))
        return [str(each.getPath().toString()) for each in found or ()]

    def download(self, address: str, folder: Path) -> None:
        """Copy the event files below an address into a folder, as `part-NUMBER-NAME`.

        It skips hidden files, as Spark does. Raises ReportError if the disk has too little space.
        """
        folder.mkdir(parents=True)
        files = [file for root in self.matched(address) for file in self._event_files(root)]
        size = sum(each.getLen() for each in files)
        free = shutil.disk_usage(folder).free
        if size > free:
            raise ReportError(
                f"{address}: {_gigabytes(size)} of events are fetched to {folder.parent}, which has"
                f" {_gigabytes(free)} left; make room there, or have --out on a larger disk"
                " (TMPDIR, if --out is an address), or let a cluster read them where they are"
                " (--master)"
            )
        for number, file in enumerate(files, start=1):
            path = file.getPath()
            local = self._path(f"file:{folder.absolute()}/part-{number:07}-{path.getName()}")
            self._files.copyToLocalFile(False, path, local, True)

    def _event_files(self, root: str) -> Iterator[Any]:
        """Yield the metadata of event files that are not hidden."""
        found = self._files.listFiles(self._path(root), True)
        while found.hasNext():
            file = found.next()
            path = file.getPath()
            below = str(path.toString()).removeprefix(root).strip("/") or path.getName()
            *folders, name = below.split("/")
            if is_event_file(name) and not any(map(is_hidden, folders)):
                yield file


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
