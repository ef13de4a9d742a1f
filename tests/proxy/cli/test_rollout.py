"""`reauth-proxy rollout` on the store of a proxy."""

import json
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from proxy.rollout import ClientKind, Evidence, Record, Rollout, Rules
from proxy.store import open_store
from tests.support import proxy_process
from tests.support.settings import mapping

DAY = 86_400_000


def run(config: Path, *arguments: str) -> Result:
    return proxy_process.run("rollout", *arguments, "--config", config)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "proxy.yaml"
    file.write_text(json.dumps(mapping(auto={"lifetimes.ms": [3_600_000, 900_000]})))
    now = round(time.time() * 1000)
    state = Rollout(Rules())
    kind = ClientKind("app-*", "librdkafka", "2.3")
    state.note("User:ready", kind, Evidence(now, (0, ""), 0, (now - DAY, now - 1, now)))
    state.note("User:new\n", kind, Evidence(now, (0, ""), 1_000_000))
    state.records["User:on"] = Record()
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as store:
        store.begin()
        store.change_rollout(0, lambda _rows: dict(state.rows(state.records)))
    return file


def stages(config: Path) -> dict[str, str]:
    done = run(config, "status", "--output", "json")
    return {one["principal"]: one["stage"] for one in json.loads(done.stdout)}


def test_status_lists_stages_and_what_is_missing(config: Path) -> None:
    table = run(config, "status").stdout
    assert "User:new\\n  undecided  1" in table
    assert "it has not re-authenticated yet; 900000 ms would disconnect 1" in table
    assert table.endswith("2 undecided, 1 ready\n")
    done = run(config, "status", "--output", "json")
    found = {one["principal"]: one for one in json.loads(done.stdout)}
    assert found["User:ready"]["clients"][0]["stage"] == "ready"
    assert found["User:ready"]["clients"][0]["client_id"] == "app-*"
    assert found["User:new\n"]["would_be_killed"] == {"3600000": 0, "900000": 1}


def test_an_operator_promotes_and_demotes(config: Path) -> None:
    assert run(config, "promote", "new", "--reason", "tested").stdout == "User:new is enforced\n"
    assert run(config, "demote", "ready").stdout == "User:ready is probed\n"
    assert stages(config) == {
        "User:new\n": "undecided",
        "User:new": "enforced",
        "User:on": "undecided",
        "User:ready": "demoted",
    }
    assert run(config, "demote", "new").exit_code == 0
    assert run(config, "promote", "ready").exit_code == 0
    assert stages(config)["User:new"] == "demoted"
    assert stages(config)["User:ready"] == "enforced"


def test_an_operator_pauses_and_resumes(config: Path) -> None:
    assert run(config, "pause", "--reason", "month end").stdout == "nothing is promoted\n"
    assert run(config, "status").stdout.endswith(": month end\n")
    assert run(config, "pause", "--off").stdout == "principals are promoted again\n"
    assert "paused" not in run(config, "status").stdout
