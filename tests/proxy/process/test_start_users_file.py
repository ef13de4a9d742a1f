"""A start with `store.users.file`: a bad one ends it, a good one is followed."""

import json
from pathlib import Path

import pytest

from proxy.store import open_store
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually
from tests.support.store import SHA_256, content, of, put, verifier


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


@pytest.mark.parametrize("found", [None, "alice: secret"])
def test_a_start_with_a_bad_file_ends(tmp_path: Path, file: Path, found: str | None) -> None:
    if found is not None:
        put(file, found)
    proxy = Serving(tmp_path, workers=1)
    proxy.settings["store"]["users.file"] = "users.json"
    proxy.write()
    proxy.launch()
    try:
        assert proxy.process.wait(PATIENCE_SECONDS) == 2
        (line,) = proxy.log().splitlines()
        assert str(file) in line
    finally:
        proxy.stop()


def test_all_workers_follow_the_file(tmp_path: Path, file: Path) -> None:
    """And report why they are not ready while it is broken."""
    put(file, content(alice=of(SHA_256)))
    proxy = Serving(tmp_path, workers=2)
    proxy.settings["store"]["users.file"] = str(file)
    proxy.write()

    def reported() -> list[bool]:
        _, body = proxy.get("/readyz")
        workers = json.loads(body)["workers"]
        return [any(str(file) in reason for reason in one["reasons"]) for one in workers]

    try:
        assert "accepting" in proxy.start()
        eventually(lambda: reported() == [False, False], "nothing is wrong with it")
        put(file, "half a fi")
        eventually(lambda: reported() == [True, True], "both workers say so")
        put(file, content(alice=of(SHA_256)))
        eventually(lambda: reported() == [False, False], "both workers have it again")
        assert "do not count" not in proxy.log()
    finally:
        proxy.stop()


def test_users_of_the_store_that_do_not_count_are_told_of(tmp_path: Path, file: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    store.alter_credentials(upsert={("alice", SHA_256): verifier()})
    store.close()
    put(file, content())
    proxy = Serving(tmp_path, workers=1)
    proxy.settings["store"]["users.file"] = str(file)
    proxy.write()
    try:
        assert "accepting" in proxy.start()
        url = proxy.settings["store"]["url"]
        assert f"store.users.file is set: SCRAM users of {url} do not count" in proxy.log()
    finally:
        proxy.stop()
