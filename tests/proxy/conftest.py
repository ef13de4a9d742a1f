"""Fixtures of the tests of the proxy's parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store import Store, open_store
from proxy.store.sqlite.mirror import SqliteMirror
from tests.support.tls import AUTHORITY, FIRST


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is."""
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """A store in that file."""
    opened = open_store(f"sqlite:{path}")
    yield opened
    opened.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a server's certificate, and of the authority that issued it."""
    (tmp_path / "server.pem").write_bytes(FIRST.pem)
    AUTHORITY.write(tmp_path)
    return tmp_path


@pytest.fixture
def mirror(path: Path) -> Iterator[SqliteMirror]:
    """A file that shows what brokers keep, at a start of the proxy."""
    opened = SqliteMirror(path)
    opened.begin()
    yield opened
    opened.close()
