"""Spark's classes as the JVM keeps them, in a file that it maps: starting takes half as long then.

    python -m metrics.spark.class_archive

makes reports of a few events and has the JVM leave the classes that it loaded (JEP 350) in the
user's cache directory, some 200 MB; once for each Spark and Java. Every later report finds them.
Nothing else depends on the file: whoever deletes it waits some seconds longer.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_SECONDS = 900.0
"""Reports of a few events, and the JVM writing what it has loaded, on a busy machine."""

_QUIET = "-Xlog:cds*=off"
"""The JVM tells of thousands of classes that it cannot keep, on its standard output."""


def archive_path() -> Path | None:
    """Say where the classes of this Spark and this Java are, or will be; None: there is no Java."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        return None
    program = Path(java).resolve()
    state = program.stat()
    named = (pyspark.__version__, pyspark.__file__, program, state.st_size, state.st_mtime_ns)
    digest = hashlib.sha256("\n".join(map(str, named)).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kafka-reauth-proxy" / f"spark-{digest}.jsa"


def java_options() -> str:
    """Give the options that have a JVM use the classes, if they are there."""
    archive = archive_path()
    if archive is None or not archive.is_file():
        return ""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def make_archive(archive: Path) -> None:
    """Make reports in a process of its own, whose JVM leaves its classes in the file.

    Raises OSError, or SubprocessError with what the process said.
    """
    from metrics.spark.generate import Size, generate

    archive.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(archive)
    # a JVM that maps half an archive dies of it: a name is given to a whole one only
    half = archive.with_name(f".{archive.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="class-archive-") as directory:
        size = Size(connections=20, principals=4, clients=10, days=0.1, seed=1)
        generate(size, Path(directory) / "events", parquet=False)
        try:
            _run(
                [sys.executable, "-m", "metrics.spark.class_archive", directory],
                java_options=f'"-XX:ArchiveClassesAtExit={half}" {_QUIET}',
            )
            with half.open("rb") as file:
                os.fsync(file.fileno())
            half.replace(archive)
        finally:
            half.unlink(missing_ok=True)


def _remove_leftovers(archive: Path) -> None:
    """Remove what processes have left that were killed and could not."""
    for half in archive.parent.glob(f".{archive.name}.*"):
        try:
            os.kill(int(half.suffix[1:]), 0)
        except ProcessLookupError:
            half.unlink(missing_ok=True)


def _run(command: Sequence[str], *, java_options: str) -> None:
    process = subprocess.Popen(  # noqa: S603 - this very program
        command,
        env=os.environ | {"JDK_JAVA_OPTIONS": java_options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # a JVM writes its classes when it ends, and it does so when Python does
        start_new_session=True,
    )
    try:
        # the JVM ends after the process that started it, and holds its stdout until it does
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, said)


def _load_classes(folder: Path) -> None:
    """Report on the event files in `folder/events`, as on a large input and as on a small one."""
    from metrics.spark import ingest, job, sources
    from metrics.spark.session import make_session

    spark = make_session(master="local[2]", input_bytes=None)
    lines, table = folder / "events", ingest.EventTable(str(folder / "table"))
    ingest.ingest_batch(spark, sources.FolderSource(str(lines)), table)
    # the size of an address is not known, so it may be large
    for events in (Path(table.events_path).as_uri(), str(lines)):
        settings = job.Settings(events=events, out=folder / "out", as_of_ms=2**42)
        job.run(settings, lambda _: None)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main(argv: Sequence[str]) -> int:
    """Make the archive, unless it is there."""
    if argv:
        _load_classes(Path(argv[0]))
        return 0
    archive = archive_path()
    if archive is None:
        sys.stderr.write("there is no java on PATH, and no JAVA_HOME\n")
        return 2
    # what was begun is taken away also if this is told to end
    signal.signal(signal.SIGTERM, _end)
    if not archive.is_file():
        try:
            make_archive(archive)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(error.output.decode(errors="replace"))
            return 2
    sys.stdout.write(f"{archive}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
