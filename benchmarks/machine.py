"""Machine on which the figures were measured."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.programs import HERE


def describe(*, pinned: bool) -> dict[str, str]:
    """Return the machine's properties, and the versions of the programs."""
    return {
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} usable",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": importlib.metadata.version("uvloop"),
        "haproxy": _first_line("haproxy", "-v", pattern=r"version (\S+)"),
        "java": _first_line("java", "-version", pattern=r'version "(\S+)"'),
        "commit": _first_line("git", "describe", "--always", "--dirty", pattern=r"(.+)"),
        "compiler": _first_line("cc", "--version", pattern=r"(.+)"),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "pinned": "yes" if pinned else "no",
    }


def split_cpus() -> tuple[set[int], set[int]]:
    """Return the CPUs of generator and broker, and that of measured programs: the last one."""
    *others, last = sorted(os.sched_getaffinity(0))
    return set(others) or {last}, {last}


def _cpu_model() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor() or "unknown CPU"


def _first_line(program: str, *options: str, pattern: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if path is None:
        return "not installed"
    command = [path, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=HERE)
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"
