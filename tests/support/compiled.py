"""The project as the image has it: a copy of its tree, with the data path compiled."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILE_SECONDS = 900
_PARTS = (
    *("proxy", "sasl", "metrics", "tests", "benchmarks"),
    *("pyproject.toml", "README.md", "LICENSE"),
)


def lacking() -> str | None:
    """What must be installed before anything can be compiled; None: nothing."""
    if shutil.which("cc") is None:
        return "no C compiler (Debian: apt install gcc libc6-dev)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are missing (Debian: apt install python3-dev)"
    if importlib.util.find_spec("hatch_mypyc") is None:
        return "hatch-mypyc is missing (pip install --require-hashes -r requirements/compile.lock)"
    return None


def compiled_copy(directory: Path) -> Path:
    """Copy the project into `directory`, compile there what its build compiles, and return it.

    By the wheel's own build, which leaves the compiled modules beside their sources. Raises
    RuntimeError with what the compiler said.
    """
    for part in _PARTS:
        source, target = ROOT / part, directory / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, target)
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *wheel],
        cwd=directory,
        env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "true"},
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return directory
