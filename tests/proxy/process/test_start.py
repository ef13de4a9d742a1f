"""What a start loads, and so waits for; how long it takes: `python -m benchmarks.operating`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.certificates import Authority
from tests.support.processes import free_ports
from tests.support.settings import SCRAM, mapping

DEADLINE_SECONDS = 180

NOT_WAITED_FOR = {
    "pydantic": "of the child that validates",
    "yaml": "of the child that validates",
    "proxy.config.exposure": "of the child that validates",
    "importlib.metadata": "of the child that validates",
    "click": "of the command line",
    "typer": "of the command line",
    "proxy.cli": "of the command line",
    "proxy.ops.status.service": "the status page's",
    "rich": "for tables and help",
    "proxy.admin": "of other commands",
    "proxy.cli.acls": "of other commands",
    "proxy.cli.quotas": "of other commands",
    "proxy.cli.report": "of other commands",
    "proxy.cli.sessions": "of other commands",
    "proxy.cli.users": "of other commands",
    "proxy.demo": "of other commands",
    "confluent_kafka": "the demo's",
    "kafka": "the demo's",
    "pyspark": "the report's",
}

VALIDATION, WORKER, HTTP = 1, 2, 3
"""The first forks: of the child that validates the configuration, of the worker, of the HTTP
process."""

UNTIL_THE_FORK = f"""
import os, sys

sys.modules["hypothesis"] = None  # kio imports it if it is installed
real, forks = os.fork, 0

def fork():
    global forks
    forks += 1
    if forks < {WORKER}:
        return real()
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)

os.fork = fork
from proxy.__main__ import main
main()
"""

AFTER_THE_FORK = """
import os, sys

parent, forks = os.getpid(), 0

def heard(event, arguments):
    global forks
    if event == "os.fork":
        forks += 1
    elif event == "import" and forks == FORK and os.getpid() != parent:
        os.write(2, f"imports {arguments[0]}\\n".encode())

sys.addaudithook(heard)
from proxy.__main__ import main
main()
"""


def settings(directory: Path, everything: bool) -> Path:
    port, http = free_ports(2)
    upstream = {"bootstrap.servers": "127.0.0.1:9"}
    config = mapping({**SCRAM, "address": f"127.0.0.1:{port}"}, upstream)
    if everything:
        (directory / "listener.pem").write_bytes(Authority().issue().pem)
        config["listeners"][0] |= {
            "security.protocol": "SASL_SSL",
            "ssl.keystore.location": "listener.pem",
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256", "OAUTHBEARER"],
            "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:9/jwks.json",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer.test",
        }
        config |= {
            "authorizer": {"mode": "enforce"},
            "quotas": {"mode": "enforce"},
            "events": {"directory": "events"},
            "http": {"address": f"127.0.0.1:{http}"},
        }
    file = directory / "proxy.yaml"
    file.write_text(json.dumps(config))
    return file


def started(program: str, config: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--config", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(params=[False, True], ids=["the least", "everything on"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return settings(tmp_path, request.param)


def test_no_start_waits_for_what_it_does_not_need(config: Path) -> None:
    """Imports before the first fork delay the first connection."""
    with started(UNTIL_THE_FORK, config) as process:
        reported, errors = process.communicate(timeout=DEADLINE_SECONDS)
    loaded = set(reported.split())
    assert "proxy.worker.worker" in loaded, errors
    assert {name: why for name, why in NOT_WAITED_FOR.items() if name in loaded} == {}
    assert "kio" not in loaded
    assert ("proxy.acl.guards" in loaded) is ("enforce" in config.read_text())
    assert ("cryptography" in loaded) is ("OAUTHBEARER" in config.read_text())
    assert "prometheus_client" in loaded, "or the HTTP process copies what its import touches"


def imported_after(fork: int, config: Path, http: int | None = None) -> set[str]:
    """What a child imports that is not of the standard library; `http` is a port to ask at."""
    program = AFTER_THE_FORK.replace("FORK", str(fork))
    with started(program, config) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if http is not None:
            for path in ("metrics", "sessions.json", ""):
                urlopen(f"http://127.0.0.1:{http}/{path}", timeout=DEADLINE_SECONDS).close()
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert "accepting" in line, errors
    assert errors.count(" started in ") == 1
    marker = "imports "
    imported = [one.removeprefix(marker) for one in errors.splitlines() if one.startswith(marker)]
    return {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}


def test_workers_share_what_is_loaded(config: Path) -> None:
    """A worker that imports keeps its clients waiting, and pages of memory for itself."""
    assert imported_after(WORKER, config) == set()


def test_the_http_process_loads_the_status_page_alone(tmp_path: Path) -> None:
    """When somebody opens it: an import dirties pages all over the memory that is shared."""
    config = settings(tmp_path, everything=True)
    http = int(json.loads(config.read_text())["http"]["address"].rpartition(":")[2])
    loaded = imported_after(HTTP, config, http)
    assert {name for name in loaded if not name.startswith("proxy.ops.status")} == set()
