"""The unit of systemd and the compose file: what they name exists, and fits together."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from proxy.config import from_mapping
from proxy.config.document import parse

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "reauth-proxy.service"
COMPOSE = DEPLOY / "compose" / "compose.yaml"


def test_the_unit_serves_the_configuration_that_it_checks() -> None:
    text = UNIT.read_text()
    assert "ExecStart=/opt/reauth-proxy/bin/reauth-proxy serve ${REAUTH_PROXY_CONFIG}" in text
    assert re.search(r"^Environment=REAUTH_PROXY_CONFIG=/etc/", text, re.MULTILINE)
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) > 50, "shutdown.drain.ms, events.deliver.drain.ms, and 5 s on top of each"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/reauth-proxy/bin/reauth-proxy", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert UNIT.name not in done.stderr, done.stderr


def test_the_compose_file_fits_the_configuration(tmp_path: Path) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    config = from_mapping(parse((COMPOSE.parent / "proxy.yaml").read_bytes()), base_dir=tmp_path)
    (listener,) = config.listeners
    assert config.http.address is not None
    assert listener.broker_ports is not None
    ports = {one.removeprefix("127.0.0.1:") for one in services["proxy"]["ports"]}
    published = (listener.address.port, str(listener.broker_ports), config.http.address.port)
    assert ports == {f"{one}:{one}" for one in published}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (COMPOSE.parent / source).exists(), volume


def test_volumes_of_the_compose_file_can_be_written_to(tmp_path: Path) -> None:
    """A new volume gets the owner of the image's directory, or root if it is missing."""
    document = yaml.safe_load(COMPOSE.read_text())
    volumes = [one.partition(":") for one in document["services"]["proxy"]["volumes"]]
    mounted = {Path(path) for name, _, path in volumes if name in document["volumes"]}
    (made,) = re.findall(r"^RUN install -d .*$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert mounted == {Path("/", path) for path in re.findall(r" /image/(\S+)", made)}
    config = from_mapping(parse((COMPOSE.parent / "proxy.yaml").read_bytes()), base_dir=tmp_path)
    store = Path(config.store.url.removeprefix("sqlite:"))
    assert {store.parent, config.events.directory} == mounted


def test_its_prometheus_loads_rules_that_exist() -> None:
    config = yaml.safe_load((COMPOSE.parent / "prometheus.yaml").read_text())
    for file in config["rule_files"]:
        assert (DEPLOY / "prometheus" / Path(file).name).is_file()
