"""Smallest root directory for programs of Debian: the named files, and the libraries they load.

    python3 image_root.py --into DIR PATH...

Runs in a build stage of deploy/Dockerfile, on Debian's Python alone. Each PATH is copied: a file, a
directory with its content, or a link with its target; then each shared library that the dynamic
loader would load for them. Debugging symbols of wheels are removed, as Debian removes its own.
Python's modules are compiled ahead of the start, to the same bytes each time.
DIR/var/lib/dpkg/status.d lists the packages of these files, where image scanners look for them;
DIR/usr/share/doc has their licences.
"""

# ruff: noqa: S603, S607 - runs programs of the stage that it runs in

import argparse
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

_MERGED = ("bin", "lib", "lib64", "sbin")
_MODES = {"dev": 0o755, "proc": 0o755, "run": 0o755, "sys": 0o755, "tmp": 0o1777}
"""What a container engine mounts something on."""
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_STDLIB = (
    *("config-*", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter"),
    *("turtle*", "lib-dynload/audioop*"),
    *("lib-dynload/_curses*", "lib-dynload/_dbm*", "lib-dynload/nis*", "lib-dynload/ossaudio*"),
    *("lib-dynload/readline*", "lib-dynload/_*test*", "lib-dynload/_xx*", "lib-dynload/xx*"),
)
"""Parts of Python for development, screens and old databases, with libraries of their own."""
_LEFT_OUT = (
    *(f"/usr/lib/python3.*/{part}" for part in _STDLIB),
    "*/__pycache__",  # compiled again
    *("*.a", "*.c", "*.h", "*.pxd", "*.pyi", "*.pyx"),  # sources of compiled modules, and types
    *("/opt/*/bin/*ctivate*", "/opt/*/include"),
    *("/usr/share/zoneinfo/posix", "/usr/share/zoneinfo/right"),  # the same zones again
)


class Root:
    """A root directory that is being filled."""

    def __init__(self, into: Path) -> None:
        self._into = into
        self.copied: set[Path] = set()
        """Every path that was copied, as it is in this stage, by way of no linked directory."""
        for name, mode in _MODES.items():
            (into / name).mkdir(parents=True)
            (into / name).chmod(mode)
        for name in _MERGED:
            if Path("/", name).is_symlink():
                (into / "usr" / name).mkdir(parents=True)
                (into / name).symlink_to(f"usr/{name}")

    def add(self, path: Path) -> None:
        """Copy a file, a directory or a link, and what these need."""
        path = path.parent.resolve(strict=True) / path.name
        if path in self.copied or any(fnmatchcase(str(path), one) for one in _LEFT_OUT):
            return
        self.copied.add(path)
        target = self._into / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            self.add(path.parent / path.readlink())
        elif path.is_dir():
            target.mkdir(exist_ok=True)
            for one in sorted(path.iterdir()):
                self.add(one)
        else:
            shutil.copy2(path, target)
            if is_binary(path):
                if not path.is_relative_to("/usr"):
                    subprocess.run(["strip", "--strip-debug", target], check=True)
                for library in libraries(path):
                    self.add(library)

    def describe(self) -> None:
        """List the packages that the files come from, each with its licence."""
        status = self._into / "var/lib/dpkg/status.d"
        status.mkdir(parents=True)
        for listing in sorted(Path("/var/lib/dpkg/info").glob("*.list")):
            if self._has_any(listing.read_text().splitlines()):
                command = ["dpkg-query", "--status", listing.stem]
                name = listing.stem.partition(":")[0]
                (status / name).write_bytes(subprocess.check_output(command))
                documents = self._into / "usr/share/doc" / name
                documents.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path("/usr/share/doc", name, "copyright"), documents)

    def _has_any(self, listed: list[str]) -> bool:
        merged = rf"^/(?={'|'.join(f'{name}/' for name in _MERGED)})"
        paths = {Path(re.sub(merged, "/usr/", path)) for path in listed}
        return any(not path.is_dir() for path in paths & self.copied)

    def compile(self) -> None:
        """Compile Python's modules: the same sources give the same bytes."""
        if any(path.suffix == ".py" for path in self.copied):
            options = ["-q", "-s", self._into, "-p", "/", "--invalidation-mode", "unchecked-hash"]
            subprocess.run(
                [sys.executable, "-m", "compileall", *options, self._into],
                env=os.environ | {"PYTHONHASHSEED": "0"},
                check=True,
            )


def is_binary(path: Path) -> bool:
    """Whether a file is a program or a library of ELF."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries(path: Path) -> list[Path]:
    """Name the shared libraries that the dynamic loader loads for a file, itself among them."""
    loaded = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    if missing := _MISSING.findall(loaded):
        raise SystemExit(f"{path} needs {', '.join(missing)}: install the package that has it")
    return [Path(name) for name in _LIBRARY.findall(loaded)]


def main() -> None:
    """Fill the directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, help="created by this program")
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    arguments = parser.parse_args()
    root = Root(arguments.into)
    for path in arguments.paths:
        root.add(path)
    root.describe()
    root.compile()


if __name__ == "__main__":
    main()
