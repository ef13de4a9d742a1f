"""Start of the proxy: its modules are loaded while a child validates the configuration.

This module is imported first, and so imports little: what is loaded before that child is forked
delays it, and stays in memory for as long as the proxy runs.
"""

import logging
import sys
import time
from functools import partial
from pathlib import Path

from proxy.child_process.short_lived import ShortLived
from proxy.errors import ProxyError, printable
from proxy.process.validation import validate


def serve(path: Path, *, follow: bool) -> int:
    """Run the proxy that the file describes; return the exit status.

    `follow`: a file that is replaced is reloaded, as by SIGHUP.
    """
    begun = time.monotonic()
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
        server = Server(path, validated, follow=follow, begun=begun)
    except ProxyError as error:
        print(f"reauth-proxy: {printable(f'{path}: {error}')}", file=sys.stderr)  # noqa: T201
        return 2
    return server.run()
