"""Processes of a proxy that die or hang, and what the others do meanwhile."""

import os
import signal
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from proxy.process.children import describe_exit
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually

KILLED = "worker 0 was ended by SIGKILL, "


def kill_worker_0(serving: Serving) -> None:
    """Kill it as soon as it is there again, until the proxy loses patience.

    That is after five times, except on a machine so busy that each life takes five seconds.
    """
    dying, *others = serving.children()
    for times in count(1):
        os.kill(dying, signal.SIGKILL)
        eventually(partial(is_logged, serving, times), "its death is logged")
        if "died 5 times in a row" in serving.log():
            return
        eventually(lambda: len(serving.children()) > len(others), "it is there again")
        (dying,) = set(serving.children()) - set(others)


def is_logged(serving: Serving, times: int) -> bool:
    return serving.log().count(KILLED) == times


def test_processes_that_hang_are_named_and_a_worker_is_replaced(serving: Serving) -> None:
    """It logs its stack if it can: a stopped one cannot. The parent is stopped first: it would
    replace the worker while this test still asks."""

    def says(status: int, body: str) -> None:
        eventually(lambda: serving.page("/healthz") == (status, body), body)

    serving.check_often()
    serving.start()
    serving.until_up()
    says(200, "ok\n")
    hung = serving.children()[1]
    serving.process.send_signal(signal.SIGSTOP)
    says(503, "hangs: the parent\n")
    os.kill(hung, signal.SIGSTOP)
    says(503, "hangs: the parent, worker 1\n")
    serving.process.send_signal(signal.SIGCONT)
    eventually(lambda: not alive(hung), "it is ended")
    serving.until_up()
    says(200, "ok\n")
    assert "worker 1 hangs and will be killed" in serving.log()
    assert "worker 1 was ended by SIGKILL, restarting it" in serving.log()
    assert "worker 0" not in serving.log()
    assert {serving.handshake_error() for _ in range(10)} == {0}


HANGS = """
import os, signal, sys, time
from pathlib import Path
from proxy.process.children import Child, Children

def lost(heartbeat):
    heartbeat.beat()
    time.sleep(3600)

child = Child(name="it", main=lost)
signals = frozenset({signal.SIGCHLD})
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
children = Children([child], lambda: None, signals)
children.start()
first = child.pid
while not child.heartbeat.beats:
    time.sleep(0.01)
while not child.watch.is_hung:
    children.check()
while "in lost" not in Path(sys.argv[1]).read_text():
    time.sleep(0.01)
while child.pid == first:
    children.check()
    time.sleep(0.1)
    children.restart_dead()
children.stop(0, 0)
"""


def test_where_a_child_hung_is_logged(tmp_path: Path) -> None:
    """Before it is killed, by the next look."""
    log = tmp_path / "log"
    with log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", HANGS, log], stderr=stderr, timeout=PATIENCE_SECONDS
        )
    assert done.returncode == 0, log.read_text()


FAILS = """
import os, signal
from proxy.errors import ProxyError
from proxy.process.children import Child, Children

def lost(_heartbeat):
    raise ProxyError("its store is locked")

children = Children([Child(name="follower", main=lost)], lambda: None, {})
children.start()
os.wait()
"""


def test_an_error_that_ends_a_child_is_one_line() -> None:
    """A traceback is for mistakes of the proxy's own."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "follower: its store is locked\n")


def test_a_worker_that_keeps_dying_does_not_end_the_others(serving: Serving) -> None:
    serving.start()
    serving.until_up()
    other = serving.children()[1]
    kill_worker_0(serving)
    assert f"{KILLED}died 5 times in a row, restarting it in 5 s" in serving.log()
    assert alive(other)
    assert 0 in {serving.handshake_error() for _ in range(5)}
    serving.until_up()
    assert serving.process.poll() is None


def test_a_proxy_whose_only_worker_keeps_dying_ends(alone: Serving) -> None:
    """Its supervisor may know better what to do."""
    alone.start()
    kill_worker_0(alone)
    assert alone.process.wait(PATIENCE_SECONDS) == 1
    assert f"{KILLED}died 5 times in a row, giving up" in alone.log()


@pytest.mark.parametrize(
    ("exitcode", "reported"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-11, "was ended by SIGSEGV"),
        (-40, "was ended by signal 40"),
    ],
)
def test_a_death_is_told_with_its_cause(exitcode: int, reported: str) -> None:
    assert describe_exit(exitcode) == reported
