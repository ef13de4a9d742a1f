"""Programs under measurement: compilation, start and end, CPU time and memory."""

import os
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
START_DEADLINE_SECONDS = 60.0
STOP_DEADLINE_SECONDS = 10.0

_COMPILED: Mapping[str, Sequence[str]] = {"fake_broker": (), "load": ("-lssl", "-lcrypto")}
_COMPILE_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")


class Unavailable(Exception):
    """A program is not installed; the text names it, and how to install it."""


class MeasurementFailed(Exception):
    """A program ended, refused or stalled during the measurement, which has no result."""


def compile_all(directory: Path) -> dict[str, Path]:
    """Compile the C programs into `directory`; return their paths by name."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler (Debian: apt install gcc libc6-dev)")
    programs = {}
    for name, libraries in _COMPILED.items():
        programs[name] = directory / name
        files = ["-o", str(programs[name]), str(HERE / f"{name}.c")]
        command = [compiler, *_COMPILE_FLAGS, *files, *libraries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if "openssl/" in done.stderr and "No such file" in done.stderr:
            raise Unavailable("OpenSSL's headers are missing (Debian: apt install libssl-dev)")
        if done.returncode != 0:
            raise MeasurementFailed(f"{name}.c does not compile:\n{done.stderr}")
    return programs


@dataclass(frozen=True, slots=True)
class Address:
    """Address on which a program listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse HOST:PORT."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


def free_address() -> Address:
    """Return a loopback address that is unused at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


@contextmanager
def on_cpus(cpus: set[int] | None) -> Iterator[None]:
    """Pin programs that are started in the block to these CPUs; None: do not pin."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    address: Address,
    cpus: set[int] | None = None,
    ca: Path | None = None,
    directory: Path = HERE.parent,
    group: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in `directory` until the block ends, which begins when it answers on `address`.

    `ca` is the authority of its certificate; None: it is without TLS. `group` is the file
    `cgroup.procs` of a control group for it; None: it is in this program's.
    """
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
    with log.open("wb") as output, on_cpus(cpus):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        _wait_until_answering(process, address, ca, log)
        yield process
    finally:
        _stop(process)


def _wait_until_answering(
    process: subprocess.Popen[bytes], address: Address, ca: Path | None, log: Path
) -> None:
    deadline = time.monotonic() + START_DEADLINE_SECONDS
    while True:
        if process.poll() is not None:
            what = f"ended with status {process.returncode}"
        elif time.monotonic() > deadline:
            what = f"did not answer on {address} within {START_DEADLINE_SECONDS:.0f} s"
        elif answers(address, ca):
            return
        else:
            time.sleep(0.05)
            continue
        tail = log.read_text(errors="replace")[-2000:]
        raise MeasurementFailed(f"{process.args!r} {what}:\n{tail}")


def answers(address: Address, ca: Path | None) -> bool:
    """Return whether ApiVersions v0 is answered: a port may be open before requests are read."""
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # size, key, version, correlation id, no name
    try:
        with _connected(address, ca) as connection:
            connection.sendall(request)
            return bool(connection.recv(4))
    except OSError:
        return False


def _connected(address: Address, ca: Path | None) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=1)
    if ca is None:
        return connection
    context = ssl.create_default_context(cafile=ca)
    return context.wrap_socket(connection, server_hostname=address.host)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in reversed(process_tree(process.pid)):
            os.kill(pid, 9)
        process.wait()


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended just now
                found += [int(child) for child in children.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process tree so far, of all threads, including ended ones.

    The kernel's CPU-time clock of a process has nanoseconds; the same time in /proc/PID/stat is
    rounded to 10 ms. The number of the clock is computed as clock_getcpuclockid(3) does on Linux:
    the complement of the pid above the three bits of CPUCLOCK_SCHED.
    """
    try:
        return sum(time.clock_gettime((~one << 3) | 2) for one in process_tree(pid))
    except OSError:
        raise MeasurementFailed(f"a process of {pid}'s tree ended while it was measured") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process."""

    pid: int
    pss_kib: int
    """The process's own pages and its share of shared ones, which add up over a tree."""
    rss_kib: int
    """All pages in memory that the process has mapped, shared ones in full."""


def memory(pid: int) -> list[ProcessMemory]:
    """Return the memory of every process of a tree, parents first."""
    return [_memory_of(one) for one in process_tree(pid)]


def memory_alone_kib(pid: int) -> int:
    """Return the memory of a process tree on a machine where no other program maps its files.

    Anonymous memory counts by the share of each process, and the resident pages of a file once.
    """
    anonymous = 0
    files: dict[tuple[str, str], int] = {}
    for one in process_tree(pid):
        anonymous += anonymous_kib(one)
        for (name, offset), resident in _mapped_files(one):
            files[name, offset] = max(resident, files.get((name, offset), 0))
    return anonymous + sum(files.values())


def anonymous_kib(pid: int) -> int:
    """Return the memory of a process that is of no file: its own pages, its share of others."""
    return _fields(Path(f"/proc/{pid}/smaps_rollup"))["Pss_Anon:"]


def _mapped_files(pid: int) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield each mapping of a file, by name and offset, with the KiB of its pages in memory."""
    mapping, resident = ("", ""), 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            is_file = len(rest) == 5 and rest[4].startswith("/")
            mapping = (rest[4], rest[1]) if is_file else ("", "")
        elif first == "Rss:":
            resident = int(rest[0])
        elif first == "Anonymous:" and mapping[0]:
            yield mapping, resident - int(rest[0])


def _fields(path: Path) -> dict[str, int]:
    _, *lines = path.read_text().splitlines()
    return {name: int(value) for name, value, *_ in map(str.split, lines)}


def _memory_of(pid: int) -> ProcessMemory:
    fields = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return ProcessMemory(pid=pid, pss_kib=fields["Pss:"], rss_kib=fields["Rss:"])
