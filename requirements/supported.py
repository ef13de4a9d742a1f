"""Whether this machine and its Python are supported: asked before anything is installed.

    python requirements/supported.py

Prints nothing if they are, and else one sentence that says what to do; exit status 1. Runs on every
Python since 3.6, so that one that is too old can say so.
"""

import platform
import sys

OLDEST, NEWEST = (3, 11), (3, 15)
MACHINES = ("x86_64", "aarch64")


def problem(
    system: str, machine: str, implementation: str, version: "tuple[int, int]"
) -> "str | None":
    """Return why it is not supported, and what to do; None: it is."""
    if system != "Linux" or machine not in MACHINES:
        return (
            f"{system} on {machine} is not supported: use a container or a virtual machine"
            " with Linux on x86-64 or arm64 (docs/support.md)"
        )
    if implementation != "CPython" or not OLDEST <= version <= NEWEST:
        return (
            f"{implementation} {version[0]}.{version[1]} is not supported: name a CPython"
            f" from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]},"
            " as in make PYTHON=python3.13 demo"
        )
    return None


if __name__ == "__main__":
    sys.exit(
        problem(
            platform.system(),
            platform.machine(),
            platform.python_implementation(),
            sys.version_info[:2],
        )
    )
