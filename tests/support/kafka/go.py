"""Go programs of `tests/support/kafka/go/`: compiled once, run with a deadline."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.kafka.java import cache_directory

_SOURCES = Path(__file__).parent / "go"
_BUILD_SECONDS = 900


def program(name: str) -> Path:
    """Compile `go/NAME`; skip without Go or its modules, but fail in CI."""
    files = [_SOURCES / "go.mod", _SOURCES / "go.sum", _SOURCES / name / "main.go"]
    files += sorted((_SOURCES / "sessions").iterdir())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    target = cache_directory() / "go" / f"{name}-{digest}"
    if not target.exists():
        if shutil.which("go") is None:
            missing("no Go (Debian: apt install golang)")
        done = subprocess.run(
            ["go", "build", "-o", str(target), f"./{name}"],
            cwd=_SOURCES,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
        )
        if done.returncode != 0:
            missing(f"{name} cannot be built: {done.stderr}")
    return target


def run(name: str, arguments: Sequence[str], *, timeout_seconds: float = 300) -> str:
    """Run a program; return its output."""
    command = [str(program(name)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds)
    assert done.returncode == 0, done
    return done.stdout


def missing(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
