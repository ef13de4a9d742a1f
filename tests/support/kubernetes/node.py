"""Namespaces of a cluster's only node, which remove everything that it started.

Processes (PID), mounts, the network and the host's name are its own. The first process of the PID
namespace dies with the test run, however that ends, and the kernel ends all others with it. What
the programs write to /run and /var is in memory, and goes with the mounts; the kernel's settings
that a kubelet writes are files put in their place.
"""

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ADDRESS: Final = "192.168.77.1"
"""The node's address in a separate network."""
NAME: Final = "node"
NEIGHBOUR: Final = "192.168.77.2"
"""Address of another machine in the same network."""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_CGROUP: Final = "reauth-cluster-"
_CLONE_NEWNET: Final = 0x40000000
_DEADLINE_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0

# What a kubelet sets (cmd/kubelet: protectKernelDefaults), as it wants to find it.
_SYSCTLS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_NAMESPACES: Final = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--net", "--uts", "--pid", "--mount-proc", "--propagation", "private"),
    *("--fork", "--kill-child"),
)
_SET_UP: Final = """
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/overlay/var /run/overlay/work
mount -t overlay -o lowerdir=/var,upperdir=/run/overlay/var,workdir=/run/overlay/work overlay /var
for file in $(cd "$1/sysctl" && find * -type f); do
    mount --bind "$1/sysctl/$file" "/proc/sys/$file"
done
hostname "$3"
ip link set lo up
ip link add node0 type bridge
ip address add "$2/24" dev node0
ip link set node0 up
ip route add default dev node0
echo 1 > /proc/sys/net/ipv4/ip_forward
echo ready
trap '' CHLD # the kernel then reaps what is left to the first process
exec sleep infinity
"""

_NEIGHBOUR: Final = """
set -e
echo there
read -r address router
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$router"
echo ready
exec sleep infinity
"""


def missing() -> str | None:
    """Why this machine cannot run a node; None if it can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    tools = ("ip", "iptables", "nft", "nsenter", "setpriv", "unshare", "dpkg", "apt-get", "go")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    if not _hierarchies():
        return f"needs control groups below {_CGROUPS}"
    return None


class Node:
    """The namespaces, the programs started in them, and their logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pid = 0
        self._machine = -1
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def cgroup(self) -> str:
        """Control group of all pods."""
        return f"/{_CGROUP}{self._pid}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Create the namespaces, and remove everything in them at the end."""
        _remove_left_over()
        (self.directory / "log").mkdir()
        for name, value in _SYSCTLS.items():
            file = self.directory / "sysctl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        anchor = subprocess.Popen(
            [*_NAMESPACES, "/bin/sh", "-ec", _SET_UP, "sh", str(self.directory), ADDRESS, NAME],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert anchor.stdout is not None
        with anchor.stdout:
            try:
                assert anchor.stdout.readline() == b"ready\n", "the namespaces could not be set up"
                children = Path(f"/proc/{anchor.pid}/task/{anchor.pid}/children").read_text()
                self._pid = int(children)
                for hierarchy in _hierarchies():
                    _make_cgroup(hierarchy, self.cgroup)
                yield
            finally:
                self._end(anchor)

    def _end(self, anchor: subprocess.Popen[bytes]) -> None:
        anchor.kill()
        anchor.wait(_END_SECONDS)
        for _, process in self._started:
            process.wait(_END_SECONDS)
        for hierarchy in _hierarchies():
            _remove(Path(f"{hierarchy}{self.cgroup}"))

    def start(self, name: str, command: Sequence[str | Path], **environment: str) -> None:
        """Start a program on the node; its output goes to the log directory."""
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                [*self._inside, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        self._started.append((name, process))

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a program on the node, which must succeed."""
        done = subprocess.run(
            [*self._inside, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def check(self) -> None:
        """Fail with the end of its log if a program has ended."""
        for name, process in self._started:
            if process.poll() is not None:
                tail = self._log(name).read_text(errors="replace")[-4000:]
                raise AssertionError(f"{name} ended with {process.returncode}\n{tail}")

    def _log(self, name: str) -> Path:
        return self.directory / "log" / f"{name}.log"

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._pid}", "--mount", "--net", "--uts", "--pid", "--"]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread and its children into the node's network."""
        with Path("/proc/self/ns/net").open("rb") as own:
            self._machine = own.fileno()
            self._enter()
            try:
                yield
            finally:
                _set_namespace(self._machine)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Move this thread back to the machine's network for a while."""
        _set_namespace(self._machine)
        try:
            yield
        finally:
            self._enter()

    def _enter(self) -> None:
        _set_network(Path(f"/proc/{self._pid}/ns/net"))

    @contextmanager
    def neighbour(self) -> Iterator[None]:
        """Move this thread from the node to another machine that uses the node as router."""
        machine = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", _NEIGHBOUR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert machine.stdin is not None
        assert machine.stdout is not None
        with machine.stdin, machine.stdout:
            try:
                assert machine.stdout.readline() == b"there\n", "no network of its own"
                pid = str(machine.pid)
                # A unique name: the network lives as long as a thread in it.
                cable = ("link", "add", f"beside{pid}", "master", "node0", "up", "type", "veth")
                peer = ("peer", "name", "eth0", "netns", pid)
                subprocess.run(["ip", *cable, *peer], check=True)
                machine.stdin.write(f"{NEIGHBOUR} {ADDRESS}\n".encode())
                machine.stdin.flush()
                assert machine.stdout.readline() == b"ready\n", "the network could not be set up"
                with Path("/proc/thread-self/ns/net").open("rb") as own:
                    _set_network(Path(f"/proc/{machine.pid}/ns/net"))
                    try:
                        yield
                    finally:
                        _set_namespace(own.fileno())
            finally:
                machine.kill()
                machine.wait(_END_SECONDS)


def _set_network(path: Path) -> None:
    with path.open("rb") as handle:
        _set_namespace(handle.fileno())


def _set_namespace(handle: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)  # os.setns is Python 3.12's
    assert library.setns(handle, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def _hierarchies() -> list[Path]:
    """Control group hierarchies: one per controller in version 1, a single one in version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    found = [path for path in _CGROUPS.glob("*") if (path / "cgroup.procs").exists()]
    return [path for path in found if not path.is_symlink()]


def _make_cgroup(hierarchy: Path, name: str) -> None:
    group = Path(f"{hierarchy}{name}")
    group.mkdir()
    if hierarchy.name == "cpuset":  # a group needs processors before programs can run in it
        for file in ("cpuset.cpus", "cpuset.mems"):
            (group / file).write_text((hierarchy / file).read_text())


def _remove_left_over() -> None:
    """Remove groups of killed runs."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(f"{_CGROUP}*"):
            if not Path(f"/proc/{group.name.removeprefix(_CGROUP)}").exists():
                _remove(group)


def _remove(group: Path) -> None:
    """Remove a group once its last process has ended."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    for path in sorted((one for one in group.rglob("*") if one.is_dir()), reverse=True):
        _rmdir(path, deadline)
    _rmdir(group, deadline)


def _rmdir(group: Path, deadline: float) -> None:
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)
                continue
        return
