"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from proxy.store import Store
from tests.support.proxy_process import SIDECAR


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a sidecar."""
    file = tmp_path / "config.yaml"
    file.write_text("upstream: {bootstrap.servers: 'b:1'}\nlisteners:\n" + SIDECAR)
    return file


@pytest.fixture
def store_path(store: Store, path: Path) -> Path:
    """Return the path of an empty store."""
    store.close()
    return path
