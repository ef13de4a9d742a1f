"""Follower of certificate files that are replaced while the proxy runs."""

import asyncio
import logging
import time
from typing import Final

from proxy.tls.contexts import TlsOfAll

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two checks of the files."""


async def follow(certificates: TlsOfAll) -> None:
    """Look at the files of each context, for ever, and take up what replaced them."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        for tls in certificates.all:
            try:
                replacement = await asyncio.to_thread(tls.look, time.time())
                if replacement is not None:
                    tls.take(replacement)
            except Exception:  # the old certificate stays, and the next look comes
                log.exception("a certificate could not be looked at")
