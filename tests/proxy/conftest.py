"""Fixtures of the tests of the proxy's parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store.sqlite.mirror import SqliteMirror


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[SqliteMirror]:
    """A file that shows what brokers keep, `state.db`, at a start of the proxy."""
    opened = SqliteMirror(tmp_path / "state.db")
    opened.begin()
    yield opened
    opened.close()
