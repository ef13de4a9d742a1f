"""What judges manifests."""

import importlib
from types import ModuleType

import pytest

from tests.support.deploy import missing


@pytest.fixture(scope="module")
def kubernetes() -> ModuleType:
    """The API's schemas, strict: an unknown field is an error."""
    try:
        return importlib.import_module("kubernetes_validate")
    except ImportError:
        missing("no schemas here: pip install kubernetes-validate")
        raise
