"""Fixtures of the tests of the parent process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxy_process import Serving


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A proxy of two workers, to be started."""
    with Serving(tmp_path, workers=2) as one:
        yield one


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Serving]:
    """A proxy of one worker, to be started."""
    with Serving(tmp_path, workers=1) as one:
        yield one
