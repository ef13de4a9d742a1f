"""Short-lived children: their results, their errors, and their end."""

import os
from typing import NoReturn

import pytest

from proxy.errors import ConfigError, ProxyError
from proxy.scheduling.short_lived import ShortLived


def test_the_work_is_done_by_another_process() -> None:
    child = ShortLived(os.getpid)
    assert child.result() != os.getpid()
    with pytest.raises(ChildProcessError):
        os.waitpid(child._pid, os.WNOHANG)


def test_a_refusal_is_raised_by_the_parent_as_it_was_in_the_child() -> None:
    def refuse() -> NoReturn:
        raise ConfigError("listeners[0].address", "is required")

    with pytest.raises(ConfigError) as refusal:
        ShortLived(refuse).result()
    assert (refusal.value.path, refusal.value.problem) == ("listeners[0].address", "is required")


def test_a_child_that_dies_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def die() -> NoReturn:
        raise ZeroDivisionError

    with pytest.raises(ProxyError, match="failed"):
        ShortLived(die).result()
    assert "ZeroDivisionError" in capfd.readouterr().err
