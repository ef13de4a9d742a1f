"""Spark's classes as the JVM keeps them, in a file that it maps: starting takes half as long then.

    python -m metrics.spark.class_archive

makes the report of a few events and has the JVM leave the classes that it loaded (JEP 350) in the
user's cache directory, some 200 MB; once for each Spark and Java. Every later report finds them.
Nothing else depends on the file: whoever deletes it waits some seconds longer.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TIMEOUT_SECONDS = 900.0
"""A report of a few events, and the JVM writing what it has loaded, on a busy machine."""

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
    """Run a report in a process of its own, whose JVM leaves its classes in the file.

    Raises OSError, or CalledProcessError with what the process said.
    """
    from metrics.spark.generate import Size, generate

    archive.parent.mkdir(parents=True, exist_ok=True)
    # a JVM that maps half an archive dies of it: a name is given to a whole one only
    half = archive.with_name(f".{archive.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="class-archive-") as directory:
        folder = Path(directory)
        events = folder / "events"
        size = Size(connections=20, principals=4, clients=10, days=0.1, seed=1)
        generate(size, events, parquet=False)
        # the size of an address is not known, so all of Spark is used, as for a large input
        options = ("--master", "local[2]", "--events", events.as_uri(), "--out", folder / "out")
        leave = f'"-XX:ArchiveClassesAtExit={half}" {_QUIET}'
        try:
            subprocess.run(  # noqa: S603 - this very program
                [sys.executable, "-m", "metrics.spark.job", *options],
                env=os.environ | {"JDK_JAVA_OPTIONS": leave},
                # the JVM ends after the process that started it, and holds this until it does
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=TIMEOUT_SECONDS,
            )
            with half.open("rb") as file:
                os.fsync(file.fileno())
            half.replace(archive)
        finally:
            half.unlink(missing_ok=True)


def main() -> int:
    """Make the archive, unless it is there."""
    archive = archive_path()
    if archive is None:
        sys.stderr.write("there is no java on PATH, and no JAVA_HOME\n")
        return 2
    if not archive.is_file():
        try:
            make_archive(archive)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(error.output.decode(errors="replace"))
            return 2
    sys.stdout.write(f"{archive}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
