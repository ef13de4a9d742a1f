"""Start of the proxy: its modules are loaded while a child validates the configuration.

This module is imported first, and so imports little: what is loaded before that child is forked
delays it, and stays in memory for as long as the proxy runs.
"""

import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from proxy.errors import ProxyError, printable
from proxy.process.validation import validate
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.output import replace_standard_streams
from proxy.scheduling.short_lived import ShortLived

UNUSABLE: Final = 2
"""Exit status if the configuration cannot be used."""


def serve(path: Path, *, follow: bool, take_over: bool = False) -> int:
    """Run the proxy that the file describes; return the exit status.

    `follow`: a file that is replaced is reloaded, as by SIGHUP. `take_over`: the sockets of a
    running proxy are taken over, which is then replaced.
    """
    status = _serve(path, follow=follow, take_over=take_over)
    if take_over and status == UNUSABLE:
        _say("nothing was taken over; a proxy that runs goes on serving")
    return status


def _serve(path: Path, *, follow: bool, take_over: bool) -> int:
    begun = time.monotonic()
    heartbeat = Heartbeat()
    replace_standard_streams(heartbeat)
    validating = ShortLived(partial(validate, path))
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",  # `logs.TEXT`
    )
    from proxy.process.supervisor import Server, preload, raise_file_limit

    preload()
    try:
        validated = validating.result()
        raise_file_limit()
        server = Server(path, validated, heartbeat, follow=follow, take_over=take_over, begun=begun)
    except ProxyError as error:
        _say(printable(f"{path}: {error}"))
        return UNUSABLE
    try:
        return server.run()
    except ProxyError as error:
        _say(str(error))
        return UNUSABLE


def _say(text: str) -> None:
    print(f"reauth-proxy: {text}", file=sys.stderr)  # noqa: T201 - the command's output
