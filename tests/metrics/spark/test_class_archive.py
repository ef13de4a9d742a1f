"""The classes that one JVM leaves for the next."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrics.spark.class_archive import archive_path, java_options

PATIENCE = 600.0
"""Seconds for a process to begin, or to end: beyond, it hangs."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("java")
def test_without_an_archive_nothing_is_asked_of_the_jvm(cache: Path) -> None:
    assert java_options() == ""
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("java")
def test_an_archive_is_used_as_soon_as_it_is_there(cache: Path) -> None:
    archive = archive_path()
    assert archive is not None
    assert archive.is_relative_to(cache)
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in java_options()


def test_another_java_has_another_archive(
    cache: Path,  # noqa: ARG001 - not the user's
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JVM refuses what another one left; it would never be made anew."""
    found = []
    for name in ("one", "other"):
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
        found.append(archive_path())
    assert found[0] != found[1]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert archive_path() is None


STAND_IN = """#!/bin/sh
half=${JDK_JAVA_OPTIONS#*ArchiveClassesAtExit=}
exec 3> "${half%%\\"*}"
exec sleep 600
"""
"""A Java that has begun to write its classes, and takes its time."""


def test_who_is_told_to_end_leaves_no_half_archive(
    cache: Path,  # noqa: ARG001 - not the user's
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does one stay of an earlier time, when nobody could remove it any more."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(STAND_IN)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    archive = archive_path()
    assert archive is not None
    archive.parent.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE)
    archive.with_name(f".{archive.name}.{gone.pid}").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "metrics.spark.class_archive"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    half = archive.with_name(f".{archive.name}.{process.pid}")
    deadline = time.monotonic() + PATIENCE
    while not half.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert half.exists()
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(archive.parent.iterdir()) == []


SHARED = """
from metrics.spark.session import make_session
spark = make_session(master="local[1]", input_bytes=0)
runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print([each for each in runtime.getInputArguments() if "SharedArchive" in each])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_what_a_report_leaves_a_session_maps(cache: Path) -> None:
    """The JVM itself is asked whether it maps the file: `-Xshare:on` is fatal if it cannot."""
    made = subprocess.run(
        [sys.executable, "-m", "metrics.spark.class_archive"],
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert made.returncode == 0, made.stderr
    archive = Path(made.stdout.strip())
    assert archive.is_relative_to(cache)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=600, check=True
    )
    assert str(archive) in done.stdout
