"""Programs of client libraries that the environment of the tests cannot have: fetched once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.kafka.go import missing
from tests.support.kafka.java import cache_directory

_HERE = Path(__file__).parent
_FETCH_SECONDS = 300


def kafkajs() -> list[str]:
    """Return the command of kafkajs's program; skip without it, but fail in CI."""
    npm = ("npm", "install", "--silent", "--no-package-lock", "--ignore-scripts", "--prefix")
    directory = _fetched("kafkajs@2.2.4", npm)
    return ["env", f"NODE_PATH={directory}/node_modules", "node", str(_HERE / "node/sessions.js")]


def python(library: str, version: str) -> list[str]:
    """Return the same of a library of Python: the program is `sessions`."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    directory = _fetched(f"{library}=={version}", (*pip, "--target"))
    path = f"PYTHONPATH={directory}:{_HERE.parents[2]}"
    return ["env", path, sys.executable, "-m", "tests.support.kafka.sessions", library]


def _fetched(package: str, command: Sequence[str]) -> Path:
    target = cache_directory() / "packages" / f"{package}-{sys.implementation.cache_tag}"
    if not target.exists():
        if shutil.which(command[0]) is None:
            missing(f"no {command[0]} (Debian: apt install {command[0]})")
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.mkdir(parents=True)
        done = subprocess.run(
            [*command, str(part), package], capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
        if done.returncode != 0:
            missing(f"{package} cannot be fetched: {done.stderr}")
        part.rename(target)
    return target
