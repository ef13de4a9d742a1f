"""Reload of certificate files that are replaced while the proxy runs."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from proxy.net.tls_contexts import Tls

log = logging.getLogger(__name__)

CHECK_EVERY: Final = 1.0
"""Seconds between two checks of the files."""


async def follow(certificates: Collection[Tls]) -> None:
    """Check the files of each context periodically, and put replacements into effect. Does not
    return."""
    while True:
        await asyncio.sleep(CHECK_EVERY)
        for tls in certificates:
            try:
                replacement = await asyncio.to_thread(tls.check, time.time())
                if replacement is not None:
                    tls.replace(replacement)
            except Exception:  # the old certificate stays until the next check
                log.exception("a certificate could not be checked")
