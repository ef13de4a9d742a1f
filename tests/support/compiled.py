"""The project as in the image: a copy of its tree with a compiled data path."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
COMPILE_SECONDS = 900
_BESIDE = ("tests", "benchmarks", "pyproject.toml")
"""Parts of the checkout that the wheel lacks."""


def lacking() -> str | None:
    """The missing tool for compiling, or None."""
    if shutil.which("cc") is None:
        return "no C compiler (Debian: apt install gcc libc6-dev)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are missing (Debian: apt install python3-dev)"
    if importlib.util.find_spec("hatch_mypyc") is None:
        return "hatch-mypyc is missing (pip install --require-hashes -r requirements/compile.lock)"
    return None


def compiled_copy(directory: Path) -> Path:
    """Copy the project into `directory`, with its packages from a compiled wheel, and return it.

    The wheel is made as for a release, of the sdist: a wheel that is compiled in a checkout leaves
    the compiled modules beside their sources. Raises RuntimeError with the compiler's output.
    """
    dist = directory / "dist"
    _build([sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", dist])
    (sdist,) = dist.glob("*.tar.gz")
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, sdist)
    _build([sys.executable, "-m", "pip", *wheel])
    (made,) = dist.glob("*.whl")
    with ZipFile(made) as archive:
        archive.extractall(directory)
    for part in _BESIDE:
        source, target = ROOT / part, directory / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return directory


def _build(command: list[str | Path]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "true"},
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
