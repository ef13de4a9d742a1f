"""Notifications to the service manager of systemd: sd_notify(3), `Type=notify`."""

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

log = logging.getLogger(__name__)

_PATIENCE: Final = 1.0
"""Seconds for which the service manager may take no notification."""


class ServiceManager:
    """Service manager that started the proxy, if one did that wants to be notified."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Remove the variable that names its socket, so that no other program speaks for this."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._is_ready = False

    def serves(self) -> None:
        """Report that the proxy serves, or that a reload is over."""
        if not self._is_ready:
            self._is_ready = True
            self._notify("READY=1")

    def reloads(self) -> None:
        """Report that a reload begins; `serves` is to be called after it."""
        if self._is_ready:
            self._is_ready = False
            self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stops(self) -> None:
        """Report that the proxy drains, and ends then."""
        self._notify("STOPPING=1")

    def is_replaced(self, pid: int) -> None:
        """Report that another process is the service's main process from now on."""
        self._notify(f"MAINPID={pid}")

    def _notify(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_PATIENCE)
                sock.connect(self._address)
                sock.send("\n".join(assignments).encode())
        except OSError as error:
            log.warning("systemd is not notified (%s): %s", assignments[0], error)
