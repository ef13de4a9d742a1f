"""Fixtures of the tests of the parent process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxy_process import Serving


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A proxy of two workers, to be started."""
    one = Serving(tmp_path, workers=2)
    yield one
    one.stop()
