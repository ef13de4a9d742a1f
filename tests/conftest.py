"""Settings of all tests."""

import asyncio
import gc
import inspect
import sys
from functools import cache
from typing import Any

import pytest
import typer.testing
import uvloop
from hypothesis import HealthCheck, settings
from typer.main import get_command
from xdist.scheduler import LoadFileScheduling

from proxy import cli

# How fast the machine is, is no property of ours.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Building all commands takes longer than running most of them, and they keep nothing of a run.
_built = cache(get_command)
typer.testing._get_command = _built  # type: ignore[attr-defined]
cli.get_command = _built  # type: ignore[attr-defined]

gc.disable()  # until all tests are collected: their objects stay

DEADLINE_SECONDS = 600.0
"""For a coroutine that hangs; what tests wait for has less."""
SPARK = "tests/metrics/spark/"
"""Its files share a JVM, which is slow to start."""
LONGEST = ("tests/test_compiled.py", SPARK)
"""They run in one process each for minutes, so they start first; else the others wait for them."""

if sys.version_info >= (3, 15):  # confluent-kafka has no wheel for it
    collect_ignore = [
        "docs",
        "test_docs.py",
        "proxy/cli/test_report_options.py",
        "proxy/delivery",
        "proxy/demo",
        *(f"proxy/process/test_{it}.py" for it in ("start_delivery", "take_over")),
    ]


class SharedStarts(LoadFileScheduling):
    """Runs each file's tests in one process, and all tests with Spark in one, so it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but look at nothing that belongs to the collected tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return the scheduler; None for other values of `--dist`."""
    return SharedStarts(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, on a loop like the proxy's."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})

    async def bounded() -> None:
        await asyncio.wait_for(coroutine, DEADLINE_SECONDS)

    uvloop.run(bounded())
    return True
