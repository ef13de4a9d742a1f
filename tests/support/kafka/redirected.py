"""A proxy in a network namespace with redirected connections, under its own user."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes import Namespace
from tests.support.proxy_process import ProxyProcess

SCRIPT = Path(__file__).parents[3] / "deploy" / "transparent" / "redirect.sh"
PROXY_UID = "60092"

Inside = Callable[[Callable[[], Any]], Any]
"""Calls a function in the namespace."""


def run_unprivileged(process: ProxyProcess, here: Namespace, directory: Path) -> None:
    """Start a proxy whose files are in `directory` in the namespace, as `PROXY_UID`, who may
    read this tree."""
    for file in (directory, *directory.iterdir()):
        os.chown(file, int(PROXY_UID), -1)
    process.prefix = (
        *here.prefix,
        "setpriv",
        f"--reuid={PROXY_UID}",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    )


def redirect(here: Namespace, proxy_port: int, broker_ports: str) -> None:
    """Redirect connections to these ports to the proxy with the script of deploy/."""
    settings = {"PROXY_PORT": str(proxy_port), "BROKER_PORTS": broker_ports}
    here.run(str(SCRIPT), "up", PROXY_UID=PROXY_UID, TOOL="iptables", **settings)
