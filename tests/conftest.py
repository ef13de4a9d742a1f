"""Settings of all tests."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

# How fast the machine is, is no property of ours.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

SPARK = "tests/metrics/spark/"
"""Its files share a JVM, which is slow to start."""


class SharedStarts(LoadFileScheduling):
    """Runs each file's tests in one process, and all tests with Spark in one, so it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return the scheduler; None for other values of `--dist`."""
    return SharedStarts(config, log) if config.getoption("dist") == "loadfile" else None
