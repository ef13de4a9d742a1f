"""Fixtures of the tests of the proxy's parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store.sqlite.mirror import SqliteMirror
from tests.support.tls import AUTHORITY
from tests.support.tls import FIRST as SERVER


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "server.pem").write_bytes(SERVER.pem)
    AUTHORITY.write(tmp_path)
    return tmp_path


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[SqliteMirror]:
    """A file that shows what brokers keep, `state.db`, at a start of the proxy."""
    opened = SqliteMirror(tmp_path / "state.db")
    opened.begin()
    yield opened
    opened.close()
